"""A bare torchtitan loop on batches that a run trained on: what hpcrl's trainer is measured against.

usage: python tools/gpu/plain_titan.py MODEL SAMPLES.npz [--budget 32768] [--lr 1e-6]

One sample a row, rows of similar length padded to one length under a token budget, torch's fused causal attention, torchtitan's
own log-probabilities from whole logits, bfloat16 autocast over float32 weights, fused AdamW. SAMPLES.npz holds, flat: ``step``
(samples,), ``advantage``, ``prompt_length``, ``response_length``, ``prompt_ids``, ``response_ids``, ``logprobs``. Prints
one JSON line a step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from hpcrl.engines.titan import compat

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
compat.enable(DEVICE)
from torchtitan.components.loss import compute_logprobs  # noqa: E402
from torchtitan.protocols.module import Module  # noqa: E402

from hpcrl.engines.titan.build import build_model, load_weights  # noqa: E402
from hpcrl.engines.titan.model import model_spec  # noqa: E402
from hpcrl.engines.titan.settings import TrainerSettings  # noqa: E402
from hpcrl.engines.titan.shape import read_shape  # noqa: E402


class CausalAttention(Module):  # type: ignore[misc]
    """Torch's fused attention with a causal mask."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        """No settings."""

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(self, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, *, scale: float | None = None, **_: Any) -> Any:
        """Attention output, (rows, length, heads, head_dim)."""
        q, k, v = (part.transpose(1, 2) for part in (q_BLNH, k_BLNH, v_BLNH))
        gqa = k.shape[1] != q.shape[1]
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa).transpose(1, 2)


class Samples:
    """The samples of a file, by step."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as held:
            self.arrays = {name: held[name] for name in held.files}
        self._prompts = np.concatenate([[0], np.cumsum(self.arrays["prompt_length"])])
        self._responses = np.concatenate([[0], np.cumsum(self.arrays["response_length"])])

    def steps(self) -> Iterator[list[int]]:
        """Indexes of the samples of each step that teach something."""
        for step in np.unique(self.arrays["step"]):
            yield np.nonzero((self.arrays["step"] == step) & (self.arrays["advantage"] != 0))[0].tolist()

    def sample(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Prompt, response and its log-probabilities."""
        prompt = slice(self._prompts[index], self._prompts[index + 1])
        response = slice(self._responses[index], self._responses[index + 1])
        arrays = self.arrays
        return arrays["prompt_ids"][prompt], arrays["response_ids"][response], arrays["logprobs"][response]

    def length(self, index: int) -> int:
        """Tokens of a sample."""
        return int(self.arrays["prompt_length"][index] + self.arrays["response_length"][index])


def micro_batches(samples: Samples, members: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Samples of similar length, padded to at most ``budget`` tokens together."""
    waiting = sorted(members, key=samples.length, reverse=True)
    while waiting:
        count = max(1, budget // samples.length(waiting[0]))
        yield waiting[:count]
        waiting = waiting[count:]


def tensors(samples: Samples, members: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Tokens, labels, mask, behaviour log-probabilities, advantages: (rows, length) each."""
    length = -(-max(map(samples.length, members)) // 8) * 8
    tokens, mask = np.zeros((len(members), length), np.int64), np.zeros((len(members), length), np.float32)
    behaviour, advantage = np.zeros_like(mask), np.zeros_like(mask)
    for row, index in enumerate(members):
        prompt, response, logprobs = samples.sample(index)
        start, end = len(prompt), len(prompt) + len(response)
        tokens[row, :start], tokens[row, start:end] = prompt, response
        mask[row, start - 1 : end - 1] = 1
        behaviour[row, start - 1 : end - 1] = logprobs
        advantage[row] = samples.arrays["advantage"][index]
    labels = np.roll(tokens, -1, 1)
    return tuple(torch.from_numpy(part).to(DEVICE) for part in (tokens, labels, mask, behaviour, advantage))


def build(model: Path, lr: float) -> tuple[Any, torch.optim.Optimizer]:
    """torchtitan's model with its own head, and the optimizer."""
    shape = read_shape(model, context=None)
    spec = model_spec(shape, logits_chunk=512, temperature=1.0)
    from torchtitan.models.common.linear import Linear

    head = spec.config.lm_head
    spec.config.lm_head = Linear.Config(
        in_features=head.in_features, out_features=head.out_features, param_init=head.param_init
    )
    for layer in spec.config.layers:
        layer.attention.inner_attention = CausalAttention.Config()
    settings = TrainerSettings(model=str(model), compute_dtype="float32")
    made = build_model(spec, settings, world_size=1, device=torch.device(DEVICE))
    load_weights(made, spec, model, world_size=1)
    return made, torch.optim.AdamW(made.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def step(model: Any, optimizer: torch.optim.Optimizer, samples: Samples, members: Sequence[int], budget: int) -> float:
    """One step; its loss."""
    count = float(samples.arrays["response_length"][list(members)].sum())
    total = torch.zeros((), device=DEVICE)
    for part in micro_batches(samples, members, budget):
        tokens, labels, mask, behaviour, advantage = tensors(samples, part)
        positions = torch.arange(tokens.shape[1], device=DEVICE).expand_as(tokens)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(tokens, positions=positions)
        logprobs = compute_logprobs(logits, labels)
        logprobs = logprobs[0] if isinstance(logprobs, tuple) else logprobs
        ratio = (logprobs - logprobs.detach()).exp()
        weight = (logprobs.detach() - behaviour).exp().clamp(max=2.0)
        loss = -(weight * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage) * mask).sum() / count
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--budget", type=int, default=32_768)
    parser.add_argument("--lr", type=float, default=1e-6)
    given = parser.parse_args()
    samples = Samples(given.samples)
    model, optimizer = build(given.model, given.lr)
    for members in samples.steps():
        if not members:
            continue
        started = time.perf_counter()
        loss = step(model, optimizer, samples, members, given.budget)
        seconds = time.perf_counter() - started
        tokens = int(samples.arrays["response_length"][members].sum())
        print(json.dumps({"loss": loss, "seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds}), flush=True)


if __name__ == "__main__":
    main()
