"""GRPO of a small model by SGLang on one or two GPUs, placement by placement and window by window, on the same seeds and data.

usage: python tools/gpu/modes.py [--modes colocated-1,colocated-2,apart-1,apart-2,apart-none] [--steps 100] [--seconds 3600]
                                 [--set NAME=VALUE …] [--sglang-path FOLDER] [--out FOLDER]

A mode is a placement and a pacing window of recipes/grpo_gym.py. Prints figures of each: seconds of a step and where
they went, tokens a second, reward, lengths, version lag, the gap between training's and generation's log-probabilities, and the
idle share of each GPU (what NVML says of it ten times a second, after the first steps). Leaves FOLDER/modes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from hpcrl.tracking.journal import JournalReader  # noqa: E402 - the checkout must be found first

MODES = ("colocated-1", "colocated-2", "apart-1", "apart-2", "apart-none")
# Steps that compile kernels and fill pipelines.
WARM = 5
RUN_S = 3600.0
# For a run that was asked to stop, which gives itself 120 s to save.
STOP_S = 150.0


@dataclass
class Load:
    """What NVML says of each GPU, with the time [s].

    Attributes:
        busy: by GPU, (Unix time, share of the last interval in which a kernel ran).
    """

    busy: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def idle(self, gpu: int, first: float, last: float) -> float:
        """The idle share of a GPU between two times; nan if nothing was seen."""
        seen = [share for at, share in self.busy.get(gpu, ()) if first <= at <= last]
        return 1 - fmean(seen) if seen else float("nan")


class Watch:
    """Samples the load of all GPUs in a thread until closed."""

    def __init__(self) -> None:
        self.load, self._end = Load(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - figures of load are left out without NVML
            print(f"no figures of GPU load: {error}", flush=True)
            return
        handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(pynvml.nvmlDeviceGetCount())]
        while not self._end.wait(0.1):
            for gpu, handle in enumerate(handles):
                share = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                self.load.busy.setdefault(gpu, []).append((time.time(), share))


def environment() -> dict[str, str]:
    """This process's own, with the checkout to import from and nothing that reaches outside."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def run(mode: str, folder: Path, sets: Sequence[str], seconds: float = RUN_S) -> tuple[list[dict[str, Any]], Load, float]:
    """One run, stopped after so many seconds; returns its journal, the GPUs' load and its seconds.

    Raises:
        RuntimeError: it failed; the ends of its logs are printed.
    """
    placement, _, window = mode.partition("-")
    gpus = 1 if placement == "colocated" else 2
    given = [f"placement={placement}", f"window={window.replace('none', 'null')}", f"gpus={gpus}", *sets]
    # What is asked for later wins.
    given = list({item.partition("=")[0]: item for item in given}.values())
    command = [sys.executable, "-m", "hpcrl.cli.main", "run", str(ROOT / "recipes" / "grpo_gym.py"), "--run-dir", str(folder)]
    command += [part for item in given for part in ("--set", item)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    output = folder.with_name(f"{folder.name}.log")
    started, stopped = time.time(), False
    with Watch() as watch, open(output, "wb") as said:
        process = subprocess.Popen(command, env=environment(), stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            stopped = True
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    took = time.time() - started
    print(output.read_text(errors="replace")[-1500:], flush=True)
    if process.returncode and not stopped:
        for log in sorted((folder / "latest" / "logs").glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}", flush=True)
        raise RuntimeError(f"{mode}: exit code {process.returncode}")
    return [record for _, record in JournalReader(folder / "latest" / "journal").read()], watch.load, took


def figures(mode: str, records: Sequence[Mapping[str, Any]], load: Load, seconds: float) -> dict[str, Any]:
    """What the table shows of one run."""
    steps = [record for record in records if record["kind"] == "step"]
    timed = steps[WARM:] or steps
    first, last = timed[0]["t"], timed[-1]["t"]
    rewards = [step["reward"] for step in steps]
    tokens = sum(step["tokens"] for step in timed[1:])
    found: dict[str, Any] = {
        "mode": mode,
        "steps": len(steps),
        "run_s": seconds,
        "steps_s": last - first,
        "step_s": (last - first) / max(1, len(timed) - 1),
        "tokens_per_s": tokens / max(1e-9, last - first),
        "reward_first": fmean(rewards[:10]),
        "reward_last": fmean(rewards[-10:]),
        "response_tokens": fmean(step["response_tokens"] for step in timed),
        "gap_mean": fmean(step["logprob_gap_mean"] for step in timed),
        "gap_max": max(step["logprob_gap_max"] for step in timed),
        "idle": [load.idle(gpu, first, last) for gpu in sorted(load.busy)],
        "lag_mean": fmean(step["version_lag_mean"] for step in timed),
        "lag_max": max(step["version_lag_max"] for step in timed),
        "reward_curve": [[round(step["t"] - steps[0]["t"], 2), step["reward"]] for step in steps],
    }
    lags: dict[str, int] = {}
    for step in timed:
        for lag, count in step.get("version_lags", {}).items():
            lags[lag] = lags.get(lag, 0) + count
    found["lags"] = lags
    for name in ("wait_s", "train_s", "publish_s"):
        found[name] = median(step[name] for step in timed)
    served = [record["load_s"] for record in records if record["kind"] == "served" and record["t"] >= first]
    found["load_s"] = median(served) if served else float("nan")
    found["handovers"] = [record for record in records if record["kind"] == "handover" and record["t"] >= first]
    return found


def handovers(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each group that the GPUs were handed over by."""
    for giver in sorted({str(record["giver"]) for record in records}):
        theirs = [record for record in records if record["giver"] == giver]
        seconds = [record["seconds"] for record in theirs]
        freed = median(record["freed_bytes"] or 0 for record in theirs) / 2**30
        left = max(record["left_bytes"] or 0 for record in theirs) / 2**30
        yield (
            f"   {len(theirs)} times handed on by {giver}: median {median(seconds):.3f} s, most {max(seconds):.3f}; "
            f"released {freed:.1f} GiB, at most {left:.1f} left"
        )


def show(found: Mapping[str, Any]) -> None:
    """One run's lines of the table."""
    print(f"== {found['mode']}: {found['steps']} steps in {found['run_s']:.0f} s with start and end", flush=True)
    parts = ", ".join(f"{name[:-2]} {found[name]:.3f}" for name in ("wait_s", "train_s", "publish_s", "load_s"))
    print(f"   step {found['step_s']:.3f} s ({parts}); {found['tokens_per_s']:.0f} response tokens/s")
    reward = f"{found['reward_first']:.3f} -> {found['reward_last']:.3f}"
    print(f"   reward {reward}; mean response {found['response_tokens']:.0f} tokens")
    print(f"   |train - rollout log-prob| mean {found['gap_mean']:.4f}, max {found['gap_max']:.2f}")
    print(f"   version lag mean {found['lag_mean']:.2f}, max {found['lag_max']}; tokens by lag {found['lags']}")
    print(f"   idle share by GPU {[round(share, 2) for share in found['idle']]}")
    for line in handovers(found["handovers"]):
        print(line)
    curve = found["reward_curve"]
    every = max(1, len(curve) // 12)
    print("   seconds:reward", " ".join(f"{at:.0f}:{reward:.3f}" for at, reward in [*curve[::every], curve[-1]]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=RUN_S, help="a run is stopped then, and counts as far as it came")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--sglang-path", default="", help="folder with SGLang's packages, where the interpreter lacks them")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-modes"))
    given = parser.parse_args()
    if unknown := set(given.modes.split(",")) - set(MODES):
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(MODES)}")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    sets = [f"steps={given.steps}", *given.set]
    if given.sglang_path:
        sets.append(f"inference.sglang.python_path={given.sglang_path}")
    found, failed = [], []
    for mode in given.modes.split(","):
        folder = out / "runs" / f"{mode}-{time.strftime('%H%M%S')}"
        try:
            found.append(figures(mode, *run(mode, folder, sets, given.seconds)))
        except (RuntimeError, OSError, LookupError, ValueError) as error:
            failed.append(mode)
            print(f"== {mode} FAILED: {type(error).__name__}: {str(error)[:500]}", flush=True)
            continue
        (out / "modes.json").write_text(json.dumps(found, indent=1))
    for one in found:
        show(one)
    by_mode = {one["mode"]: one for one in found}
    if (base := by_mode.get("apart-1")) is not None:
        for mode in ("apart-2", "apart-none"):
            if mode in by_mode:
                print(f"{mode}: {by_mode[mode]['tokens_per_s'] / base['tokens_per_s']:.2f} times the tokens/s of lock-step")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
