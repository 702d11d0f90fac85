"""The largest micro-batch that training can meet, and what to say when it does not fit into a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.settings import TrainerSettings
from hpcrl.run.errors import HpcrlError, host

_GIB = 1 << 30


class OutOfMemory(HpcrlError):
    """A GPU's memory does not hold a micro-batch; says how much there is, and which settings to lower."""


def longest_samples(longest: int, budget: int, vocabulary: int) -> list[Sample]:
    """Samples of the greatest length, of one prompt token each, that fill a micro-batch of ``budget`` tokens."""
    lengths = [longest] * max(1, budget // longest)
    rest = budget - sum(lengths)
    return [_sample(length, number, vocabulary) for number, length in enumerate([*lengths, *([rest] if rest > 1 else [])])]


def _sample(length: int, number: int, vocabulary: int) -> Sample:
    ids = (np.arange(length) % vocabulary).astype(np.int32)
    behaviour = np.full(length - 1, -np.log(vocabulary), np.float32)
    return Sample(prompt_ids=ids[:1], response_ids=ids[1:], behaviour_logprobs=behaviour, advantage=1.0, group=number)


@contextmanager
def explained(settings: TrainerSettings, device: torch.device, what: str, longest: int) -> Iterator[None]:
    """Turn torch's error for too little memory into one that says what to do.

    Args:
        what: was being done.
        longest: tokens of the longest sample.

    Raises:
        OutOfMemory: in place of torch's.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{what} on {host()}: {_numbers(device)}; {_advice(settings, longest)} ({error})") from error


def _numbers(device: torch.device) -> str:
    if device.type != "cuda":
        return "out of memory"
    free, total = torch.cuda.mem_get_info(device)
    held, most = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    return (
        f"{device} ({torch.cuda.get_device_name(device)}) is out of memory: {total / _GIB:.1f} GiB in all, "
        f"{free / _GIB:.1f} free, {held / _GIB:.1f} held by this process, {most / _GIB:.1f} at most before"
    )


def _advice(settings: TrainerSettings, longest: int) -> str:
    ways = []
    budget = settings.tokens_per_microbatch
    if budget > longest:
        ways.append(f"lower tokens_per_microbatch, {budget} (a sample has at most {longest} tokens)")
    if settings.activation_checkpointing != "full":
        ways.append(f"set activation_checkpointing, {settings.activation_checkpointing!r}, to 'full'")
    if settings.attention == "masked":
        ways.append("set attention to 'auto': a mask grows with the square of a row")
    ways.append("lower logits_chunk")
    ways.append(f"generate shorter samples (max_new_tokens, max_context; now {longest} tokens with the prompt)")
    ways.append("train on more GPUs, which share weights and optimizer state")
    return "one of: " + "; ".join(ways)
