import random

from hypothesis import given
from hypothesis import strategies as st

from hpcrl.checkpoint.state.layout import DAMAGED, MANIFEST, SaveName, Saves, look, next_number

NAMES = st.builds(SaveName, attempt=st.integers(1, 99), step=st.integers(0, 10**9), number=st.integers(1, 999))


def put(folder, name, *files):
    (folder / str(name)).mkdir(parents=True)
    for file in files:
        (folder / str(name) / file).touch()


@given(NAMES)
def test_a_name_comes_back_from_its_folders_name(name):
    assert SaveName.parse(str(name)) == name


def test_what_is_no_save_has_no_name():
    for text in ("step-12.a1.1", "step-00000012", ".step-00000012.a1.1.old", "step-00000012.a1.1.tmp", "accepted.json", ""):
        assert SaveName.parse(text) is None


@given(st.lists(NAMES, min_size=2))
def test_a_later_attempts_save_is_newer_then_a_higher_steps_then_a_higher_number(names):
    assert sorted(names) == sorted(names, key=lambda name: (name.attempt, name.step, name.number))


def test_saves_are_told_apart(tmp_path):
    names = [SaveName(attempt, step, number) for attempt in (1, 2, 10) for step, number in ((3, 1), (12, 2), (12, 3))]
    random.Random(0).shuffle(names)
    for name in names:
        put(tmp_path, name, *([MANIFEST] if name.number != 1 else []), *([DAMAGED] if name.attempt == 2 else []))
    (tmp_path / "accepted.json").touch()
    found = look(tmp_path)
    assert found.committed == tuple(SaveName(attempt, 12, number) for attempt in (1, 10) for number in (2, 3))
    assert found.damaged == (SaveName(2, 12, 2), SaveName(2, 12, 3))
    assert found.partial == tuple(SaveName(attempt, 3, 1) for attempt in (1, 2, 10))


def test_no_folder_holds_nothing(tmp_path):
    assert look(tmp_path / "nowhere") == Saves()
    assert next_number(tmp_path / "nowhere", 1) == 1


def test_a_new_number_is_above_unfinished_and_damaged_ones_of_the_attempt(tmp_path):
    put(tmp_path, SaveName(1, 5, 9), MANIFEST)
    put(tmp_path, SaveName(2, 5, 1), MANIFEST)
    put(tmp_path, SaveName(2, 5, 2), MANIFEST, DAMAGED)
    put(tmp_path, SaveName(2, 6, 3))
    assert [next_number(tmp_path, attempt) for attempt in (1, 2, 3)] == [10, 4, 1]
