"""Reasons agree with retention, and what goes never takes along what stays."""

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.checkpoint.publish.versions import Version
from hpcrl.checkpoint.state import retain
from hpcrl.checkpoint.state.layout import SaveName
from hpcrl.checkpoint.state.manifest import Manifest
from hpcrl.checkpoint.state.retain import Held, Keep
from hpcrl.checkpoint.view.keeping import Keeping, to_drop, why_saves_stay, why_versions_stay
from hpcrl.checkpoint.view.saves import SaveInfo, resumes_from
from hpcrl.checkpoint.view.versions import VersionInfo


def save(step, *, attempt=1, number=1, state="committed", **metrics):
    name = SaveName(attempt, step, number)
    manifest = Manifest(run_id="r", attempt=attempt, step=step, number=number, metrics=metrics)
    return SaveInfo(name, state, "" if state == "committed" else "why", None if state == "partial" else manifest)


def version(number, previous=None):
    record = Version(
        version=number, hash=f"h{number}", dtype="float32", attempt=1, previous=previous, previous_hash="", files=[], tensors={}
    )
    return VersionInfo(number, "committed", record=record)


@st.composite
def many_saves(draw):
    names = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(1, 3)), unique=True, max_size=12))
    rewards = st.none() | st.floats(0, 1)
    return [
        save(step, attempt=attempt, number=number, **({} if (reward := draw(rewards)) is None else {"reward": reward}))
        for attempt, step, number in sorted(names)
    ]


KEEP = st.builds(
    Keep, last=st.integers(1, 4), every=st.integers(0, 5), best=st.integers(0, 3), metric=st.sampled_from(["reward", "-reward"])
)


@given(many_saves(), KEEP)
def test_what_has_a_reason_stays_and_only_that(saves, keep):
    reasons = why_saves_stay(saves, keep)
    gone = set(retain.to_drop([Held(info.name, info.manifest.metrics) for info in saves], keep))
    assert {info.name for info in saves} - reasons.keys() == gone
    assert all(reasons.values())
    assert set(to_drop(saves, [], Keeping(saves=keep)).saves) == gone


@given(st.lists(st.booleans(), min_size=1, max_size=15), st.integers(1, 4), st.integers(0, 4), st.sets(st.integers(0, 14)))
def test_so_it_is_with_versions(bases, last, every, protected):
    versions = [version(number, None if base or number == 0 else number - 1) for number, base in enumerate(bases)]
    keeping, in_use = Keeping(versions=last, versions_every=every), dict.fromkeys(protected, "it is served")
    reasons = why_versions_stay(versions, keeping, in_use)
    gone = to_drop([], versions, keeping, in_use).versions
    assert {info.version for info in versions} - reasons.keys() == set(gone)
    assert list(gone) == sorted(gone, reverse=True)
    for info in versions:
        if info.version in reasons and info.record.previous is not None:
            assert info.record.previous in reasons, "what a version that stays is built on stays"


def test_reasons_in_words():
    saves = [save(step, reward=1.0 if step == 3 else 0.0) for step in (2, 3, 4, 5, 6)]
    assert why_saves_stay(saves, Keep(last=2, every=2, best=1)) == {
        SaveName(1, 2, 1): ["step a multiple of 2"],
        SaveName(1, 3, 1): ["of the best 1 by reward"],
        SaveName(1, 4, 1): ["step a multiple of 2"],
        SaveName(1, 5, 1): ["of the newest 2"],
        SaveName(1, 6, 1): ["the newest"],
    }
    versions = [version(0), version(1, 0), version(2, 1), version(3)]
    assert why_versions_stay(versions, Keeping(versions=1), {2: "it is served"}) == {
        0: ["version 2 is built on it"],
        1: ["version 2 is built on it"],
        2: ["it is served"],
        3: ["the newest"],
    }


def test_the_newest_whole_save_stays_whatever_is_newer():
    saves = [save(1), save(2), save(3, state="damaged"), save(4, state="partial")]
    drop = to_drop(saves, [], Keeping(saves=Keep(last=1)))
    assert drop.saves == (SaveName(1, 1, 1),)
    assert to_drop([save(1, state="partial"), save(2)], [], Keeping()).saves == (SaveName(1, 1, 1),)
    assert to_drop([save(1, state="partial"), save(2, state="damaged")], [], Keeping()).saves == ()
    assert to_drop([save(1, state="foreign"), save(2)], [], Keeping(saves=Keep(last=1))).saves == ()


def test_the_save_that_a_resume_uses():
    assert resumes_from([], 1) == (None, "")
    assert resumes_from([save(1, state="partial")], 1) == (None, "")
    saves = [save(3), save(4), save(2, attempt=2), save(3, attempt=2, state="damaged"), save(4, attempt=2, state="partial")]
    found, why = resumes_from(saves, 3)
    assert (found.name, why) == (SaveName(2, 2, 1), "")
    found, why = resumes_from(saves, 1)
    assert found is None
    assert "step-00000002.a2.1 comes from the future: it is of attempt 2" in why
    assert resumes_from([save(1), save(2, state="foreign")], 2) == (None, "why")
    assert resumes_from([save(1, state="damaged")], 2) == (None, "no save is whole: step-00000001.a1.1 are damaged")
