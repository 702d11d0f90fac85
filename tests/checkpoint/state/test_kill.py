"""SIGKILL at every named place of a save: what was committed is whole, and the run goes on from it as if nothing had been."""

import os
import signal
import time

import pytest
import torch

from hpcrl.checkpoint.cursor import Cursor, read_cursor
from hpcrl.checkpoint.state.layout import SaveName, look
from hpcrl.checkpoint.state.manifest import Manifest, check_files, manifests
from hpcrl.checkpoint.state.ranks import Alone
from hpcrl.checkpoint.state.restore import restore
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.saver import About, Saved, Saver
from hpcrl.run.failpoints import NAMES, VARIABLE, arm
from hpcrl.run.stop import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_writers")]

STEPS = 4
SHAPES = [(6, 5), (7,), (3, 2)]
TENSORS = 4 * len(SHAPES)


def live(folder, attempt, keep=9, steps=STEPS):
    """One life of a trainer: from the newest save to the last step, a save after each.

    Without autograd, which no fork survives.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    params = [torch.randn(shape) for shape in SHAPES]
    optimizer = torch.optim.AdamW(params, lr=0.1)
    for p in params:
        optimizer.state[p] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    tensors = {f"model.{n}": p for n, p in enumerate(params)}
    tensors |= {f"optimizer.{n}.{key}": value for n, p in enumerate(params) for key, value in optimizer.state[p].items()}
    saver = Saver(folder, Alone(), keep=Keep(last=keep))
    manifest = restore(folder, tensors, Alone(), late_s=0)
    step = 0 if manifest is None else manifest.step
    while step < steps:
        for p in params:
            p.grad = torch.randn_like(p) + 0.1 * p
        saver.copied()
        optimizer.step()
        step += 1
        saver.begin(tensors, step, About(run_id="mine", attempt=attempt, cursor=Cursor(step=step)))
        ended = saver.finish(seconds=120)
        assert isinstance(ended, Saved), ended
    saver.close()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def die(folder, attempt, failpoint, **more):
    """A life in a process of its own, which is to be killed, with its writer if need be."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.environ[VARIABLE] = failpoint
            arm(failpoint)
            live(folder, attempt, **more)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 120
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail(f"{failpoint} was not reached")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"{failpoint} was not reached"
    # A writer that outlives its trainer could still commit.
    wait_for("the whole group to end", lambda: None if group_lives(pid) else True, seconds=10)


def group_lives(pid):
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def verify(folder):
    """Every committed save is whole; their names."""
    found = list(manifests(folder, "mine"))
    assert all(isinstance(manifest, Manifest) for manifest in found), found
    assert [problem for manifest in found for problem in check_files(folder, manifest)] == []
    return sorted(manifest.name for manifest in found)


@pytest.fixture(scope="module")
def straight(tmp_path_factory, forked_writers):
    """What an uninterrupted life ends with."""
    return live(tmp_path_factory.mktemp("straight") / "state", 1)


SECOND = "~step-00000002"
# Where, and the step of the newest save that must be there afterwards.
PLACES = [
    ("writer.start=kill-group", 0),
    ("state.begin@2", 1),
    ("state.folder@2", 1),
    (f"state.stage@{TENSORS + 1}", 1),
    (f"state.stage@{TENSORS + 7}", 1),
    ("state.staged@2", 1),
    ("writer.request@2=kill-group", 1),
    (f"shard.begin{SECOND}=kill-group", 1),
    (f"shard.tensor{SECOND}@1=kill-group", 1),
    (f"shard.tensor{SECOND}@7=kill-group", 1),
    (f"disk.create{SECOND}=kill-group", 1),
    (f"disk.write{SECOND}@9=kill-group", 1),
    (f"disk.fsync{SECOND}@2=kill-group", 1),
    (f"disk.fsync{SECOND}@3=kill-group", 1),
    (f"disk.rename{SECOND}=kill-group", 1),
    (f"shard.written{SECOND}=kill-group", 1),
    (f"shard.durable{SECOND}=kill-group", 1),
    (f"part.begin{SECOND}=kill-group", 1),
    (f"part.done{SECOND}=kill-group", 1),
    (f"commit.begin{SECOND}=kill-group", 1),
    (f"commit.metadata{SECOND}=kill-group", 1),
    (f"manifest.begin{SECOND}=kill-group", 1),
    (f"manifest.written{SECOND}=kill-group", 1),
    (f"manifest.done{SECOND}=kill-group", 2),
    ("state.committed@2", 2),
]


@pytest.mark.parametrize(("failpoint", "step"), PLACES)
def test_killed_while_saving(tmp_path, straight, failpoint, step):
    folder = tmp_path / "a run, 東京" / "state"
    die(folder, 1, failpoint)
    assert verify(folder) == [SaveName(1, n, n) for n in range(1, step + 1)]
    assert read_cursor(folder).step == step
    ended = live(folder, 2)
    assert all(torch.equal(ended[name], tensor) for name, tensor in straight.items())
    # What was killed is saved again, by its own name; nothing unfinished is left.
    assert verify(folder) == [SaveName(1, n, n) for n in range(1, step + 1)] + [
        SaveName(2, n, n - step) for n in range(step + 1, STEPS + 1)
    ]
    assert look(folder).partial == ()


@pytest.mark.parametrize(
    ("failpoint", "left"),
    [
        ("state.asked@2", {1, 2}),
        ("prune.begin@2=kill-group", {1, 2}),
        ("prune.hidden=kill-group", {2}),
        ("disk.unlink~.step=kill-group", {2}),
        ("prune.done@2=kill-group", {2}),
    ],
)
def test_killed_while_older_saves_go(tmp_path, straight, failpoint, left):
    folder = tmp_path / "state"
    die(folder, 1, failpoint, keep=1)
    kept = verify(folder)
    assert {name.step for name in kept} <= left
    ended = live(folder, 2, keep=1)
    assert all(torch.equal(ended[name], tensor) for name, tensor in straight.items())
    assert verify(folder) == [SaveName(2, STEPS, STEPS - kept[-1].step)]
    assert os.listdir(folder) == [str(SaveName(2, STEPS, STEPS - kept[-1].step))], "what was half removed has gone"


@pytest.mark.parametrize("failpoint", ["restore.begin", "restore.checked", "state.begin"])
def test_killed_while_going_on(tmp_path, straight, failpoint):
    folder = tmp_path / "state"
    live(folder, 1, steps=2)
    die(folder, 2, failpoint)
    assert verify(folder) == [SaveName(1, 1, 1), SaveName(1, 2, 2)]
    ended = live(folder, 3)
    assert all(torch.equal(ended[name], tensor) for name, tensor in straight.items())


def test_no_place_of_a_save_is_left_out():
    tried = {place.partition("~")[0].partition("@")[0].partition("=")[0] for place, _ in PLACES}
    tried |= {"state.asked", "prune.begin", "prune.hidden", "disk.unlink", "prune.done", "restore.begin", "restore.checked"}
    prefixes = ("state.", "writer.", "shard.", "part.", "commit.", "manifest.", "prune.", "restore.")
    assert {name for name in NAMES if name.startswith(prefixes)} <= tried
