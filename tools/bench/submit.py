"""What ``hpcrl submit`` costs: before the queue, from the job's start until all roles are ready, and while the run goes on.

usage: python tools/bench/submit.py [queue] [ready] [slices] [--rounds 5] [--recipe recipes/quickstart.py] [--cluster DIR]
                                    [--nodes 3] [--each 2] [--slices 8,64,512] [--seconds 30]

``queue``   what submitting adds to plain ``sbatch`` of the same script; the target is at most 1 s.
``ready``   from the first line of the batch script until every role runs with its queue connected, against plain ``srun`` of as
            many processes with the same imports; the target is at most 2 s more. Once with roles that import nothing, once with
            roles that import what a trainer and a rollout do.
``slices``  CPU and memory of the supervisor alone with many slices, whose steps only pretend to run; the target is less than
            2 % of a core in steady state.

All three if none is named. The first two run on a one-machine Slurm cluster of their own, or on the one in DIR.
What is compared is run in turn, ``rounds`` times; figures are medians, one a line, with the ratio to their baseline.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import submit_queue
import submit_ready
import submit_slices

from hpcrl.testing.slurm.cluster import Cluster

WHAT = ("queue", "ready", "slices")


@contextlib.contextmanager
def cluster_in(folder: Path | None) -> Iterator[Cluster]:
    """The cluster of a folder, or one of its own."""
    if folder is not None:
        yield Cluster.open(folder)
        return
    with tempfile.TemporaryDirectory(prefix="hpcrl-", dir="/tmp") as own, Cluster(Path(own) / "c") as cluster:
        yield cluster


def figures(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    """All lines to print, each when it is known."""
    what = given.what or WHAT
    if "queue" in what or "ready" in what:
        with cluster_in(given.cluster) as cluster:
            if "queue" in what:
                yield from submit_queue.figures(cluster, folder, given.recipe, given.rounds)
            if "ready" in what:
                yield from submit_ready.figures(cluster, folder, given.rounds, given.nodes, given.each)
    if "slices" in what:
        yield from submit_slices.figures(folder, [int(number) for number in given.slices.split(",")], given.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(WHAT)}; all if left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parents[2] / "recipes" / "quickstart.py")
    parser.add_argument("--cluster", type=Path)
    parser.add_argument("--nodes", type=int, default=3, help="of a run that is made ready")
    parser.add_argument("--each", type=int, default=2, help="processes of each of its two roles")
    parser.add_argument("--slices", default="8,64,512")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which each steady state is looked at")
    given = parser.parse_args()
    unknown = set(given.what) - set(WHAT)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(WHAT)}")
    with tempfile.TemporaryDirectory(prefix="hpcrl-", dir="/tmp") as folder:
        print(f"load before            {os.getloadavg()[0]:6.2f} of {os.cpu_count()} cores", flush=True)
        for line in figures(given, Path(folder)):
            print(line, flush=True)
        print(f"load after             {os.getloadavg()[0]:6.2f} of {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
