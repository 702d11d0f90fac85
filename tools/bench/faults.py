"""Processes of a run are killed at random: is a row lost or trained twice, and how soon is each back in service?

    python tools/bench/faults.py stream     [--kills 20] [--seed 0]
    python tools/bench/faults.py quickstart [--kills 20] [--seed 0] [--set NAME=VALUE …]

``stream``: two makers, two scorers and two trainers at full rate, one stream through two storage units and one through the
node's shared memory. Killed with SIGKILL, in random order, and back in service:

desk       when each maker has put rows, in a put that it began after the kill;
unit       when its maker has put rows into it, likewise;
producer, grader, trainer: when the new process has put, scored or trained rows.

``quickstart``: ``hpcrl run recipes/quickstart.py`` with a save every other step. Killed, and back in service:

desk       when a question that was asked after its end is answered;
rollout    when it waits for its gate or asks an engine;
reward     when it has graded samples, counted from when they were there, if that was later than the kill;
inference  when the newest weights are loaded and it is announced where they are served;
trainer    in another attempt, with all others: when its weights are loaded and published and it asks for rows;
and beside that, when the next step was trained.

The kernel, not a poll, tells an ignitor of a death, so the time is that of a new process: to start Python, import, load.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpcrl.cli.evidence import Evidence
from hpcrl.testing.command_run import CommandRun
from hpcrl.testing.faults import Kill, table, victims
from hpcrl.testing.stream_run import StreamRun

TARGET_S = 5.0
RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.py"
QUICKSTART = ("queue.0", "rollout.0", "reward.0", "inference.0", "trainer.0")


def stream(folder: Path, kills: int, draw: random.Random, *, spares: bool) -> bool:
    found: list[Kill] = []
    with StreamRun(folder / "run", spares=spares) as run:
        run.await_spares()
        for name in victims(run.names, kills, draw):
            time.sleep(draw.uniform(0.1, 1.5))
            found.append(run.kill(name))
            say(found[-1])
        outcome = run.finish()
    print(f"{outcome.rows} rows acknowledged, {outcome.rate:.0f} rows/s trained meanwhile")
    return report(found, outcome.evidence, "rows", outcome.lost, outcome.twice)


def quickstart(folder: Path, kills: int, draw: random.Random, more: list[str], *, spares: bool) -> bool:
    found: list[Kill] = []
    run = folder / "run"
    sets = (
        "steps=10000",
        "groups.trainer.role.save_every=2",
        "limits.restarts=100",
        f"limits.spares={str(spares).lower()}",
        *more,
    )
    options = [option for value in sets for option in ("--set", value)]
    command = [sys.executable, "-m", "hpcrl.cli.main", "run", str(RECIPE), "--run-dir", str(run), *options]
    with open(folder / "output", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        try:
            held = CommandRun(process, run)
            held.await_step(3, 600)
            if spares:
                held.await_spares(600)
            for name in victims(QUICKSTART, kills, draw):
                time.sleep(draw.uniform(0.0, 6.0))
                found.append(held.kill(name))
                say(found[-1])
            outcome = held.finish()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
                print((folder / "output").read_text()[-4000:])
    print(f"{outcome.steps} steps trained")
    return report(found, outcome.evidence, "prompts", outcome.lost, outcome.twice)


def say(kill: Kill) -> None:
    stalled = f", the next step after {kill.stalled_s:.1f} s" if kill.stalled_s else ""
    cpu = f", {kill.cpu_s:.1f} s of CPU"
    print(f"  {kill.name:14} back after {kill.away_s:5.2f} s{cpu}{stalled}; load {os.getloadavg()[0]:.1f}", flush=True)


def report(kills: list[Kill], evidence: Evidence, what: str, lost: int, twice: int) -> bool:
    found = evidence.report
    for line in table(kills):
        print(line)
    verdict = "clean" if found.clean else str([*map(str, found.violations), *found.missing])
    slow = {kind: max(kill.away_s for kill in kills if kill.kind == kind) for kind in sorted({kill.kind for kill in kills})}
    targets = {
        f"acknowledged {what} lost: {lost} (0)": lost == 0,
        f"{what} trained twice: {twice} (0)": twice == 0,
        f"hpcrl verify: {found.rows} rows, {verdict}": found.clean,
        **{
            f"{kind}: back in service after {away:.2f} s at most ({TARGET_S:g})": away < TARGET_S for kind, away in slow.items()
        },
    }
    for text, met in targets.items():
        print(f"{'met   ' if met else 'missed'}  {text}")
    return all(targets.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stream", "quickstart"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the quickstart's recipe")
    parser.add_argument("--no-spares", dest="spares", action="store_false", help="as if each had to import everything anew")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "stream":
            well = stream(Path(folder), options.kills, draw, spares=options.spares)
        else:
            well = quickstart(Path(folder), options.kills, draw, options.set, spares=options.spares)
    print(f"load {os.getloadavg()[0]:.1f}")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
