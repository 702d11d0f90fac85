"""Rows in flight at the end of an attempt are in the queue of the next one, once, with the same bytes."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hpcrl.cli.evidence import Evidence, examine
from hpcrl.config.codec import recipe_to_json
from hpcrl.dataplane.connect import connect, life_of
from hpcrl.dataplane.desk.process import Durability
from hpcrl.dataplane.desk.restore import Reached, Restorer
from hpcrl.dataplane.interface import DataPlane
from hpcrl.dataplane.ledger.ops import Labels, Ref
from hpcrl.dataplane.ledger.records import LiveBlock
from hpcrl.dataplane.ledger.rules import rules_of
from hpcrl.dataplane.shm.folders import Claim, attempt_folder, remove_attempt
from hpcrl.dataplane.snapshot.layout import SnapshotError
from hpcrl.dataplane.snapshot.manifest import committed
from hpcrl.dataplane.snapshot.parts import PartWriter, ask_nodes, await_nodes, read_wanted
from hpcrl.dataplane.snapshot.read import newest_snapshot
from hpcrl.dataplane.snapshot.request import Request
from hpcrl.recipe import Column, Limits, Reads, Recipe, RoleGroup, Schedule, Stream, Writes
from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.testing.queue_processes import NODE, Contract, QueueProcesses, every_edge

pytestmark = pytest.mark.slow

PROCESSES = {"make": 1, "score": 1, "train": 1, "queue": 1}
MADE = ("prompt", "version", "tokens", "text", "image")
ALL = (*MADE, "reward")
SAMPLES = 2


def make_recipe(snapshot_s: float = 0.0, **stream: Any) -> Recipe:
    def group(**contract: Any) -> RoleGroup:
        return RoleGroup(role=Contract(**contract))

    return Recipe(
        name="test",
        groups={
            "make": group(write=(Writes(stream="samples", columns=MADE, creates=True),)),
            "score": group(
                read=(Reads(stream="samples", columns=("tokens",)),), write=(Writes(stream="samples", columns=("reward",)),)
            ),
            "train": group(read=(Reads(stream="samples", columns=ALL, final=True),)),
        },
        streams=(
            Stream(
                name="samples",
                columns=(
                    Column(name="prompt", dtype="int64"),
                    Column(name="version", dtype="int32", ragged=True),
                    Column(name="tokens", dtype="int32", ragged=True),
                    Column(name="text", dtype="str"),
                    Column(name="image", dtype="int32", ragged=True),
                    Column(name="reward", dtype="float32"),
                ),
                block_rows=SAMPLES,
                capacity_rows=100_000,
                prompt="prompt",
                version="version",
                tokens=("tokens",),
                **stream,
            ),
        ),
        schedule=Schedule(steps=10, prompts_per_step=4, samples_per_prompt=SAMPLES, window=None),
        limits=Limits(call_s=20, wait_s=20, snapshot_s=snapshot_s, version_lag=4),
    )


def columns(prompt: int, version: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(prompt)
    return {
        "prompt": np.full(SAMPLES, prompt),
        "version": [np.full(prompt % 3, version, np.int32) for _ in range(SAMPLES)],
        "tokens": [random.integers(0, 1000, prompt % 50, dtype=np.int32) for _ in range(SAMPLES)],
        "text": [f"prompt {prompt} ∀ {k}" for k in range(SAMPLES)],
        "image": [random.integers(0, 256, 1000 + prompt, dtype=np.int32) for _ in range(SAMPLES)],
    }


class Run:
    """A run whose roles are this test."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.recipe = recipe
        self.directory = RunDirectory.create(path, name="test", recipe_json=recipe_to_json(recipe))

    @contextmanager
    def attempt(
        self, *, reached: Reached | None = None, processes: dict[str, int] | None = None, across: bool = False
    ) -> Iterator[Served]:
        attempt = self.directory.new_attempt()
        durability = Durability(attempt=attempt, node=NODE, life=life_of(attempt.number, 0), reached=reached or Reached(0, 0))
        with QueueProcesses(attempt.path / "history", key=self.directory.key, durability=durability) as queue:
            if across:
                queue.start_units()
                queue.durability = dataclasses.replace(durability, storage=partial(list, queue.storage))
            served = Served(self, queue, attempt.number, processes or PROCESSES, across)
            served.begin()
            try:
                yield served
            finally:
                served.leave()

    def verified(self) -> Evidence:
        """What the history proves, once all have ended."""
        latest = self.directory.latest()
        for name in ("make.0", "score.0", "train.0"):
            write_done(latest, DoneRecord(process=name, status="done"))
        return examine(self.directory)


