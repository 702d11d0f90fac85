"""What the framework costs on a GPU: generation inside a run against bare SGLang, training against a bare torchtitan loop.

usage: python tools/gpu/overhead.py [--steps 8] [--set NAME=VALUE …] [--sglang-path FOLDER] [--out FOLDER]

Runs recipes/grpo_gym.py at a learning rate that leaves the policy as it is, keeping all its samples; the reward is the share of
digits, so that every sample teaches something. Then a server of SGLang with the same settings answers the same prompts, a batch
a request, and tools/gpu/plain_titan.py trains on the same samples. Prints a line for each figure with its ratio; medians over
the steps after the first two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
import tempfile
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
from hpcrl.engines.sglang.command import Place  # noqa: E402
from hpcrl.engines.sglang.server import SglangServer  # noqa: E402
from hpcrl.engines.sglang.settings import Sglang  # noqa: E402
from hpcrl.recipe import Recipe  # noqa: E402
from hpcrl.roles.inference import Inference  # noqa: E402
from hpcrl.run.directory import RunDirectory  # noqa: E402

SKIPPED = 2
NAMES = ("step", "advantage", "prompt_ids", "response_ids", "rollout_logprobs", "prompt_number")
CALL_S = 300.0


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


async def answered(url: str, key: str, prompts: Sequence[list[int]], new: int) -> tuple[int, float]:
    """Tokens and seconds of one request for all prompts."""
    import aiohttp

    body = {
        "input_ids": list(prompts),
        "sampling_params": {"temperature": 1.0, "max_new_tokens": new},
        "return_logprob": True,
        "logprob_start_len": -1,
    }
    timeout, headers = aiohttp.ClientTimeout(CALL_S), {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, read_bufsize=1 << 24) as session:
        started = time.perf_counter()
        async with session.post(f"{url}/generate", json=body) as response:
            response.raise_for_status()
            answers = await response.json()
        return sum(len(answer["output_ids"]) for answer in answers), time.perf_counter() - started


def bare_sglang(sglang: Sglang, place: Place, batches: Sequence[list[Any]], new: int, log: Path) -> list[float]:
    """Tokens a second of each batch."""
    key = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="hpcrl-") as temporary:
        server = SglangServer(sglang, place, key=key, log=log, temporary=Path(temporary))
        try:
            url = server.start()
            return [tokens / seconds for tokens, seconds in (asyncio.run(answered(url, key, one, new)) for one in batches)]
        finally:
            server.stop()


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
    reward = f"reward.function={Path(__file__).parent / 'smoke.py'}:digits"
    sets = [f"steps={given.steps}", "lr=1e-12", "trainer.trajectories=-1", reward, *given.set]
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
    sglang, place = bare_place(recipe, model, given.port)
    new = roles["rollout"].sampling.max_new_tokens
    rates = bare_sglang(sglang, place, list(prompts.values()), new, out / "sglang.log")
    bare = median(rates[SKIPPED:])
    print(f"generation  in the run {inside:8.0f} tokens/s   bare SGLang {bare:8.0f}   ratio {inside / bare:.2f}", flush=True)
    budget = roles["trainer"].tokens_per_microbatch
    command = [sys.executable, str(Path(__file__).parent / "plain_titan.py"), str(model), str(out / "samples.npz")]
    done = subprocess.run([*command, "--budget", str(budget)], env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-3000:])
        return 1
    plain = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(plain) <= SKIPPED:
        print(f"the bare loop had samples to train on in {len(plain)} steps only; give more --steps")
        return 1
    ours = median(step["tokens_per_s"] for step in steps[SKIPPED:])
    theirs = median(step["tokens_per_s"] for step in plain[SKIPPED:])
    print(f"training    in the run {ours:8.0f} tokens/s   bare torchtitan {theirs:8.0f}   ratio {ours / theirs:.2f}")
    return 0


def bare_place(recipe: Recipe, model: Path, port: int) -> tuple[Sglang, Place]:
    """Settings of the run's own server, and where there is another one like it."""
    group = recipe.groups["inference"]
    role = group.role
    if not isinstance(role, Inference) or role.sglang is None:
        raise SystemExit("overhead.py: the recipe's inference is not SGLang's; leave out --set engine=…")
    return role.sglang, Place(
        model=model,
        address="127.0.0.1",
        port=port,
        inner_port=port + 1,
        dtype=role.dtype,
        context=role.max_context,
        seed=recipe.seed,
        gpus=tuple(range(group.resources.gpus)),
        threads=max(1, group.resources.cpus),
    )


if __name__ == "__main__":
    sys.exit(main())
