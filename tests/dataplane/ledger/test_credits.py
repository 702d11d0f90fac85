"""Producers wait before a stream is full, in turn."""

from __future__ import annotations

from hpcrl.dataplane.ledger import ops


def full(make_driver, **changes):
    drive = make_driver(**{"capacity_rows": 8, **changes})
    for who in ("make.0", "make.1"):
        drive.put(who, rows=2)
        drive.put(who, rows=2)
    return drive


def free(drive, first: int) -> None:
    drive.acknowledge("train.0", first)


def test_a_full_stream_says_what_is_full_and_whose_turn_it_is(make_driver):
    drive = full(make_driver)
    drive.now += 5
    drive.take("score.1", rows=2)
    waiting = drive.put(rows=2)
    assert isinstance(waiting, ops.Wait)
    for part in ("8 of 8 rows", "stream 's'", "final reader, group 'train'", "oldest rows (0…, 5 s old)", "held by score.1"):
        assert part in waiting.reason
    assert drive.figures()["waiting"] == ["make.0"]


def test_bytes_count_too_filled_ones_as_well(make_driver):
    drive = make_driver(capacity_bytes=410)
    drive.put(rows=2)
    drive.put(rows=2)
    assert "400" not in drive.put(rows=1).reason
    free(drive, 0)
    drive.fill("score.0", 2)
    assert drive.figures()["untrained_bytes"] == 208
    assert drive.put(rows=2) == ops.Granted()
    assert isinstance(drive.put(rows=1), ops.Wait)
    free(drive, 2)
    assert drive.figures()["untrained_bytes"] == drive.figures()["bytes"] == 200


def test_who_waited_first_is_served_first_whatever_it_asks_for(make_driver):
    drive = full(make_driver)
    assert isinstance(drive.put("make.0", rows=4), ops.Wait)
    assert isinstance(drive.put("make.1", rows=2), ops.Wait)
    free(drive, 0)
    # There is room for two rows, but make.0 has waited for four for longer.
    assert isinstance(drive.put("make.1", rows=2), ops.Wait)
    free(drive, 4)
    assert isinstance(drive.put("make.1", rows=2), ops.Wait)
    assert drive.put("make.0", rows=4) == ops.Granted()
    free(drive, 2)
    assert drive.put("make.1", rows=2) == ops.Granted()
    assert drive.figures()["waiting"] == []


def test_who_stopped_asking_loses_its_place(make_driver):
    drive = full(make_driver)
    assert isinstance(drive.put("make.0", rows=4), ops.Wait)
    free(drive, 0)
    assert isinstance(drive.put("make.1", rows=2), ops.Wait)
    drive.sleep(11)
    assert drive.put("make.1", rows=2) == ops.Granted()


def test_who_has_nothing_there_may_always_put_a_block(make_driver):
    drive = make_driver(capacity_rows=4)
    drive.put("make.0", rows=4)
    assert isinstance(drive.put("make.0", rows=1), ops.Wait)
    assert drive.put("make.1", rows=4) == ops.Granted()
    assert isinstance(drive.put("make.1", rows=4), ops.Wait)
    assert drive.figures()["untrained_rows"] == 8


def test_trained_rows_leave_their_room_and_take_it_again_if_they_come_back(make_driver):
    drive = full(make_driver)
    drive.take("train.0", rows=2)
    drive.say("train.0", ops.Trained, stream="s", blocks=[0], version=1)
    assert drive.put(rows=2) == ops.Granted()
    drive.hello("train.0")
    assert drive.figures()["untrained_rows"] == 10
    assert isinstance(drive.put(rows=2), ops.Wait)


def test_places_in_line_go_with_a_life(make_driver):
    drive = full(make_driver)
    assert isinstance(drive.put("make.0", rows=4), ops.Wait)
    drive.hello("make.0")
    assert drive.figures()["waiting"] == []