class Served:
    """An attempt at work."""

    def __init__(self, run: Run, queue: QueueProcesses, number: int, processes: dict[str, int], across: bool) -> None:
        self.run, self.queue, self.number, self._processes, self._across = run, queue, number, processes, across
        self._planes: dict[str, DataPlane] = {}

    def begin(self) -> None:
        self.queue.start_desk(self.run.recipe, self._processes)

    def plane(self, group: str) -> DataPlane:
        if group not in self._planes:
            across = every_edge(self.run.recipe) if self._across else frozenset()
            self._planes[group] = connect(
                self.queue.address(across=across),
                self.run.recipe,
                group=group,
                rank=0,
                processes=self._processes,
                attempt=self.number,
                key=self.run.directory.key,
            )
        return self._planes[group]

    def put(self, prompts: range, *, version: int = 0, scored: int = 0) -> None:
        """Put prompts, and score the oldest so many."""
        make = self.plane("make")
        for prompt in prompts:
            make.put("samples", columns(prompt, version))
        score(self.plane("score"), scored)

    def leave(self) -> None:
        while self._planes:
            self._planes.popitem()[1].close()

    def lose_node(self) -> None:
        """All its processes and its memory are gone."""
        self.queue.kill("queue.0")
        self.leave()
        shutil.rmtree(self.queue.folder)


def score(plane: DataPlane, blocks: int) -> None:
    for _ in range(blocks):
        batch = plane.read("samples", ["tokens"], max_rows=SAMPLES, wait_s=20)
        assert batch is not None
        plane.fill(batch, {"reward": np.array([sum(map(int, row)) for row in batch.columns["tokens"]], np.float32)})


def train(plane: DataPlane, blocks: int, version: int) -> list[tuple[int, tuple[int, ...]]]:
    """Train blocks; prompt and row ids of each, all compared with what was put."""
    found = []
    for _ in range(blocks):
        batch = plane.read("samples", ALL, max_rows=SAMPLES, wait_s=20)
        assert batch is not None
        prompt = int(batch.columns["prompt"][0])
        for name, expected in columns(prompt).items():
            if name != "version":
                for one, other in zip(batch.columns[name], expected, strict=True):
                    np.testing.assert_array_equal(one, other)
        plane.trained(batch, version)
        plane.acknowledge(batch)
        found.append((prompt, tuple(batch.blocks[0].row_ids.tolist())))
    return found


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Run]:
    return lambda **options: Run(tmp_path / "run", make_recipe(**options))


def snapshots(run: Run) -> list[Path]:
    return committed(run.directory)


def test_rows_in_flight_come_back_once_with_the_same_bytes(new_run: Callable[..., Run]):
    run = new_run(snapshot_s=1000)
    with run.attempt() as one:
        one.put(range(10), scored=4)
        trained = train(one.plane("train"), 4, version=1)
    (folder,) = snapshots(run)
    with run.attempt(reached=Reached(1, 4)) as two:
        assert two.plane("make").held("samples") == frozenset(range(4, 10))
        score(two.plane("score"), 6)
        trained += train(two.plane("train"), 6, version=2)
        assert two.plane("train").read("samples", ALL, max_rows=SAMPLES, wait_s=0.2) is None
        assert two.plane("train").depth("samples").rows == 0
    assert sorted(prompt for prompt, _ in trained) == list(range(10))
    assert len({rows for _, rows in trained}) == 10
    assert snapshots(run)[0] != folder, "what the snapshot has is trained, which the next attempt must see"
    evidence = run.verified()
    assert list(evidence.report.violations) == []
    assert evidence.report.clean


def test_with_a_node_at_most_the_interval_is_lost(new_run: Callable[..., Run]):
    run = new_run(snapshot_s=0.5)
    with run.attempt() as one:
        one.put(range(5), scored=5)

        def saved() -> bool | None:
            newest = newest_snapshot(run.directory)
            return True if newest and newest.manifest.streams["samples"].rows == 5 * SAMPLES else None

        wait_for("a snapshot of all that was put", saved, seconds=60)
        trained = train(one.plane("train"), 2, version=1)
        one.lose_node()
    with run.attempt(reached=Reached(1, 1)) as two:
        # The second was trained and is in no save of the trainer, so it is trained again.
        assert two.plane("make").held("samples") >= frozenset(range(2, 5))
        trained += train(two.plane("train"), len(two.plane("make").held("samples")), version=2)
    assert {prompt for prompt, _ in trained} == set(range(5))
    assert len({rows for _, rows in trained}) == 5, "restored rows are the same rows"


