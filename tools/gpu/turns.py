"""What it costs a trainer to let go of its GPU between two batches, and that it learns the same: one process, no run around it.

usage: python tools/gpu/turns.py [--gpu 0] [--cpu] [--rounds 5]

Prints a line for each round and a summary: seconds and GB/s of the release and of the way back, the memory of the GPU in use
before and meanwhile, and whether the state came back bit for bit; and how far the losses are from those of a trainer that never
moved. Exit code 0 only if it did, and if no more than --rest GiB stayed in use. With --cpu a tiny model, to try the script.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 - the checkout must be found first
import torch  # noqa: E402

from hpcrl.checkpoint.hashing import hash_tensors  # noqa: E402
from hpcrl.engines.device_memory import gpu_used_bytes  # noqa: E402
from hpcrl.engines.titan.samples import Sample  # noqa: E402
from hpcrl.engines.titan.settings import TrainerSettings, World  # noqa: E402
from hpcrl.engines.titan.trainer import TitanTrainer  # noqa: E402

GIB = 1 << 30
# SmolLM2-135M's, and a tiny one.
SHAPES = {
    "135M": {"layers": 30, "hidden": 576, "middle": 1536, "heads": 9, "groups": 3, "vocabulary": 49_152},
    "tiny": {"layers": 2, "hidden": 64, "middle": 128, "heads": 4, "groups": 2, "vocabulary": 128},
}


def write_model(folder: Path, shape: dict[str, int]) -> None:
    """A Llama with random weights, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["middle"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["groups"],
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def batch(seed: int, vocabulary: int) -> list[Sample]:
    """Eight groups of eight responses of up to 64 tokens."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(2, vocabulary, (8, 32)).astype(np.int32)
    responses = [rng.integers(2, vocabulary, rng.integers(8, 64)).astype(np.int32) for _ in range(64)]
    return [
        Sample(
            prompt_ids=prompts[number // 8],
            response_ids=ids,
            behaviour_logprobs=np.full(len(ids), -np.log(vocabulary), np.float32),
            advantage=float(rng.normal()),
            group=number // 8,
        )
        for number, ids in enumerate(responses)
    ]


def digest(trainer: TitanTrainer) -> str:
    """Of all that training goes on from."""
    return hash_tensors({name: tensor.detach().cpu().clone() for name, tensor in trainer.memory.state().items()})


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rest", type=float, default=2.0)
    options = parser.parse_args()
    shape = SHAPES["tiny" if options.cpu else "135M"]
    world = World(cpus=4, gpus=() if options.cpu else (options.gpu,))

    def used() -> float:
        return 0.0 if options.cpu else gpu_used_bytes(options.gpu) / GIB

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), shape)
        settings = TrainerSettings(model=folder, lr=1e-4)
        still = TitanTrainer(settings, world)
        losses = [still.train_batch(batch(seed, shape["vocabulary"]))["loss"] for seed in range(options.rounds)]
        end = digest(still)
        still.close()
        del still
        torch.cuda.empty_cache()
        moving: Any = TitanTrainer(settings, world)
        seen, away, back, rest, same, size = [], [], [], [], [], 0
        for seed in range(options.rounds):
            before, there = used(), digest(moving)
            began = time.monotonic()
            size = moving.memory.release().freed
            away.append(time.monotonic() - began)
            rest.append(used())
            began = time.monotonic()
            moving.memory.resume()
            back.append(time.monotonic() - began)
            same.append(digest(moving) == there)
            seen.append(moving.train_batch(batch(seed, shape["vocabulary"]))["loss"])
            print(
                f"round {seed}: {before:.2f} GiB in use, released in {away[-1]:.3f} s, {rest[-1]:.2f} GiB in use, resumed in "
                f"{back[-1]:.3f} s, state {'the same' if same[-1] else 'CHANGED'}, loss {seen[-1]:.9f}",
                flush=True,
            )
        # The first release makes the host's memory.
        out, home = median(away[1:] or away), median(back)
        print(
            f"{size / GIB:.2f} GiB let go of: first {away[0]:.3f} s, then {out:.3f} s ({size / out / 1e9:.1f} GB/s), back "
            f"{home:.3f} s ({size / home / 1e9:.1f} GB/s)"
        )
        # Sums of some kernels depend on the order in which a GPU happens to add.
        apart = max(abs(one - other) for one, other in zip(seen, losses, strict=True))
        print(
            f"beside a trainer that never moved: losses {apart:.1e} apart, state {'' if digest(moving) == end else 'not '}equal"
        )
        good = all(same) and max(rest) <= options.rest
        print(f"good: {good}")
        moving.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
