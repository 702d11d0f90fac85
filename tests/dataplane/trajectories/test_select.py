"""Which rows are meant, and in which order."""

import numpy as np
import pytest

from hpcrl.dataplane.trajectories.select import ROW, Bounds, Wanted, in_order


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("10:20", [10, 15, 20], [9.99, 20.01]),
        ("10:", [10, 1e9], [9]),
        (":20", [-5, 20], [21]),
        ("-1.5:-0.5", [-1.5, -0.5], [0, -2]),
        ("7", [7], [6, 8]),
        ("<0.5", [0.49, -1], [0.5]),
        ("<= .5", [0.5], [0.51]),
        (">1", [1.01], [1]),
        (">=1e-3", [0.001], [0]),
        ("=0", [0], [1]),
        ("==-2", [-2], [2]),
    ],
)
def test_what_a_person_may_write(text, inside, outside):
    bounds = Bounds.parse(text)
    assert bounds.hold(np.array(inside)).all()
    assert not bounds.hold(np.array(outside)).any()


@pytest.mark.parametrize("text", ["", ":", "a", "1:2:3", "<", "<a", "!=3", "5-6", "20:10", "=>1"])
def test_what_is_no_condition(text):
    with pytest.raises(ValueError, match=r"."):
        Bounds.parse(text)


def make_rows(**columns):
    rows = np.zeros(len(next(iter(columns.values()))), ROW)
    for name, values in columns.items():
        rows[name] = values
    return rows


def test_every_condition_must_hold():
    rows = make_rows(
        step=[1, 2, 3, 3], reward=[0, 1, 0, 1], prompt=[5, 5, 6, 6], first_version=[0, 0, 2, 1], last_version=[0, 1, 2, 2]
    )
    assert Wanted().holds(rows).all()
    assert Wanted(step=Bounds.parse("2:3"), reward=Bounds.parse(">0")).holds(rows).tolist() == [False, True, False, True]
    assert Wanted(prompt=6).holds(rows).tolist() == [False, False, True, True]
    assert Wanted(versions=Bounds.parse("1:2")).holds(rows).tolist() == [False, False, True, True]
    assert Wanted(versions=Bounds.parse("2")).holds(rows).tolist() == [False, False, True, False]


def test_the_highest_come_first_and_equal_ones_in_the_order_of_training():
    rows = make_rows(row=[0, 1, 2, 3], step=[1, 1, 2, 2], reward=[0.5, 1, 0.5, 0], length=[3, 1, 2, 9])
    assert in_order(rows, "reward")["row"].tolist() == [1, 0, 2, 3]
    assert in_order(rows, "reward", reverse=True)["row"].tolist() == [3, 0, 2, 1]
    assert in_order(rows, "length")["row"].tolist() == [3, 0, 2, 1]
    assert in_order(rows, "step")["row"].tolist() == [2, 3, 0, 1]
    assert in_order(rows, None)["row"].tolist() == [0, 1, 2, 3]
    assert in_order(rows, None, reverse=True)["row"].tolist() == [3, 2, 1, 0]
