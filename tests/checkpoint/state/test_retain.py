import os

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.checkpoint.state.layout import SaveName, look
from hpcrl.checkpoint.state.manifest import Manifest, mark_damaged, write_manifest
from hpcrl.checkpoint.state.retain import Held, Keep, prune, remove_unfinished, to_drop
from hpcrl.run.failpoints import armed

METRICS = st.dictionaries(st.sampled_from(["reward", "kl"]), st.floats(allow_nan=False, allow_infinity=False), max_size=2)
NAMES = st.builds(SaveName, attempt=st.integers(1, 3), step=st.integers(0, 40), number=st.integers(1, 4))
HELD = st.lists(st.builds(Held, NAMES, METRICS), unique_by=lambda one: one.name, max_size=30)
KEEP = st.builds(
    Keep,
    last=st.integers(1, 4),
    every=st.integers(0, 10),
    best=st.integers(0, 3),
    metric=st.sampled_from(["reward", "-kl", "nothing"]),
)


def save(folder, step, attempt=1, number=None, **metrics):
    manifest = Manifest(run_id="mine", attempt=attempt, step=step, number=number or step, metrics=metrics)
    (folder / str(manifest.name)).mkdir(parents=True)
    write_manifest(folder, manifest)
    return manifest.name


@given(HELD, KEEP)
def test_what_may_go_is_old_and_wanted_by_nobody(held, keep):
    dropped = to_drop(held, keep)
    names = sorted(one.name for one in held)
    kept = [name for name in names if name not in dropped]
    assert set(dropped) <= set(names)
    assert dropped == sorted(dropped)
    assert kept[-keep.last :] == names[-keep.last :]
    if keep.every:
        steps = {name.step for name in names if name.step % keep.every == 0}
        assert steps <= {name.step for name in kept}
        assert {max(name for name in names if name.step == step) for step in steps} <= set(kept)
    if keep.best:
        sign, metric = (-1, "kl") if keep.metric == "-kl" else (1, keep.metric)
        measured = [one for one in held if metric in one.metrics]
        stay = [sign * one.metrics[metric] for one in measured if one.name in kept]
        worst = sorted(stay)[-keep.best :]
        assert len(worst) == min(keep.best, len(measured))
        assert all(sign * one.metrics[metric] <= min(worst) for one in measured if one.name in dropped)


@given(HELD, KEEP)
def test_a_second_look_drops_nothing_more(held, keep):
    dropped = set(to_drop(held, keep))
    assert to_drop([one for one in held if one.name not in dropped], keep) == []


@given(HELD)
def test_the_newest_stays_whatever_is_asked(held):
    assert not held or max(one.name for one in held) not in to_drop(held, Keep(last=0))


def test_old_saves_and_what_was_left_before_the_newest_go(tmp_path):
    names = [save(tmp_path, step, reward=float(step == 2)) for step in (1, 2, 3, 4)]
    later = save(tmp_path, 3, attempt=2, number=1)
    for left in (SaveName(1, 9, 9), SaveName(2, 2, 8), SaveName(2, 4, 2)):
        (tmp_path / str(left)).mkdir()
    mark_damaged(tmp_path, names[2], "a byte")
    assert prune(tmp_path, Keep(last=1, best=1), run_id="mine") == []
    found = look(tmp_path)
    assert found.committed == (names[1], later)
    assert found.partial == (SaveName(2, 4, 2),), "it is being written"
    assert found.damaged == ()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_another_runs_save_is_never_removed(tmp_path):
    save(tmp_path, 1)
    foreign = Manifest(run_id="another", attempt=1, step=0, number=9)
    (tmp_path / str(foreign.name)).mkdir()
    write_manifest(tmp_path, foreign)
    save(tmp_path, 2)
    (problem,) = prune(tmp_path, Keep(last=1), run_id="mine")
    assert "is of run 'another'" in problem
    assert [name.step for name in look(tmp_path).committed] == [0, 2]


def test_what_cannot_be_removed_is_named_and_goes_the_next_time(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    with armed("disk.unlink@1+=errno:EBUSY"):
        problems = prune(tmp_path, Keep(last=1), run_id="mine")
    assert len(problems) == 2
    assert all("cannot be removed" in problem for problem in problems)
    assert [name.step for name in look(tmp_path).committed] == [3]
    assert prune(tmp_path, Keep(last=1), run_id="mine") == []
    assert os.listdir(tmp_path) == [str(SaveName(1, 3, 3))]


def test_nothing_goes_before_something_is_committed(tmp_path):
    (tmp_path / str(SaveName(1, 1, 1))).mkdir()
    assert prune(tmp_path, Keep(last=1)) == []
    assert look(tmp_path).partial == (SaveName(1, 1, 1),)


def test_what_earlier_saves_left_unfinished_makes_room(tmp_path):
    kept = save(tmp_path, 1)
    for left in (SaveName(1, 2, 2), SaveName(1, 2, 3), SaveName(2, 1, 1)):
        (tmp_path / str(left)).mkdir()
    assert remove_unfinished(tmp_path, SaveName(1, 2, 3)) == []
    assert look(tmp_path).committed == (kept,)
    assert look(tmp_path).partial == (SaveName(1, 2, 3), SaveName(2, 1, 1))
