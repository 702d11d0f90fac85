"""Decoding: a cohort of samples that advance in step, chunk by chunk, on one shared cache."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch

from hpcrl.engines.embedded.kv_cache import RowCache
from hpcrl.engines.embedded.model import LoadedModel
from hpcrl.engines.embedded.prefill import prefill
from hpcrl.engines.embedded.sampler import BatchSampler
from hpcrl.engines.embedded.sequence import Sequence

# Ended rows are dropped once they make up this share of the batch: a copy of the cache must pay for itself.
_DROP_SHARE = 0.125


class Cohort:
    """Samples that were admitted together.

    All rows end at the same position of the cache: shorter ones are padded on the left. Rows that end stay in the batch,
    ignored, until they are dropped at the end of a chunk.

    Attributes:
        rows: the samples still in the batch, in the order of the batch.
        prefilled_tokens: tokens that went through the model to start the cohort.
    """

    def __init__(self, model: LoadedModel, sequences: Rows[Sequence], *, prefill_tokens: int) -> None:
        """Nothing is computed before :meth:`start`."""
        self._model = model
        self._prefill_tokens = prefill_tokens
        self.rows = list(sequences)
        self.prefilled_tokens = 0
        self._uniforms = self._padded_uniforms()

    @torch.inference_mode()
    def start(self, version: str) -> None:
        """Prefill each unique context once, share it among its samples, and sample the first token of each."""
        model, rows = self._model, self.rows
        unique: dict[tuple[int, ...], int] = {}
        owner = [unique.setdefault(tuple(row.context), len(unique)) for row in rows]
        prompts = [list(context) for context in unique]
        self._length = max(map(len, prompts))
        left = max(row.limit - len(row.tokens) for row in rows)
        self._cache = RowCache(model.num_layers, self._length + min(left, max(64, self._length)))
        self._most = self._length + left
        owners = torch.tensor(owner)
        score = any(row.logprob_start >= 0 and row.prompt_logprobs is None for row in rows)
        first: torch.Tensor | None = None
        for batch in prefill(model, prompts, batch_tokens=self._prefill_tokens, score=score):
            local = {prompt: i for i, prompt in enumerate(batch.indexes)}
            target = torch.tensor([i for i, prompt in enumerate(owner) if prompt in local], device=model.device)
            source = torch.tensor([local[owner[i]] for i in target.tolist()], device=model.device)
            self._cache.adopt(batch.cache, source, target, rows=len(rows), length=self._length)
            if first is None:
                first = batch.logits.new_empty((len(rows), batch.logits.shape[-1]))
            first[target] = batch.logits[source]
            self._take_scores(batch.prompt_logprobs, target.tolist(), source.tolist())
        assert first is not None
        seen: set[int] = set()
        for row, prompt in zip(rows, owner, strict=True):
            row.cached_tokens = len(row.context) if prompt in seen else 0
            seen.add(prompt)
        self.prefilled_tokens = sum(map(len, prompts))
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)[owners.to(model.device)]
        self._positions = lengths.clone()
        self._mask = self._padding_mask(lengths) if len(set(map(len, prompts))) > 1 else None
        self._sampler = BatchSampler([row.params for row in rows], model.device)
        self._stops = self._stop_table()
        self._left = torch.tensor([row.limit - len(row.tokens) for row in rows], device=model.device)
        self._step = torch.tensor([len(row.tokens) for row in rows], device=model.device)
        self._logits: torch.Tensor | None = first
        self._last = torch.zeros(len(rows), dtype=torch.int64, device=model.device)
        # Samples without room for a token (scoring alone) end here.
        self._alive = self._left > 0
        self._harvest([[] for _ in rows], [[] for _ in rows], version)

    @torch.inference_mode()
    def run(self, num_tokens: int, version: str) -> int:
        """Decode up to ``num_tokens`` tokens for every row; returns how many tokens were made over all rows."""
        tokens, logprobs, counts = [], [], torch.zeros_like(self._left)
        for _ in range(num_tokens):
            if not bool(self._alive.any()):
                break
            logits = self._logits if self._logits is not None else self._forward()
            self._logits = None
            uniforms = self._uniforms.gather(1, self._step.clamp(max=self._uniforms.shape[1] - 1)[:, None]).squeeze(1)
            self._last, logprob = self._sampler.sample(logits, uniforms)
            tokens.append(self._last)
            logprobs.append(logprob)
            counts += self._alive
            self._step += 1
            self._left -= 1
            self._alive &= (self._left > 0) & ~(self._last[:, None] == self._stops).any(1)
        if not tokens:
            return 0
        made = counts.tolist()
        token_rows = torch.stack(tokens, 1).tolist()
        logprob_rows = torch.stack(logprobs, 1).tolist()
        self._harvest(
            [row[:count] for row, count in zip(token_rows, made, strict=True)],
            [row[:count] for row, count in zip(logprob_rows, made, strict=True)],
            version,
        )
        return sum(made)

    @property
    def done(self) -> bool:
        """Whether every sample has ended."""
        return all(row.finish_reason is not None for row in self.rows)

    @property
    def cached_positions(self) -> int:
        """Positions that the cache holds over all rows."""
        return self._length * len(self.rows)

    @property
    def cache_bytes(self) -> int:
        """What the cache takes."""
        return self._cache.nbytes

    @torch.inference_mode()
    def drop_ended(self) -> None:
        """Take ended rows out of the batch if there are enough of them."""
        keep = [i for i, row in enumerate(self.rows) if row.finish_reason is None]
        if not keep or len(self.rows) - len(keep) < max(1, _DROP_SHARE * len(self.rows)):
            self._alive &= torch.tensor([row.finish_reason is None for row in self.rows], device=self._model.device)
            return
        index = torch.tensor(keep, device=self._model.device)
        self.rows = [self.rows[i] for i in keep]
        self._cache.keep(index)
        self._sampler.keep(index)
        for name in ("_uniforms", "_positions", "_stops", "_left", "_step", "_last", "_alive"):
            setattr(self, name, getattr(self, name)[index])
        for name in ("_mask", "_logits"):
            if (held := getattr(self, name)) is not None:
                setattr(self, name, held[index])

    def _forward(self) -> torch.Tensor:
        self._cache.reserve(self._length + 1, self._most)
        mask = None
        if self._mask is not None:
            if self._mask.shape[-1] <= self._length:
                self._mask = torch.nn.functional.pad(self._mask, (0, self._cache.capacity - self._mask.shape[-1]), value=True)
            mask = self._mask[..., : self._length + 1]
        logits = self._model.forward(self._last[:, None], self._positions[:, None], mask, self._cache)
        self._length += 1
        self._positions += 1
        return logits[:, -1]

    def _harvest(self, tokens: list[list[int]], logprobs: list[list[float]], version: str) -> None:
        for row, new_tokens, new_logprobs in zip(self.rows, tokens, logprobs, strict=True):
            if row.finish_reason is None:
                row.extend(new_tokens, new_logprobs, version)
                if any(value != value for value in new_logprobs):
                    row.abort("the model gave logits that are not finite; its weights are broken")
                else:
                    row.finish_if_done(self._model.eos)

    def _take_scores(self, scored: list[torch.Tensor] | None, target: list[int], source: list[int]) -> None:
        if scored is None:
            return
        for row_index, prompt_index in zip(target, source, strict=True):
            row = self.rows[row_index]
            if row.logprob_start >= 0 and row.prompt_logprobs is None:
                values = scored[prompt_index][row.logprob_start : len(row.prompt) - 1].tolist()
                row.prompt_logprobs = [None, *values]

    def _padding_mask(self, lengths: torch.Tensor) -> torch.Tensor:
        column = torch.arange(self._cache.capacity, device=self._model.device)
        return (column >= self._length - lengths[:, None])[:, None, None, :]

    def _stop_table(self) -> torch.Tensor:
        stops = [[] if r.params.ignore_eos else sorted(self._model.eos | set(r.params.stop_token_ids)) for r in self.rows]
        width = max(1, *map(len, stops))
        return torch.tensor([ids + [-1] * (width - len(ids)) for ids in stops], device=self._model.device)

    def _padded_uniforms(self) -> torch.Tensor:
        width = max(1, max(row.limit for row in self.rows))
        table = np.zeros((len(self.rows), width))
        for i, row in enumerate(self.rows):
            table[i, : len(row.uniforms)] = row.uniforms
        return torch.from_numpy(table).to(self._model.device)
