from __future__ import annotations

from typing import Any

from hpcrl.tracking.handovers import Handovers


def record(epoch: int, seconds: float, giver: str = "inference", **more: Any) -> dict[str, Any]:
    given = {"kind": "handover", "ring": "gpus", "giver": giver, "epoch": epoch, "seconds": seconds, "gave_s": seconds / 2}
    return {**given, "resume_s": 0.25, "freed_bytes": 100 * epoch, **more}


def test_each_pair_of_groups_has_the_median_of_its_hand_overs_and_what_they_are_made_of():
    held = Handovers()
    for epoch, seconds in ((2, 4.0), (4, 1.0), (6, 2.0)):
        held.add(1, "trainer.0", record(epoch, seconds))
        held.add(1, "inference.0", record(epoch + 1, 0.5, "trainer", load_s=0.125))
    back, there = sorted(held.summaries(), key=lambda item: item.taker)
    assert (there.ring, there.giver, there.taker, there.count, there.seconds) == ("gpus", "inference", "trainer", 3, 2.0)
    assert there.parts == {"gave": 1.0, "resume": 0.25}
    assert there.freed_bytes == 600
    assert back.parts == {"gave": 0.25, "resume": 0.25, "load": 0.125}


def test_the_slowest_process_of_a_group_counts_and_only_once():
    held = Handovers()
    for rank, seconds in enumerate((1.0, 3.0, 2.0)):
        held.add(1, f"trainer.{rank}", record(2, seconds))
    (one,) = held.summaries()
    assert (one.count, one.seconds) == (1, 3.0)


def test_a_later_attempt_begins_anew_and_what_is_no_hand_over_is_passed_over():
    held = Handovers()
    held.add(1, "trainer.0", record(2, 1.0))
    held.add(1, "trainer.0", record(1, 1.0, giver=""))
    held.add(1, "trainer.0", {"kind": "handover"})
    assert [item.count for item in held.summaries()] == [1]
    held.add(2, "trainer.0", record(2, 5.0))
    held.add(1, "trainer.0", record(4, 1.0))
    assert [(item.count, item.seconds) for item in held.summaries()] == [(1, 5.0)]
