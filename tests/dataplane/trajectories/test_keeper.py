"""What a trainer keeps of its steps, with the process that writes it."""

import os
import signal
import threading

import pytest

from hpcrl.data.records import Records
from hpcrl.dataplane.trajectories import keeper as keeper_module
from hpcrl.dataplane.trajectories.keeper import Keeper, chosen
from hpcrl.dataplane.trajectories.layout import TAKEN, folder_of
from hpcrl.dataplane.trajectories.read import Trajectories
from hpcrl.dataplane.trajectories.select import Wanted
from hpcrl.engines.completion import Sampling
from hpcrl.recipe import Recipe, RoleGroup, Schedule
from hpcrl.roles.rollout import Rollout
from hpcrl.roles.samples import CREATED_NAMES, GRADED_NAMES
from hpcrl.roles.trainer import Trainer
from hpcrl.run.directory import RunDirectory
from hpcrl.run.stop import wait_for


def test_whole_prompts_first_and_the_last_one_cut():
    assert chosen([4, 4, 4], 8) == [4, 4, 0]
    assert chosen([4, 4, 4], 6) == [4, 2, 0]
    assert chosen([4, 4], 100) == [4, 4]
    assert chosen([4, 2], -1) == [4, 2]
    assert chosen([4, 4], 0) == [0, 0]
    assert chosen([], 5) == []


def test_a_trainer_reads_what_is_kept_only_if_it_keeps_something():
    assert set(TAKEN) <= {*CREATED_NAMES, *GRADED_NAMES}
    keeping, not_keeping = Trainer(model="m"), Trainer(model="m", trajectories=0)
    assert set(TAKEN) <= set(keeping.reads()[0].columns)
    assert "response" not in not_keeping.reads()[0].columns


def test_the_space_that_they_take_is_known_before_the_start(tiny_model):
    def needed(trajectories):
        rollout = Rollout(model="m", dataset=Records(paths=("x",)), sampling=Sampling(max_new_tokens=100))
        trainer = Trainer(model=str(tiny_model), trajectories=trajectories)
        groups = {"rollout": RoleGroup(role=rollout), "trainer": RoleGroup(role=trainer)}
        schedule = Schedule(steps=10, prompts_per_step=4, samples_per_prompt=8)
        return trainer.disk_bytes(Recipe(name="t", groups=groups, streams=(), schedule=schedule))

    assert [needed(samples) - needed(0) for samples in (1, 32, 1000, -1)] == [16_000, 512_000, 512_000, 512_000]
    wrong = Trainer(model=str(tiny_model), trajectories=-2)
    recipe = Recipe(
        name="t",
        groups={"trainer": RoleGroup(role=wrong)},
        streams=(),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )
    assert any("trajectories is -2" in problem for problem in wrong.check(recipe))


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "a run, 東京", name="t", recipe_json="{}")


@pytest.fixture
def keep(run):
    """Makes keepers of new attempts and closes them."""
    made = []

    def make(*, after=0, samples=-1, **settings):
        made.append(Keeper(run.new_attempt(), after=after, samples=samples, **settings))
        return made[-1]

    yield make
    for keeper in made:
        keeper.close()


def kept(run):
    """Step and row id of all that counts, in its order."""
    told = []
    with Trajectories(run, told.append) as trajectories:
        rows = trajectories.find(Wanted())
    assert told == []
    return list(zip(rows["step"].tolist(), rows["row"].tolist(), strict=True))


pytestmark = pytest.mark.slow


def test_what_was_trained_on_comes_back(run, keep, group):
    keeper = keep()
    keeper.keep(1, [group(0), group(1)], [0.5, -0.5, 0.0, 1.0, 2.0, 3.0])
    assert kept(run) == []
    assert keeper.settle(60)
    assert kept(run) == [(1, 0), (1, 1), (1, 2), (1, 1000), (1, 1001), (1, 1002)]
    with Trajectories(run, pytest.fail) as trajectories:
        rows = trajectories.find(Wanted())
        (record,) = trajectories.read(rows[4:5], [*TAKEN, "advantage", "step"])
    assert (record["response"], record["finish"], record["advantage"], record["step"]) == ("answer 1 to 1", "stop", 2.0, 1)
    assert record["response_ids"].tolist() == record["versions"].tolist() == [0, 1]
    assert (rows["first_version"][5], rows["last_version"][5], rows["length"][5], rows["prompt_length"][5]) == (0, 2, 3, 1)


