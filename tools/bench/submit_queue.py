"""What ``hpcrl submit`` adds to plain ``sbatch`` of the same script, and where that time goes.

Run by itself, as ``python tools/bench/submit_queue.py RECIPE FOLDER``, it submits a recipe once with every step timed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from hpcrl.launch import submit as parts
from hpcrl.launch.layout import Asked
from hpcrl.launch.slurm import Slurm
from hpcrl.testing.slurm.cluster import Cluster

TARGET_S = 1.0
SITE = "local-cluster"
# Steps of a submission that run in the caller's own thread, in their order.
PREPARE = (
    "find_site",
    "build_recipe",
    "make_layout",
    "render_all",
    "make_plan",
    "role_problems",
    "place_problems",
    "code_of",
)
SUBMIT = ("with_own_files", "write_code", "queue_once")
IMPORTS = "import hpcrl.cli.submit, hpcrl.launch.submit"


def seconds(command: list[str], env: dict[str, str]) -> float:
    """Wall-clock time of a process."""
    began = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def split(recipe: Path, folder: Path, env: dict[str, str]) -> dict[str, float]:
    """Seconds of each step of one submission in a fresh process, by name."""
    command = [sys.executable, __file__, str(recipe), str(folder)]
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return {name: float(value) for name, value in (line.split() for line in out.splitlines())}


def print_split(recipe: Path, folder: Path) -> None:
    """Submit with every step timed, and print a line for each."""
    spent: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

        return call

    for name in (*PREPARE, *SUBMIT):
        setattr(parts, name, timed(name, getattr(parts, name)))
    slurm = Slurm()
    order = parts.Order(recipe=recipe, asked=Asked(time="10"), site=SITE, run_dir=folder, hold=True)
    began = time.perf_counter()
    prepared = parts.prepare(order, slurm)
    spent["all_checks"] = time.perf_counter() - began
    parts.submit(prepared, slurm)
    spent["all"] = time.perf_counter() - began
    for name, value in spent.items():
        print(name, f"{value:.4f}")


def figures(cluster: Cluster, folder: Path, recipe: Path, count: int) -> Iterator[str]:
    """Submit in turn by ``hpcrl submit --hold`` and its script by ``sbatch --hold``; the lines to print."""
    env = {**os.environ, **cluster.env}
    ours, plain, rounds = [], [], []
    try:
        for number in range(count):
            run = folder / f"run{number}"
            hpcrl = [sys.executable, "-m", "hpcrl.cli.main", "submit", str(recipe), "--site", SITE, "--time", "10"]
            ours.append(seconds([*hpcrl, "--hold", "--run-dir", str(run)], env))
            plain.append(seconds(["sbatch", "--hold", "--comment=bench", str(run / "slurm" / "batch.sh")], env))
            rounds.append(split(recipe, folder / f"split{number}", env))
        imports = median(seconds([sys.executable, "-c", IMPORTS], env) for _ in range(count))
    finally:
        rows = cluster.run("squeue", "--noheader", "--format=%A|%Z|%o").splitlines()
        own = [row.partition("|")[0] for row in rows if str(folder) in row]
        if own:
            cluster.run("scancel", *own)
    yield from lines(ours, plain, imports, rounds)


def lines(ours: list[float], plain: list[float], imports: float, rounds: list[dict[str, float]]) -> Iterator[str]:
    """A figure each."""
    base, mine = median(plain), median(ours)
    yield f"sbatch                 {base:6.3f} s  ratio 1.00"
    verdict = "met" if mine - base <= TARGET_S else "missed"
    adds = f"adds {mine - base:.3f} s (target {TARGET_S:g} s: {verdict})"
    yield f"hpcrl submit           {mine:6.3f} s  ratio {mine / base:.1f}  {adds}"
    # Of the submissions that were timed by steps, so that both figures are of the same ones.
    without = imports + median(item["all"] - item["role_problems"] for item in rounds) - base
    verdict = "met" if without <= TARGET_S else "missed"
    yield f"  without role checks  {base + without:6.3f} s  adds {without:.3f} s (target {TARGET_S:g} s: {verdict})"
    yield f"  start and imports    {imports:6.3f} s"
    for name in (*PREPARE, *SUBMIT):
        yield f"  {name:<19}  {median(item.get(name, 0.0) for item in rounds):6.3f} s"
    waited = median(item["all_checks"] - sum(item.get(name, 0.0) for name in PREPARE) for item in rounds)
    yield f"  waiting for Slurm    {waited:6.3f} s"


if __name__ == "__main__":
    print_split(Path(sys.argv[1]), Path(sys.argv[2]))
