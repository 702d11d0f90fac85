from __future__ import annotations

from hpcrl.data.rewards import Grade, Outcome
from hpcrl.roles.tally import Tally


def grades(text):
    letters = {"r": Outcome.RIGHT, "w": Outcome.WRONG, "u": Outcome.UNPARSEABLE, "t": Outcome.TIMEOUT, "e": Outcome.EXCEPTION}
    return [Grade(reward=0.0, outcome=letters[letter]) for letter in text]


def test_counts_are_those_of_the_block():
    tally = Tally(8, 1)
    assert tally.add(0, grades("rrwu")) == {"right": 2, "wrong": 1, "unparseable": 1}
    assert tally.add(0, grades("te")) == {"timeout": 1, "exception": 1}


def test_a_step_fails_only_when_every_sample_of_it_did():
    tally = Tally(4, 1)
    tally.add(0, grades("te"))
    assert tally.failed_step() is None
    tally.add(0, grades("tw"))
    assert tally.failed_step() is None
    tally.add(1, grades("eeee"))
    assert tally.failed_step() == 1


def test_unparseable_samples_are_judged_ones():
    tally = Tally(2, 1)
    tally.add(0, grades("uu"))
    assert tally.failed_step(ended=True) is None


def test_a_share_of_the_replicas_is_enough():
    tally = Tally(5, 2)
    tally.add(0, grades("ee"))
    assert tally.failed_step() is None
    tally.add(0, grades("e"))
    assert tally.failed_step() == 0


def test_a_short_last_step_counts_at_the_end():
    tally = Tally(4, 1)
    tally.add(7, grades("tt"))
    assert tally.failed_step() is None
    assert tally.failed_step(ended=True) == 7
