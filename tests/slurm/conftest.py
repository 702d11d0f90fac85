"""A real Slurm cluster for the tests of this folder, and runs on it."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import hpcrl
from hpcrl.checkpoint.state.manifest import newest
from hpcrl.config.codec import recipe_to_json
from hpcrl.config.load import MODULE, sources
from hpcrl.config.override import build_recipe
from hpcrl.launch.job_files import JobFiles
from hpcrl.launch.jobs import record_job, recorded_jobs, script_of
from hpcrl.launch.joined import queue_joined
from hpcrl.launch.layout import Layout
from hpcrl.launch.render import JobFacts
from hpcrl.launch.site import PACKAGED, load_site
from hpcrl.launch.slurm import Slurm
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import DeadlineExceeded
from hpcrl.run.stop import wait_for
from hpcrl.testing.slurm.cluster import Cluster
from hpcrl.testing.slurm.programs import missing_packages
from hpcrl.tracking.journal import JournalReader

TESTS = Path(__file__).parents[1]
RECIPES = {
    "toy": TESTS / "launch" / "toy_recipe.py",
    "tiny": TESTS / "e2e" / "tiny_recipe.py",
    "phased": TESTS / "e2e" / "phased_recipe.py",
}


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Skips where Slurm is missing and cannot be installed."""
    missing = missing_packages(accounting=False)
    if missing and os.geteuid() != 0:
        pytest.skip(f"needs Debian's packages {', '.join(missing)}")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """An empty folder whose path is short enough for Slurm's sockets, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="hpcrl-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def slurm_cluster(slurm_installed: None) -> Iterator[Cluster]:
    """One cluster of six nodes with four GPUs each for all tests that ask for it; a test leaves no job behind."""
    with tempfile.TemporaryDirectory(prefix="hpcrl-", dir="/tmp") as folder, Cluster(Path(folder) / "c") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def plain_cluster(slurm_installed: None) -> Iterator[Cluster]:
    """Two nodes, preemption as Slurm does it by default: steps get SIGTERM and the batch script nothing."""
    with (
        tempfile.TemporaryDirectory(prefix="hpcrl-", dir="/tmp") as folder,
        Cluster(Path(folder) / "c", nodes=2, gpus=0, user_signal=False) as cluster,
    ):
        yield cluster


@dataclass(frozen=True)
class JobRun:
    """A run on the test cluster."""

    cluster: Cluster
    run: RunDirectory
    job: str

    @property
    def path(self) -> Path:
        return self.run.path

    @property
    def log(self) -> str:
        """What its jobs printed."""
        return "".join(path.read_text() for path in sorted(self.path.glob("slurm/*.log")))

    def wait(self, *states: str, seconds: float = 150) -> None:
        """Until the job is in one of these states."""
        try:
            self.cluster.wait_job(self.job, set(states), seconds=seconds)
        except DeadlineExceeded as late:
            pytest.fail(f"{late}\n{self.log}")

    def wait_for(self, what: str, poll: Callable[[], Any], seconds: float = 120) -> Any:
        """Until something is there; fails with the job's log if the job ends first, or too late."""

        def poll_job() -> Any:
            found = poll()
            return None if found in (None, False) else found

        try:
            return wait_for(what, poll_job, seconds=seconds)
        except DeadlineExceeded as late:
            pytest.fail(f"{late}\n{self.log}")

    def wait_for_line(self, text: str, attempt: int, process: str, seconds: float = 120) -> None:
        """Until a text stands in a process's journal of an attempt."""
        path = self.path / f"attempt_{attempt}" / "journal" / f"{process}.jsonl"
        self.wait_for(f"{text!r} in {path}", lambda: path.exists() and text in path.read_text(), seconds)

    def records(self, kind: str, attempt: int | None = None) -> list[dict[str, Any]]:
        """Journal records in order, of one attempt or all."""
        attempts = [item for item in self.run.attempts() if attempt in (None, item.number)]
        found = [r for item in attempts for _, r in JournalReader(item.journal).read() if r["kind"] == kind]
        return sorted(found, key=lambda record: record["t"])

    def written(self, attempt: int, process: str) -> list[dict[str, Any]]:
        """What one process has written into its journal of an attempt."""
        found = JournalReader(self.path / f"attempt_{attempt}" / "journal").read()
        return [record for writer, record in found if writer == process]

    def verdicts(self) -> list[str]:
        return [record["what"] for record in self.records("verdict")]

    def went_on(self) -> None:
        """It came to its end, and before that went back into the queue, once each time.

        Slurm may end the supervisor, or the command by which it asked, before the answer is there.
        """
        *before, last = self.verdicts()
        assert last == "done", self.log
        assert set(before) <= {"requeue", "leave"}, self.log
        assert [item.why for item in recorded_jobs(self.run)] == ["submit"]
        restarts = [json.loads((item.path / "slurm.json").read_text())["restarts"] for item in self.run.attempts()]
        assert restarts == sorted(set(restarts)), "each attempt is a life of the job"

    def processes(self) -> list[psutil.Process]:
        """Those that name its directory."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.path) in " ".join(process.info["cmdline"] or []) and process.pid != os.getpid()
        ]

    def shared_memory(self) -> list[Path]:
        """Its files in the shared memory of this machine."""
        return [path for path in Path("/dev/shm").glob(f"*{self.run.run_id}*/**/*") if path.is_file()]

    def trained_exactly(self, steps: int, prompts_per_step: int = 4, *, undone: bool = False) -> None:
        """Every step was made once, in order, as one version, and every prompt was trained once.

        Args:
            undone: attempts ended without a save, so what they trained since the last one was trained again.
        """
        made = self.records("step")
        if undone:
            made = sorted({record["step"]: record for record in made}.values(), key=lambda record: record["step"])
        assert [record["step"] for record in made] == list(range(1, steps + 1)), "no step twice, none left out"
        assert [record["version"] for record in made] == list(range(1, steps + 1))
        assert sorted(n for record in made for n in record["prompts"]) == list(range(steps * prompts_per_step))
        saved = newest(self.path / "state")
        assert saved is not None
        assert saved.cursor == {"step": steps, "prompts": steps * prompts_per_step, "beyond": []}
        with sqlite3.connect(self.path / "mlflow.db") as database:
            assert database.execute("select status from runs").fetchall() == [("FINISHED",)], "one MLflow run"
            (logged,) = database.execute("select count(distinct step) from metrics where key like '%reward'").fetchone()
        assert logged == steps

    def nothing_is_left(self) -> None:
        """No process of the run lives, none of its ports is taken, none of its shared memory is there."""
        self.wait_for("its processes to end", lambda: not self.processes(), seconds=20)
        self.wait_for("its shared memory to go", lambda: not self.shared_memory(), seconds=20)
        for plan in self.path.glob("attempt_*/plan.json"):
            first, end = json.loads(plan.read_text())["ports"]
            taken = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
            assert not taken & set(range(first, end))


class JobRuns:
    """Makes runs as ``hpcrl submit`` leaves them, and submits them."""

    def __init__(self, cluster: Cluster, folder: Path, sets: dict[str, tuple[str, ...]]) -> None:
        self.cluster, self._folder, self._sets = cluster, folder, sets
        self.made: list[JobRun] = []

    def submit(self, recipe: str, layout: Layout, *sets: str, requeue: bool = True, before: Any = None) -> JobRun:
        """Submit ``toy`` or ``tiny``.

        Args:
            layout: the groups of its components are those of the recipe.
            before: called with the run directory before the job is submitted.
        """
        built = build_recipe(RECIPES[recipe], (*self._sets[recipe], *sets))
        path = self._folder / f"run{len(self.made)}"
        run = RunDirectory.create(
            path, name=built.name, recipe_json=recipe_to_json(built), sources=sources(sys.modules[MODULE])
        )
        site = load_site(PACKAGED / "local-cluster.toml")
        facts = JobFacts(
            run=path,
            run_id=run.run_id,
            name=built.name,
            code=(Path(hpcrl.__file__).parents[1],),
            python=Path(sys.prefix),
            signal_s=30,
            requeue=requeue,
        )
        JobFiles(layout, site, facts).write(path)
        if before is not None:
            before(run)
        slurm = Slurm({**os.environ, **self.cluster.env})
        job = slurm.submit(script_of(run))
        record_job(run, job, "submit")
        for component in layout.joined:
            queue_joined(slurm, run, component, facts, "submit", leader=job)
        self.made.append(JobRun(self.cluster, run, str(job)))
        return self.made[-1]


@pytest.fixture
def runs(slurm_cluster: Cluster, tiny_model: Path, tmp_path: Path) -> Iterator[JobRuns]:
    """Runs on the cluster; their jobs are ended after the test."""
    yield from runs_on(slurm_cluster, tiny_model, tmp_path)


@pytest.fixture
def plain_runs(plain_cluster: Cluster, tiny_model: Path, tmp_path: Path) -> Iterator[JobRuns]:
    """Runs on the cluster that preempts as Slurm does by default."""
    yield from runs_on(plain_cluster, tiny_model, tmp_path)


def runs_on(cluster: Cluster, model: Path, folder: Path) -> Iterator[JobRuns]:
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"say {n}", "answer": str(n)}) + "\n" for n in range(10)))
    sets = (f"model={model}", f"data={data}")
    # What stays in a phase has time to make spares, which import on the cores that the next attempt needs.
    yield JobRuns(cluster, folder, {"toy": (), "tiny": sets, "phased": (*sets, "limits.spares=false")})
    jobs = cluster.run("squeue", "--noheader", "--format=%A").split()
    if jobs:
        cluster.run("scancel", *jobs)
    wait_for("the test's jobs to end", lambda: not cluster.run("squeue", "--noheader") or None, seconds=40)
