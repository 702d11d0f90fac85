"""The trainer: policy-gradient steps on batches of samples, on one process or many. Knows nothing of queues.

Import only in the process that trains: it imports torch and torchtitan. Its collectives must be called by all ranks in the
same order; those that take or give data do so on rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.state.layout import StateError, look
from hpcrl.checkpoint.state.manifest import Manifest, Mesh
from hpcrl.checkpoint.state.restore import Expected, restore
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.state.saver import About, NotSaved, Saved, Saver
from hpcrl.engines.titan import compat
from hpcrl.engines.titan.figures import Figures
from hpcrl.engines.titan.packing import MicroBatch
from hpcrl.engines.titan.plan import Work, plan_scoring, plan_steps
from hpcrl.engines.titan.precision import CastWeights, Weights
from hpcrl.engines.titan.samples import Sample, check_samples
from hpcrl.engines.titan.schedule import learning_rate
from hpcrl.engines.titan.settings import ProcessInfo, TrainerSettings
from hpcrl.engines.titan.shape import read_shape
from hpcrl.engines.titan.world import Ranks
from hpcrl.run.errors import CheckFailed, HpcrlError

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class TrainingDiverged(HpcrlError):
    """A loss or gradient is not finite. Raised before the optimizer step, so the weights are still good."""


class TitanTrainer:
    """A model, its optimizer and its step counter.

    Args:
        settings: what to train and how.
        process: which rank this is and what it may use. Threads are limited to its ``cpus`` in the calling thread, which
            must also make the later calls.
        saves: folder of saves. If one is there, the model's own weights are not read, and :meth:`load_state` must be called
            before anything else.

    Attributes:
        step: batches trained so far.

    Raises:
        CheckFailed: settings that make no sense.
        ModelError: the model folder cannot be trained.
        WorldError: the ranks could not meet.
    """

    def __init__(self, settings: TrainerSettings, process: ProcessInfo, saves: Path | None = None) -> None:
        if problems := settings.problems():
            raise CheckFailed(problems)
        torch.set_num_threads(max(1, process.cpus))
        folder = Path(settings.model)
        self._shape = read_shape(folder, context=settings.context)
        compat.enable("cuda" if process.gpus else "cpu")
        from hpcrl.engines.titan.build import build_model, load_weights
        from hpcrl.engines.titan.model import model_spec

        self.settings, self.step = settings, 0
        self._spec = model_spec(self._shape, logits_chunk=settings.logits_chunk, temperature=settings.temperature)
        self._ranks = Ranks(process, collective_s=settings.collective_s)
        try:
            self._model: Any = build_model(self._spec, settings, world_size=process.world_size, device=self._ranks.device)
            # Rank 0 says, as another may see the folder later.
            self._blank = bool(self._ranks.say(int(saves is not None and bool(look(saves).committed))))
            if not self._blank:
                load_weights(self._model, self._spec, folder, world_size=process.world_size)
        except BaseException:
            self._ranks.close()
            raise
        # FSDP casts by itself, and in float32 there is nothing to cast.
        plain = process.world_size > 1 or settings.compute_dtype == "float32"
        dtype = _DTYPES[settings.compute_dtype]
        self._weights: Any = Weights(self._model) if plain else CastWeights(self._model, dtype, blank=self._blank)
        self._optimizer = self._build_optimizer()
        self._saver: Saver | None = None

    def train_batch(self, samples: Sequence[Sample] | None) -> dict[str, float]:
        """Train on one batch and return figures of it. A collective.

        Samples with an advantage of 0 are dropped first: they give no gradient, and the loss is normalised over those kept.
        If none is left the weights stay as they are, but the step counts.

        Args:
            samples: the whole batch on rank 0, None elsewhere.

        Returns:
            On every rank: ``loss``, ``grad_norm`` (before clipping; of the last optimizer step), ``lr``, ``clip_fraction``,
            ``kl`` (proximal to current), ``logprob_gap_mean`` and ``logprob_gap_max`` (|proximal - behaviour|, that is
            trainer against rollout), ``entropy`` (estimated by -log-probability of the tokens trained on, exact in
            expectation on policy), ``samples``, ``samples_kept``, ``tokens`` (response tokens trained on), ``tokens_packed``
            (computed, with prompts and padding), ``tokens_per_s``, ``updates``, and seconds ``pack_s``, ``forward_s``,
            ``backward_s``, ``optimizer_s``, ``train_s``.

        Raises:
            SampleError: a sample that cannot be trained on; nothing was trained.
            WorldError: rank 0 refused the batch.
            TrainingDiverged: a loss or gradient is not finite.
        """
        figures = Figures(self._ranks.device)
        with figures.time("train_s"):
            with figures.time("pack_s"):
                batch = self._ranks.share_batch(samples, self._check)
                steps = plan_steps(batch, self.settings, self._shape.pair_cost, self._ranks)
            proximal = self._score([micro for step in steps for micro in step.micro], batch) if len(steps) > 1 else None
            lr = learning_rate(self.step, self.settings)
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            for step in steps:
                self._update(step, batch, proximal, figures)
        self.step += 1
        kept = sum(sample.advantage != 0 for sample in batch)
        return {"lr": lr, "samples": len(batch), "samples_kept": kept, "updates": len(steps), **figures.reduced(self._ranks)}

    def logprobs(self, samples: Sequence[Sample] | None) -> list[np.ndarray]:
        """Log-probabilities of the response tokens under the current weights, float32 (response,) a sample. A collective.

        Args:
            samples: on rank 0, None elsewhere; their advantages do not matter.

        Returns:
            On every rank, in the order of the samples.
        """
        batch = self._ranks.share_batch(samples, self._check)
        work = plan_scoring(batch, self.settings, self._shape.pair_cost, self._ranks)
        scored = self._score(work.micro, batch)
        lengths = [len(sample.response_ids) for sample in batch]
        flat = np.zeros(sum(lengths))
        starts = np.cumsum([0, *lengths])
        for index, values in scored.items():
            flat[starts[index] : starts[index + 1]] = values.cpu().numpy()
        flat = self._ranks.reduce(flat).astype(np.float32)
        return [flat[start:end] for start, end in pairwise(starts)]

    def hf_specs(self) -> list[TensorSpec]:
        """What :meth:`hf_tensors` gives, in its order; the same on every rank. A collective."""
        dtype = _DTYPES[self.settings.publish_dtype]
        shapes = {name: torch.empty(tensor.shape, dtype=dtype, device="meta") for name, tensor in self._to_publish()}
        return [
            TensorSpec(name, self.settings.publish_dtype, tuple(tensor.shape))
            for name, tensor in self._spec.adapter.to_hf(shapes).items()
        ]

    def hf_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights under Hugging Face names in ``publish_dtype``, one by one, each whole. A collective of each.

        Every rank must go through all of them. A tensor may be the trainer's own memory: it is not to be changed, and is as it
        is until the next step. A tied head is left out, as Hugging Face files do.
        """
        dtype = _DTYPES[self.settings.publish_dtype]
        cast_already = self.settings.publish_dtype == self.settings.compute_dtype
        with nullcontext() if cast_already else self._weights.masters():
            for held, tensor in self._to_publish():
                for name, part in self._spec.adapter.to_hf({held: tensor.detach().to(dtype)}).items():
                    yield name, part.full_tensor() if hasattr(part, "full_tensor") else part

    def exchange(self, said: bytes) -> list[bytes]:
        """What each rank says, on every rank. A collective, for the caller's own words."""
        return self._ranks.exchange(said)

    def begin_save(self, folder: Path, about: About | None) -> None:
        """Begin to save weights, optimizer, step and random states, while training goes on. A collective.

        A save is committed under ``folder`` as a whole or not at all; ``keep_states`` and its like say which ones stay.

        Args:
            about: what the save says beside the tensors; on rank 0.

        Raises:
            StateError: the save before has not ended.
        """
        self._saves_in(folder).begin(self._state(), self.step, about)

    @property
    def saving(self) -> bool:
        """Whether a save is under way whose end was not told."""
        return self._saver is not None and self._saver.busy

    def poll_save(self) -> Saved | NotSaved | None:
        """On rank 0, once, how the save that was begun last ended; None while it has not."""
        return None if self._saver is None else self._saver.poll()

    def finish_save(self, *, seconds: float) -> Saved | NotSaved | None:
        """:meth:`poll_save` that waits; None if no save is under way."""
        return None if self._saver is None else self._saver.finish(seconds=seconds)

    def load_state(self, folder: Path, expected: Expected | None = None) -> Manifest | None:
        """Go on from the newest whole save under ``folder``, made by any number of ranks. A collective.

        Args:
            expected: what it must fit; on rank 0.

        Returns:
            What the save says, or None if there is none; then nothing changed.

        Raises:
            StateError: the save cannot be read or used, or is of another model.
        """
        saver = self._saves_in(folder)
        saver.copied()
        manifest = restore(folder, self._state(), self._ranks, expected)
        if manifest is not None:
            self.step = manifest.step
            self._weights.renew()
        elif self._blank:
            raise StateError(f"the saves that were in {folder} when this process started are gone; start again")
        self._blank = False
        # Its process starts while the first batch is waited for.
        saver.prepare(self._state())
        return manifest

    def say(self, number: int) -> int:
        """What rank 0 says, on every rank; the others' argument does not matter. A collective, for the caller's own words."""
        return self._ranks.say(number)

    def close(self) -> None:
        """Leave the other ranks and let go of the model. Safe to call twice; another trainer may be made after it.

        A save that is under way is given up.
        """
        if self._saver is not None:
            self._saver.close()
            self._saver = None
        self._ranks.close()
        self._model = self._optimizer = self._weights = None

    def _to_publish(self) -> list[tuple[str, torch.Tensor]]:
        held = self._model.state_dict().items()
        return [(name, tensor) for name, tensor in held if not (self._shape.tied and name == "lm_head.weight")]

    def _check(self, samples: Sequence[Sample]) -> None:
        check_samples(samples, vocabulary=self._shape.vocabulary, context=self._shape.context)

    def _build_optimizer(self) -> Any:
        matrices: list[torch.Tensor] = [p for _, p in self._weights.named if p.ndim >= 2]
        vectors: list[torch.Tensor] = [p for _, p in self._weights.named if p.ndim < 2]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(
            groups,
            lr=self.settings.lr,
            betas=self.settings.betas,
            eps=self.settings.adam_eps,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        # Made now and not at the first step, so that a save can be loaded before it; and then its memory is filled only once.
        moment = torch.empty_like if self._blank else torch.zeros_like
        for _, p in self._weights.named:
            optimizer.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=self._ranks.device),
                "exp_avg": moment(p),
                "exp_avg_sq": moment(p),
            }
        return optimizer

    def _saves_in(self, folder: Path) -> Saver:
        if self._saver is None or self._saver.folder != folder:
            if self._saver is not None:
                self._saver.close()
            keep, size = self.settings, self._ranks.size
            self._saver = Saver(
                folder,
                self._ranks,
                keep=Keep(last=keep.keep_states, every=keep.keep_states_every, best=keep.keep_best_states, metric=keep.best_by),
                mesh=Mesh(size, {"fsdp": size} if size > 1 else {}),
            )
        return self._saver

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, p in self._weights.named:
            state[f"model.{name}"] = p.detach()
            state.update({f"optimizer.{name}.{key}": value for key, value in self._optimizer.state[p].items()})
        return state

    def _update(self, work: Work, batch: Sequence[Sample], proximal: dict[int, torch.Tensor] | None, figures: Figures) -> None:
        for number in range(work.rounds):
            micro = work.micro[number] if number < len(work.micro) else MicroBatch.empty()
            loss_of = self._token_loss(micro, batch, work.weights, proximal, figures)
            with figures.time("forward_s"):
                loss, logprobs = self._forward(micro, loss_of)
            self._require_finite(loss, logprobs, micro)
            with figures.time("backward_s"):
                torch.autograd.backward(loss)
                self._weights.collect_gradients()
            figures.add(loss=float(loss.detach()), tokens_packed=micro.tokens.size if micro.samples else 0)
        if self._saver is not None:
            self._saver.copied()
        with figures.time("optimizer_s"):
            figures.set(grad_norm=self._clip())
            self._optimizer.step()
            self._weights.clear_gradients()
            self._weights.renew()

    def _forward(
        self, micro: MicroBatch, loss: Callable[[torch.Tensor, int, int], torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from hpcrl.engines.titan.attention import additive_mask
        from hpcrl.engines.titan.head import Task

        tokens, positions, source, targets, segment, parent = (
            torch.from_numpy(array).to(self._ranks.device)
            for array in (micro.tokens, micro.positions, micro.source, micro.targets, micro.segment, micro.parent)
        )
        self._model.lm_head.task = Task(source, targets, loss)
        mask = additive_mask(segment, parent, _DTYPES[self.settings.compute_dtype])
        return self._model(tokens, positions=positions, attention_masks=mask)  # type: ignore[no-any-return]

    def _token_loss(
        self,
        micro: MicroBatch,
        batch: Sequence[Sample],
        weights: np.ndarray,
        proximal: dict[int, torch.Tensor] | None,
        figures: Figures,
    ) -> Callable[[torch.Tensor, int, int], torch.Tensor]:
        from hpcrl.algorithms.policy_loss import policy_loss

        def tokens(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.repeat(values, micro.lengths).astype(np.float32)).to(self._ranks.device)

        members = list(micro.samples)
        weight = tokens(weights[members])
        advantage = tokens(np.array([batch[index].advantage for index in members]))
        flat = [batch[index].behaviour_logprobs for index in members]
        behaviour = torch.from_numpy(np.concatenate(flat) if flat else np.zeros(0, np.float32)).to(self._ranks.device)
        near = torch.cat([proximal[index] for index in members]) if proximal and members else None
        settings = self.settings

        def loss(current: torch.Tensor, first: int, last: int) -> torch.Tensor:
            here = slice(first, last)
            out = policy_loss(
                current,
                current.detach() if near is None else near[here],
                behaviour[here],
                advantage[here],
                clip_low=settings.clip_low,
                clip_high=settings.clip_high,
                importance_cap=settings.importance_cap,
            )
            figures.add_tokens(out, current.detach())
            return out.loss * weight[here]

        return loss

    def _score(self, micros: Sequence[MicroBatch], batch: Sequence[Sample]) -> dict[int, torch.Tensor]:
        """Log-probabilities by index of the sample, for this rank's micro-batches. A collective."""
        rounds = int(self._ranks.reduce_max(np.array([len(micros)]))[0])
        scored: dict[int, torch.Tensor] = {}
        for number in range(rounds):
            micro = micros[number] if number < len(micros) else MicroBatch.empty()
            with torch.no_grad():
                _, logprobs = self._forward(micro, None)
            pieces: Any = torch.split(logprobs, list(micro.lengths))
            scored.update(zip(micro.samples, pieces, strict=True))
        return scored

    def _require_finite(self, loss: torch.Tensor, logprobs: torch.Tensor, micro: MicroBatch) -> None:
        if torch.isfinite(loss):
            return
        owners = np.repeat(micro.samples, micro.lengths)
        bad = (~torch.isfinite(logprobs)).nonzero()
        who = f"sample {owners[int(bad[0])]}" if len(bad) else f"one of samples {sorted(micro.samples)}"
        raise TrainingDiverged(
            f"step {self.step}: the loss of {who} of the batch is {float(loss.detach())}; "
            "the weights are those before the step; go back to an earlier save with a lower learning rate"
        )

    def _clip(self) -> float:
        grads = [p.grad for _, p in self._weights.named if p.grad is not None]
        total: Any = torch.nn.utils.get_total_norm(grads)
        norm = float(total.full_tensor() if hasattr(total, "full_tensor") else total)
        if not np.isfinite(norm):
            self._weights.clear_gradients()
            raise TrainingDiverged(
                f"step {self.step}: the gradient norm is {norm}; the weights are those before the step; "
                "go back to an earlier save with a lower learning rate"
            )
        limit = self.settings.max_grad_norm
        if limit is not None and norm > limit:
            torch._foreach_mul_([grad.to_local() if hasattr(grad, "to_local") else grad for grad in grads], limit / norm)
        return norm
