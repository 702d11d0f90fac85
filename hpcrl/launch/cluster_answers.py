"""What a cluster says of a job before it is queued, asked while other things are checked."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hpcrl.config.nearest import nearest
from hpcrl.launch.cluster_check import cluster_problems
from hpcrl.launch.layout import Asked, Layout
from hpcrl.launch.reasons import why_refused
from hpcrl.launch.site import Site
from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmMissing, SlurmRefused
from hpcrl.launch.slurm_text import Job, NodeKind, Partition


class ClusterAnswers:
    """Questions to Slurm under way.

    Args:
        after: job that is to end first, if any.

    Attributes:
        silent: why Slurm did not answer; empty if it did.
        said: what Slurm says of the job, such as when it would start.
    """

    def __init__(self, slurm: Slurm, pool: ThreadPoolExecutor, after: int | None) -> None:
        self._slurm, self._pool, self._after_job = slurm, pool, after
        self._partitions: Future[dict[str, Partition]] = pool.submit(slurm.partitions)
        self._nodes: Future[list[NodeKind]] = pool.submit(slurm.nodes)
        self._after: Future[list[Job]] | None = pool.submit(self._known, after) if after is not None else None
        self._tests: list[Future[str]] = []
        self.silent, self.said = "", ""

    def test(self, scripts: Sequence[str]) -> None:
        """Have the scripts judged; of the last, what Slurm says is kept."""
        self._tests = [self._pool.submit(self._slurm.test, script) for script in scripts]

    def problems(self, asked: Asked, site: Site | None, layout: Layout | None) -> list[str]:
        """What speaks against the job on this cluster."""
        partitions: dict[str, Partition] = self._answer(self._partitions) or {}
        nodes: list[NodeKind] = self._answer(self._nodes) or []
        problems: list[str] = []
        if partitions and layout is not None and site is not None:
            problems += cluster_problems(layout, site, partitions, nodes)
        elif partitions:
            named = {asked.partition, *asked.partitions.values()}
            problems += [
                f"there is no partition {name!r} on this cluster; {nearest(name, partitions)}"
                for name in sorted({part for text in named for part in text.split(",") if part} - partitions.keys())
            ]
        if self._after is not None and self._answer(self._after) == []:
            problems.append(f"--after {self._after_job}: Slurm knows no such job")
        for test in self._tests:
            try:
                self.said = self._answer(test) or ""
            except SlurmRefused as error:
                # Slurm says less clearly what was found already.
                problems += [] if problems else [why_refused(error.said)]
        return problems

    def _answer(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except (SlurmMissing, SlurmDown) as error:
            self.silent = self.silent or str(error)
            return None
        except SlurmRefused:
            if future in self._tests:
                raise
            return None

    def _known(self, job: int) -> list[Job]:
        queued = self._slurm.queue(jobs=[job])
        if queued:
            return queued
        try:
            return self._slurm.history([job])
        except (SlurmMissing, SlurmDown, SlurmRefused):
            return []
