"""The loaded model: one forward call, whatever the family."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

from hpcrl.engines.embedded.kv_cache import RowCache
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.engines.making import MAKING
from hpcrl.run.errors import CheckFailed


def import_family(folder: Path) -> None:
    """Import the code of a folder's model, which :class:`LoadedModel` else does.

    Raises:
        OSError, ValueError: the folder cannot be read, or transformers does not know such a model.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.from_pretrained(folder, local_files_only=True))]


class LoadedModel:
    """A Hugging Face causal language model ready for inference.

    Attributes:
        module: the transformers model.
        max_context: tokens of prompt and completion together.
        eos: token ids that end a completion.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Load the model folder.

        Raises:
            CheckFailed: there is no such model, it does not fit the settings, or its attention is not full attention.
        """
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        if not (settings.model_path / "config.json").is_file():
            raise CheckFailed(
                [f"{settings.model_path} is not a model folder (no config.json); set model_path to one in Hugging Face layout"]
            )
        # It would be drawn into the log, or over the progress view of a run in one process.
        logging.disable_progress_bar()
        try:
            with MAKING:
                self.module = AutoModelForCausalLM.from_pretrained(
                    settings.model_path, dtype=getattr(torch, settings.dtype), attn_implementation="sdpa", local_files_only=True
                )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise CheckFailed([f"the model in {settings.model_path} cannot be loaded: {error}"]) from error
        self.module.eval().requires_grad_(False)
        self.device = torch.device(settings.device)
        self.module.to(self.device)
        self.config = self.module.config
        self.num_layers = int(self.config.num_hidden_layers)
        self.vocab_size = int(self.config.vocab_size)
        own_limit = int(self.config.max_position_embeddings)
        self.max_context = settings.max_context or own_limit
        problems = []
        if self.max_context > own_limit:
            problems.append(f"max_context {self.max_context} is beyond the {own_limit} positions of {settings.model_path}")
        if window := _sliding_window(self.config, self.max_context):
            problems.append(
                f"{settings.model_path} attends over a sliding window of {window} tokens, which the embedded engine does not "
                f"do; set max_context to {window} or serve it with SGLang"
            )
        if problems:
            raise CheckFailed(problems)
        self.eos = frozenset(_eos_ids(self.module))
        # transformers renamed this argument in the 5.x series.
        self._cache_argument = "cache" if "cache" in inspect.signature(self.module.forward).parameters else "past_key_values"

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: RowCache,
        *,
        every_position: bool = False,
    ) -> torch.Tensor:
        """Logits, (rows, 1 or tokens, vocabulary); the cache takes the new keys and values.

        Args:
            ids: int64 (rows, tokens).
            positions: int64 (rows, tokens).
            mask: bool (rows, 1, tokens, cached tokens), True = attend; None = plain causal attention without padding.
        """
        arguments: dict[str, Any] = {self._cache_argument: cache}
        output = self.module(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=0 if every_position else 1,
            **arguments,
        )
        logits: torch.Tensor = output.logits
        return logits


def _sliding_window(config: Any, max_context: int) -> int | None:
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in layers or (window and getattr(config, "use_sliding_window", True))
    return int(window) if slides and window and window < max_context else None


def _eos_ids(module: Any) -> set[int]:
    found: set[int] = set()
    for holder in (module.config, module.generation_config):
        value = getattr(holder, "eos_token_id", None)
        if value is not None:
            found |= set(value) if isinstance(value, list | tuple) else {value}
    return found
