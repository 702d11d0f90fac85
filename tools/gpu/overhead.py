"""What the framework costs on a GPU: generation inside a run against bare SGLang, training against a bare torchtitan loop.

usage: python tools/gpu/overhead.py [--steps 8] [--set NAME=VALUE …] [--sglang-path FOLDER] [--out FOLDER]

Runs recipes/grpo_gym.py at a learning rate that leaves the policy as it is, keeping all its samples. Then a server of SGLang
with the same settings answers the same prompts, a batch a request, and tools/gpu/plain_titan.py trains on the same samples.
Prints a line for each figure with its ratio; medians over the steps after the first two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np  # noqa: E402
from modes import environment, run  # noqa: E402

from hpcrl.config.codec import recipe_from_run  # noqa: E402 - the checkout must be found first
from hpcrl.data.models import resolve_model  # noqa: E402
from hpcrl.dataplane.trajectories.read import Trajectories  # noqa: E402
from hpcrl.dataplane.trajectories.select import Wanted  # noqa: E402
from hpcrl.run.directory import RunDirectory  # noqa: E402

SKIPPED = 2
NAMES = ("step", "advantage", "prompt_ids", "response_ids", "rollout_logprobs", "prompt_number")
START_S, CALL_S = 300.0, 300.0


def kept(folder: Path, file: Path) -> dict[int, list[Any]]:
    """Write a run's samples for the bare loop; returns the prompts of each step, one an asked sample."""
    prompts: dict[int, list[Any]] = {}
    with Trajectories(RunDirectory.open(folder), print) as held:
        records = list(held.read(held.find(Wanted()), NAMES))
    for record in records:
        prompts.setdefault(int(record["step"]), []).append(np.asarray(record["prompt_ids"]).tolist())

    def flat(name: str) -> np.ndarray:
        return np.concatenate([np.asarray(record[name]) for record in records])

    np.savez(
        file,
        step=np.array([record["step"] for record in records]),
        advantage=np.array([record["advantage"] for record in records], np.float32),
        prompt_length=np.array([len(record["prompt_ids"]) for record in records]),
        response_length=np.array([len(record["response_ids"]) for record in records]),
        prompt_ids=flat("prompt_ids"),
        response_ids=flat("response_ids"),
        logprobs=flat("rollout_logprobs"),
    )
    return prompts


async def answered(url: str, prompts: Sequence[list[int]], new: int) -> tuple[int, float]:
    """Tokens and seconds of one request for all prompts."""
    import aiohttp

    body = {
        "input_ids": list(prompts),
        "sampling_params": {"temperature": 1.0, "max_new_tokens": new},
        "return_logprob": True,
        "logprob_start_len": -1,
    }
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(CALL_S), read_bufsize=1 << 24) as session:
        started = time.perf_counter()
        async with session.post(f"{url}/generate", json=body) as response:
            answers = await response.json()
        return sum(len(answer["output_ids"]) for answer in answers), time.perf_counter() - started


def bare_sglang(command: Sequence[str], url: str, path: str, batches: Sequence[list[Any]], new: int, log: Path) -> list[float]:
    """Tokens a second of each batch."""
    import urllib.request

    env = environment({"PYTHONPATH": path} if path else None)
    with open(log, "wb") as output:
        server = subprocess.Popen([*command], env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except OSError as error:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise RuntimeError(f"SGLang did not start: {error}; see {log}") from error
                time.sleep(0.5)
        rates = []
        for prompts in batches:
            tokens, seconds = asyncio.run(answered(url, prompts, new))
            rates.append(tokens / seconds)
        return rates
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--sglang-path", default="")
    parser.add_argument("--port", type=int, default=31_555)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-overhead"))
    given = parser.parse_args()
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    sets = [f"steps={given.steps}", "lr=1e-12", "trainer.trajectories=-1", *given.set]
    if given.sglang_path:
        sets.append(f"inference.sglang.python_path={given.sglang_path}")
    folder = out / f"run-{time.strftime('%H%M%S')}"
    records, _, _ = run("colocated-1", folder, sets)
    sampled = [record for record in records if record["kind"] == "sampled"]
    steps = [record for record in records if record["kind"] == "step"]
    inside = median(record["tokens"] / record["seconds"] for record in sampled[SKIPPED:])
    prompts = kept(folder, out / "samples.npz")
    recipe = recipe_from_run(RunDirectory.open(folder))
    roles: dict[str, Any] = {name: group.role for name, group in recipe.groups.items()}
    model = resolve_model(roles["inference"].model)
    url = f"http://127.0.0.1:{given.port}"
    command = [sys.executable, "-m", "sglang.launch_server", *bare_arguments(recipe, model, given.port)]
    new = roles["rollout"].sampling.max_new_tokens
    rates = bare_sglang(command, url, given.sglang_path, list(prompts.values()), new, out / "sglang.log")
    bare = median(rates[SKIPPED:])
    print(f"generation  in the run {inside:8.0f} tokens/s   bare SGLang {bare:8.0f}   ratio {inside / bare:.2f}", flush=True)
    budget = roles["trainer"].tokens_per_microbatch
    command = [sys.executable, str(Path(__file__).parent / "plain_titan.py"), str(model), str(out / "samples.npz")]
    done = subprocess.run([*command, "--budget", str(budget)], env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-3000:])
        return 1
    plain = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ours = median(step["tokens_per_s"] for step in steps[SKIPPED:])
    theirs = median(step["tokens_per_s"] for step in plain[SKIPPED:])
    print(f"training    in the run {ours:8.0f} tokens/s   bare torchtitan {theirs:8.0f}   ratio {ours / theirs:.2f}")
    return 0


def bare_arguments(recipe: Any, model: Path, port: int) -> list[str]:
    """The arguments of the run's own server, at another port."""
    from hpcrl.engines.sglang.command import Place, arguments

    inference = recipe.groups["inference"]
    place = Place(
        model=model,
        address="127.0.0.1",
        port=port,
        dtype=inference.role.dtype,
        context=inference.role.max_context,
        seed=recipe.seed,
        gpus=inference.resources.gpus,
    )
    return arguments(inference.role.sglang, place)


if __name__ == "__main__":
    sys.exit(main())