def restore(run: Run, reached: Reached | None = None) -> list[int]:
    """Prompts that a further attempt would begin with."""
    attempt = run.directory.new_attempt()
    folder = attempt_folder(run.directory.run_id, attempt.number)
    claim = Claim(folder)
    try:
        restorer = Restorer(
            attempt,
            run.recipe,
            rules_of(run.recipe, PROCESSES),
            reached=reached or Reached(),
            folder=folder,
            node=NODE,
            who="queue.0",
            life=life_of(attempt.number, 0),
            inline=False,
        )
        adopted = restorer(100.0)
        return [] if adopted is None else sorted({block.labels.prompts[0] for block in adopted[0].live_refs()})
    finally:
        claim.release()
        assert remove_attempt(folder)


def test_a_damaged_snapshot_gives_way_to_the_one_before(new_run: Callable[..., Run], caplog: pytest.LogCaptureFixture):
    run = new_run(snapshot_s=1000)
    for prompts in (range(4), range(4, 6)):
        with run.attempt() as one:
            one.put(prompts)
    assert restore(run) == list(range(6))
    (file,) = snapshots(run)[0].glob("*.h5")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert restore(run) == list(range(4))
    assert f"{file} is damaged" in caplog.text


def test_a_snapshot_of_another_recipe_is_refused_and_the_run_begins_without(
    new_run: Callable[..., Run], caplog: pytest.LogCaptureFixture
):
    run = new_run(snapshot_s=1000)
    with run.attempt() as one:
        one.put(range(2))
    (stream,) = run.recipe.streams
    changed = dataclasses.replace(stream, columns=(*stream.columns, Column(name="more", dtype="bool")))
    run.recipe = dataclasses.replace(run.recipe, streams=(changed,))
    assert restore(run) == []
    assert "column 'more' is not there in the snapshot and a 1-D bool array" in caplog.text


def test_what_cannot_go_on_is_left_out_and_counted(new_run: Callable[..., Run], caplog: pytest.LogCaptureFixture):
    run = new_run(snapshot_s=1000)
    with run.attempt() as one:
        one.put(range(4), version=9)
        one.put(range(4, 6), version=1)
        one.put(range(6, 9), version=5)
    with caplog.at_level("INFO"):
        # Rows of prompts that are multiples of three have no token of any policy.
        assert restore(run, Reached(7, 2, frozenset({7}))) == [3, 6, 8]
    assert "6 rows in 3 blocks of snapshot" in caplog.text
    assert "left out: 6 rows (trained), 2 rows (lost policy), 4 rows (too old)" in caplog.text


def test_a_desk_that_is_killed_goes_on_with_what_it_restored(new_run: Callable[..., Run]):
    run = new_run(snapshot_s=1000)
    with run.attempt() as one:
        one.put(range(8), scored=8)
    with run.attempt() as two:
        segments = list(two.queue.folder.glob("queue.0/*/*.seg"))
        assert segments
        batch = two.plane("train").read("samples", ALL, max_rows=3 * SAMPLES, wait_s=20)
        assert batch is not None
        two.plane("train").trained(batch, 1)
        two.plane("train").acknowledge(batch)
        two.queue.kill("queue.0")
        two.queue.start_desk(run.recipe, PROCESSES)
        assert two.plane("make").held("samples") == frozenset(range(3, 8))
        trained = train(two.plane("train"), 5, version=2)
        assert [prompt for prompt, _ in trained] == list(range(3, 8))
        wait_for("segments of what was restored to go", lambda: not any(map(Path.exists, segments)) or None, seconds=20)
    assert run.verified().report.clean


def test_rows_in_storage_units_are_saved_too(new_run: Callable[..., Run]):
    run = new_run(snapshot_s=1)
    processes = {**PROCESSES, "queue": 3}
    with run.attempt(processes=processes, across=True) as one:
        one.put(range(6), scored=6)
        wait_for("a first one, which loads torch", lambda: snapshots(run) or None, seconds=120)
        train(one.plane("train"), 6, version=1)
        one.put(range(6, 10), scored=4)
    with run.attempt(reached=Reached(1, 6), processes=processes, across=True) as two:
        trained = train(two.plane("train"), 4, version=2)
    assert [prompt for prompt, _ in trained] == list(range(6, 10))
    assert run.verified().report.clean


@contextmanager
def another_node(run: Run, one: Served, processes: dict[str, int]) -> Iterator[tuple[DataPlane, Callable[[], object]]]:
    """A maker that puts four prompts into the shared memory of another node; the call has that node write its parts."""
    folder = attempt_folder(f"{run.directory.run_id}-there", 1)
    claim, stop = Claim(folder), StopFlag()
    try:
        there = dataclasses.replace(one.queue.address(), node="there", folder=folder)
        make = connect(there, run.recipe, group="make", rank=0, processes=processes, key=run.directory.key)
        for prompt in range(4):
            make.put("samples", columns(prompt))
        assert list(folder.glob("make.0/*/*.seg"))
        yield make, lambda: PartWriter(run.directory.latest(), "there", folder, stop)
        make.close()
    finally:
        stop.set()
        claim.release()
        remove_attempt(folder)


