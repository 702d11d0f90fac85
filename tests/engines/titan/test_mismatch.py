from __future__ import annotations

import pytest

from hpcrl.engines.titan.mismatch import GapAlarm, PolicyMismatch
from hpcrl.engines.titan.settings import TrainerSettings


def alarm(**limits):
    return GapAlarm(TrainerSettings(model="m", **limits))


def test_a_usual_gap_says_nothing():
    assert alarm().see(1, 0.02, 3.0) == ""


def test_a_large_gap_is_warned_of():
    assert "by 0.2 nats, 5 at most, above gap_warn 0.1" in alarm().see(3, 0.2, 5.0)
    assert alarm(gap_warn=None).see(3, 0.2, 5.0) == ""


def test_a_gap_far_beyond_ends_the_run_after_several_steps_in_a_row():
    watch = alarm(gap_stop=0.5, gap_steps=2)
    assert "the run ends after 1 more such steps. Likely causes" in watch.see(1, 0.6, 9.0)
    assert watch.see(2, 0.01, 1.0) == ""
    watch.see(3, 0.6, 9.0)
    with pytest.raises(PolicyMismatch, match=r"step 4: .* for 2 steps in a row\. Likely causes: .*temperature.*Set gap_stop"):
        watch.see(4, float("nan"), 9.0)


def test_the_limit_can_be_switched_off():
    watch = alarm(gap_stop=None, gap_steps=1)
    assert "gap_warn" in watch.see(1, 50.0, 90.0)


@pytest.mark.parametrize("changes", [{"gap_steps": 0}, {"gap_stop": 0.0}, {"gap_mask": -1.0}, {"attention": "flash"}])
def test_limits_that_make_no_sense_are_named(changes):
    (problem,) = TrainerSettings(model="m", **changes).problems()
    assert next(iter(changes)) in problem