def test_steps_are_added_to_a_file_until_it_is_large(run, keep, group, monkeypatch):
    keeper = keep(samples=4)
    for step in (1, 2):
        keeper.keep(step, [group(2 * step), group(2 * step + 1)], [0.0] * 6)
        assert keeper.settle(60)
    folder = folder_of(run.latest())
    assert sorted(path.name for path in folder.iterdir()) == ["began.json", "step-00000001.h5"]
    monkeypatch.setattr(keeper_module, "FILE_BYTES", 1)
    keeper.keep(3, [group(6)], [0.0] * 3)
    assert keeper.settle(60)
    assert sorted(path.name for path in folder.glob("*.h5")) == ["step-00000001.h5", "step-00000003.h5"]
    assert [step for step, _ in kept(run)] == [1] * 4 + [2] * 4 + [3] * 3
    assert [row for _, row in kept(run)][:5] == [2000, 2001, 2002, 3000, 4000]


def test_a_step_that_is_trained_again_replaces_the_one_that_was_lost(run, keep, group):
    first = keep()
    for step in (1, 2, 3):
        first.keep(step, [group(step)], [0.0] * 3)
    first.close()
    second = keep(after=1)
    assert second.settle(60)
    # Step 2 and 3 were lost with the first attempt, whoever knows them.
    assert [step for step, _ in kept(run)] == [1] * 3
    second.keep(2, [group(7)], [0.0] * 3)
    second.close()
    assert kept(run) == [(1, 1000), (1, 1001), (1, 1002), (2, 7000), (2, 7001), (2, 7002)]
    third = keep(after=0)
    assert third.settle(60)
    assert kept(run) == [], "the third began anew"


def test_a_process_that_is_killed_is_replaced_and_nothing_is_lost_or_doubled(run, keep, group, caplog, monkeypatch):
    keeper = keep()
    keeper.keep(1, [group(1)], [0.0] * 3)
    assert keeper.settle(60)
    os.kill(keeper._process.pid, signal.SIGSTOP)
    asked, receive = threading.Event(), keeper._process.receive
    monkeypatch.setattr(keeper._process, "receive", lambda: asked.set() or receive())
    keeper.keep(2, [group(2)], [0.0] * 3)
    keeper.begin()
    keeper.keep(3, [group(3)], [0.0] * 3)
    # One that is found dead is replaced without a word.
    assert asked.wait(60)
    os.kill(keeper._process.pid, signal.SIGKILL)
    wait_for("the end of the writing", lambda: None if keeper._writing.is_alive() else True, seconds=60)
    assert keeper.settle(60)
    assert "their process was killed by signal 9; it is tried again" in caplog.text
    assert [step for step, _ in kept(run)] == [1] * 3 + [2] * 3 + [3] * 3


def test_training_goes_on_where_nothing_can_be_written(run, keep, group, caplog):
    attempt = run.path / "attempt_1"
    attempt.mkdir()
    (attempt / "trajectories").write_text("in the way")
    keeper = Keeper(run.attempts()[0], after=0, samples=-1)
    keeper.keep(1, [group(1)], [0.0] * 3)
    assert not keeper.settle(60)
    assert "trainer rank 0 on " in caplog.text
    assert str(attempt / "trajectories") in caplog.text
    (attempt / "trajectories").unlink()
    assert keeper.settle(60)
    keeper.close()
    assert [step for step, _ in kept(run)] == [1] * 3


def test_what_waits_is_bounded(run, keep, group, caplog, monkeypatch):
    keeper = keep()
    assert keeper.settle(60)
    os.kill(keeper._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(keeper_module, "BATCH_BYTES", 1)
    monkeypatch.setattr(keeper_module, "MOST_BYTES", 1)
    for step in (1, 2, 3):
        keeper.keep(step, [group(step)], [0.0] * 3)
    assert keeper.left_out == 3
    assert "the trajectories of step 3 are left out" in caplog.text
    assert not keeper.settle(0.1)
    os.kill(keeper._process.pid, signal.SIGCONT)
    assert keeper.settle(60)
    assert [step for step, _ in kept(run)] == [1] * 3 + [2] * 3


def test_none_are_kept_where_none_are_asked_for(run, keep, group):
    keeper = keep(samples=0)
    keeper.keep(1, [group(1)], [0.0] * 3)
    assert keeper.settle(1)
    assert keeper._process is None
    assert not folder_of(run.latest()).exists()