def test_rows_in_another_nodes_shared_memory_are_saved_too(new_run: Callable[..., Run], tmp_path: Path):
    run = new_run(snapshot_s=1000)
    processes = {**PROCESSES, "queue": 2}
    with run.attempt(processes=processes) as one, another_node(run, one, processes) as (_, write_parts):
        write_parts()
        one.queue.stop()
    assert len(newest_snapshot(run.directory).manifest.files) == 2
    with run.attempt(processes=processes) as two:
        score(two.plane("score"), 4)
        assert [prompt for prompt, _ in train(two.plane("train"), 4, version=1)] == list(range(4))
    assert run.verified().report.clean


@pytest.mark.parametrize("agent", ["killed", "left"])
def test_a_desk_killed_while_a_snapshot_is_made_loses_nothing(new_run: Callable[..., Run], agent: str):
    """With its group, as an ignitor ends it, or with the process that makes the snapshot left over."""
    run = new_run(snapshot_s=0.5)
    processes = {**PROCESSES, "queue": 2}
    with run.attempt(processes=processes) as one:
        with another_node(run, one, processes) as (make, write_parts):
            # It waits for the part of the other node, where nobody writes one yet.
            half = run.directory.latest().path / "snapshots" / "00000001"
            wait_for("half a snapshot", lambda: list(half.glob("node-*.h5")) or None, seconds=60)
            (maker,) = psutil.Process(one.queue.processes["queue.0"].pid).children()
            one.queue.kill("queue.0")
            if agent == "killed":
                maker.kill()
            one.queue.start_desk(run.recipe, processes)
            assert newest_snapshot(run.directory) is None
            assert make.held("samples") == frozenset(range(4))
            write_parts()
            whole = wait_for("a whole snapshot", lambda: snapshots(run) or None, seconds=60)
            assert half not in whole
            wait_for("the half one to go", lambda: not half.exists() or None, seconds=60)
        one.lose_node()
        psutil.wait_procs([maker], timeout=30)
        assert not maker.is_running()
    with run.attempt(processes=processes) as two:
        score(two.plane("score"), 4)
        assert [prompt for prompt, _ in train(two.plane("train"), 4, version=1)] == list(range(4))
    assert run.verified().report.clean


def test_a_node_that_writes_no_part_leaves_the_snapshot_before(tmp_path: Path):
    run = Run(tmp_path / "run", make_recipe())
    attempt = run.directory.new_attempt()
    request = Request(
        run=str(run.directory.path), attempt=1, node="here", folder="", streams=run.recipe.streams, ledger_seq=0, key="secret"
    )
    ref = Ref(kind="shm", size=8, where="make.0/256/00000.seg", offset=64, node="there")
    block = LiveBlock("samples", 0, 1, {"prompt": ref, "text": Ref(kind="inline", size=1, data=b"x")}, Labels(), [])
    assert ask_nodes(attempt, 1, request, [block]) == ["there"]
    (wanted,) = attempt.path.glob("snapshots/00000001/wanted-*")
    assert b"secret" not in wanted.read_bytes()
    asked, blocks = read_wanted(wanted, tmp_path / "shm")
    assert (asked.node, asked.folder) == ("there", str(tmp_path / "shm"))
    assert [dict(one.refs) for one in blocks] == [{"prompt": ref}]
    with pytest.raises(SnapshotError, match="nothing came from there"):
        await_nodes(attempt, 1, ["there"], seconds=0.2)


def test_one_that_fails_harms_nobody(new_run: Callable[..., Run]):
    run = new_run(snapshot_s=0.3)
    with run.attempt() as one:
        (run.directory.latest().path / "snapshots").write_text("in the way")
        one.put(range(30), scored=30)
        assert [prompt for prompt, _ in train(one.plane("train"), 30, version=1)] == list(range(30))
        one.put(range(30, 33))
    assert snapshots(run) == []


def test_nothing_is_made_of_nothing(new_run: Callable[..., Run]):
    run = new_run(snapshot_s=0.2)
    with run.attempt() as one:
        assert one.plane("train").read("samples", ALL, max_rows=SAMPLES, wait_s=1.0) is None
    assert not (run.directory.latest().path / "snapshots").exists()
    run.recipe = make_recipe(snapshot_s=0)
    with run.attempt() as two:
        two.put(range(3))
    assert snapshots(run) == []
