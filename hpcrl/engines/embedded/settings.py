"""Settings of the embedded engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EngineDType = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What to load and how to run it.

    Attributes:
        model_path: folder in Hugging Face layout: config, safetensors, and a tokenizer if text is to go in or out.
        dtype: dtype of weights and cache. A weight update must come in the same dtype.
        device: torch device, ``cpu`` or ``cuda:0``.
        threads: CPU threads of the engine; 0 leaves torch's own number.
        max_context: tokens of prompt and completion together; 0 takes the model's own limit.
        chunk_tokens: tokens decoded before the engine looks at new requests, aborts and pauses, and drops ended rows.
        max_running_rows: samples decoded at a time; further requests wait.
        prefill_tokens: padded prompt tokens that go through the model at a time; bounds its peak memory.
        seed: seeds requests that bring no ``sampling_seed`` of their own.
        repeatable: a request with a seed gives the same tokens whatever else runs, as it is computed apart from others. Without
            it, it shares batches: its random numbers stay, rounding differs. On a GPU, where a batch of many takes hardly
            longer than one of few, many requests at a time need that.
        weight_version: name of the weights loaded at the start, as reported to clients.
    """

    model_path: Path
    dtype: EngineDType = "float32"
    device: str = "cpu"
    threads: int = 0
    max_context: int = 0
    chunk_tokens: int = 4
    max_running_rows: int = 256
    prefill_tokens: int = 4096
    seed: int = 0
    repeatable: bool = True
    weight_version: str = "default"

    def __post_init__(self) -> None:
        """Check the numbers; ``ValueError`` names the field."""
        for name, least in (
            ("chunk_tokens", 1),
            ("max_running_rows", 1),
            ("prefill_tokens", 1),
            ("threads", 0),
            ("max_context", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"EngineSettings.{name} must be at least {least}, got {getattr(self, name)}")
