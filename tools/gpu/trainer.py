"""The trainer's speed on one card: what attention, chunks of logits, torch.compile and activation checkpointing cost and gain.

usage: python tools/gpu/trainer.py [--sizes short,long,reasoning] [--steps 4] [--variants TEXT,…] [--out FOLDER]

Models with random weights and batches of random tokens are made on the spot; a host without a network needs no more than for
`smoke.py`. Sizes:

- short: SmolLM2-135M's shape, 64 prompts of 128 tokens with 8 responses of 128 to 256, micro-batches of 16,384 tokens.
- long: the same model, 8 prompts of 256 tokens with 8 responses of 2,048 to 4,096, micro-batches of 32,768 tokens.
- reasoning: DeepSeek-R1-Distill-Qwen-1.5B's shape, 4 prompts of 256 tokens with 8 responses of 4,096 to 8,192, micro-batches
  of 32,768 tokens, activations recomputed.

`host` is the share of a step after which the host had told the card all that it was to do: near 100 %, the host is what the
step waits for. Every variant's first loss and gradient norm are compared with the first variant's; exit code 1 if they are
apart. `--sizes tiny` on a CPU checks the script.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from smoke import CHARACTERS, SMOLLM2, TINY, make_batch, make_model

from hpcrl.engines.titan.settings import TrainerSettings, World
from hpcrl.engines.titan.trainer import TitanTrainer
from hpcrl.run.errors import HpcrlError

R1_QWEN = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
WARM_UP = 2
# Between variants in bfloat16.
LOSS, NORM = 5e-3, 5e-2
GIB = 1 << 30


@dataclass(frozen=True)
class Size:
    """A model and a batch."""

    family: str
    shape: dict[str, int]
    vocabulary: int
    batch: dict[str, int]
    budget: int
    changes: dict[str, Any]


SIZES = {
    "tiny": Size("qwen2", TINY, CHARACTERS, {"prompts": 4, "samples": 4, "prompt": 8, "response": 32}, 256, {}),
    "short": Size("llama", SMOLLM2, 49_152, {"prompts": 64, "samples": 8, "prompt": 128, "response": 256}, 16_384, {}),
    "long": Size("llama", SMOLLM2, 49_152, {"prompts": 8, "samples": 8, "prompt": 256, "response": 4096}, 32_768, {}),
    "reasoning": Size(
        "qwen2",
        R1_QWEN,
        151_936,
        {"prompts": 4, "samples": 8, "prompt": 256, "response": 8192},
        32_768,
        {"activation_checkpointing": "full"},
    ),
}
# What a size has of these already is left as it is.
VARIANTS: dict[str, dict[str, Any]] = {
    "masked, chunks of 512": {"attention": "masked", "logits_chunk": 512},
    "masked": {"attention": "masked"},
    "varlen, chunks of 512": {"attention": "varlen", "logits_chunk": 512},
    "varlen": {"attention": "varlen"},
    "varlen, budget x 4": {"attention": "varlen", "budget": 4},
    "varlen, selective": {"attention": "varlen", "activation_checkpointing": "selective"},
    "varlen, full": {"attention": "varlen", "activation_checkpointing": "full"},
    "varlen, compiled": {"attention": "varlen", "compile": True},
}


def measure(folder: Path, size: Size, variant: dict[str, Any], steps: int) -> dict[str, float]:
    """Medians over steps of one variant."""
    cuda = torch.cuda.is_available()
    given = {"tokens_per_microbatch": size.budget * variant.get("budget", 1), **size.changes, **variant}
    given.pop("budget", None)
    settings = TrainerSettings(model=str(folder), lr=1e-5, **given)
    trainer = TitanTrainer(settings, World(cpus=8, gpus=(0,) if cuda else ()))
    try:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        tried = trainer.preflight(size.batch["prompt"] + size.batch["response"])
        began = time.perf_counter()
        seen = [trainer.train_batch(make_batch(seed, size.batch, size.vocabulary)) for seed in range(WARM_UP + steps)]
        timed = seen[WARM_UP:]
        found = {name: median(step[name] for step in timed) for name in seen[0]}
        found["first_loss"], found["first_norm"] = seen[0]["loss"], seen[0]["grad_norm"]
        found["computed_per_s"] = median(step["tokens_packed"] / step["train_s"] for step in timed)
        found["gib"] = torch.cuda.max_memory_allocated() / GIB if cuda else 0.0
        found["preflight_s"], found["preflight_gib"] = tried["seconds"], tried["gpu_gib"]
        found["warm_up_s"] = time.perf_counter() - began - sum(step["train_s"] for step in timed)
        return found
    finally:
        trainer.close()
        del trainer
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()


def show(name: str, found: dict[str, float]) -> str:
    """A row of the table."""
    parts = ("train_s", "forward_s", "backward_s", "optimizer_s")
    seconds = " | ".join(f"{found[part]:.3f}" for part in parts)
    rates = f"{found['tokens_per_s']:,.0f} | {found['computed_per_s']:,.0f}"
    host = f"{100 * found['host_s'] / found['train_s']:.0f} %"
    memory = f"{found['gib']:.1f} | {found['preflight_gib']:.1f}"
    return f"| {name} | {seconds} | {host} | {rates} | {memory} | {found['first_loss']:+.5f} | {found['first_norm']:.4f} |"


HEAD = (
    "| variant | step [s] | forward | backward | optimizer | host | response tokens/s | computed tokens/s | GiB "
    "| GiB in preflight | first loss | first norm |\n|" + " --- |" * 12
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="short,long,reasoning" if torch.cuda.is_available() else "tiny")
    parser.add_argument("--variants", default="", help="only those with one of these texts in their name")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-trainer"))
    given = parser.parse_args()
    out = given.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    print(f"{device}, torch {torch.__version__}", flush=True)
    wanted = [text for text in given.variants.split(",") if text]
    everything: dict[str, Any] = {}
    apart = []
    for name in given.sizes.split(","):
        size = SIZES[name]
        folder = make_model(out / name, size.family, size.shape, size.vocabulary)
        print(f"\n{name}: {size}\n\n{HEAD}", flush=True)
        first: dict[str, float] = {}
        for title, variant in VARIANTS.items():
            if wanted and not any(text in title for text in wanted):
                continue
            try:
                found = measure(folder, size, variant, given.steps)
            except (HpcrlError, RuntimeError) as error:
                print(f"| {title} | {type(error).__name__}: {str(error)[:300]} |", flush=True)
                everything[f"{name}: {title}"] = {"error": str(error)}
                continue
            everything[f"{name}: {title}"] = found
            print(show(title, found), flush=True)
            first = first or found
            far = abs(found["first_loss"] - first["first_loss"]) > LOSS
            if far or abs(found["first_norm"] / first["first_norm"] - 1) > NORM:
                apart.append(f"{name}: {title}")
        (out / "trainer.json").write_text(json.dumps(everything, indent=1))
        shutil.rmtree(folder)
    for title in apart:
        print(f"FAILED {title}: loss or gradient norm are not those of the first variant")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
