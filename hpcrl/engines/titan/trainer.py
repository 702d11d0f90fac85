"""The trainer: policy-gradient steps on batches of samples, on one process or many. Knows nothing of queues.

Import only in the process that trains: it imports torch and torchtitan. Its collectives must be called by all ranks in the
same order; those that take or give data do so on rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

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
from hpcrl.engines.titan.held import Held
from hpcrl.engines.titan.optimizer import build_optimizer, clip_gradients
from hpcrl.engines.titan.packing import Layout, MicroBatch
from hpcrl.engines.titan.passes import DTYPES, Passes, mean_gaps
from hpcrl.engines.titan.plan import Work, plan_scoring, plan_steps
from hpcrl.engines.titan.precision import CastWeights, Weights
from hpcrl.engines.titan.preflight import explained, longest_samples
from hpcrl.engines.titan.residence import Residence
from hpcrl.engines.titan.samples import Sample, check_samples
from hpcrl.engines.titan.schedule import learning_rate
from hpcrl.engines.titan.settings import ProcessInfo, TrainerSettings
from hpcrl.engines.titan.shape import read_shape
from hpcrl.engines.titan.world import Ranks
from hpcrl.run.errors import CheckFailed, HpcrlError


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
        memory: what it has on its device, which it can do without between batches; saves can be made meanwhile.

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
        from hpcrl.engines.titan.attention import goes_by_sequence
        from hpcrl.engines.titan.build import build_model, load_weights
        from hpcrl.engines.titan.head import default_chunk
        from hpcrl.engines.titan.model import model_spec

        self.settings, self.step = settings, 0
        self._ranks = Ranks(process, collective_s=settings.collective_s)
        device, dtype = self._ranks.device, DTYPES[settings.compute_dtype]
        chunk = settings.logits_chunk or default_chunk(self._shape.vocabulary, device)
        self._spec = model_spec(self._shape, logits_chunk=chunk, temperature=settings.temperature)
        try:
            by_sequence = goes_by_sequence(settings, device, self._shape.head_dim)
            self._model: Any = build_model(self._spec, settings, world_size=process.world_size, device=device)
            # Rank 0 says, as another may see the folder later.
            self._blank = bool(self._ranks.say(int(saves is not None and bool(look(saves).committed))))
            if not self._blank:
                load_weights(self._model, self._spec, folder, world_size=process.world_size)
        except BaseException:
            self._ranks.close()
            raise
        cost = 0.0 if by_sequence else self._shape.pair_cost
        self._layout = Layout(settings.tokens_per_microbatch, cost, one_row=by_sequence)
        # FSDP casts by itself, and in float32 there is nothing to cast.
        plain = process.world_size > 1 or settings.compute_dtype == "float32"
        self._weights: Any = Weights(self._model) if plain else CastWeights(self._model, dtype, blank=self._blank)
        self._passes = Passes(self._model, settings, device, by_sequence=by_sequence)
        self._optimizer = build_optimizer(self._weights.named, settings, device, blank=self._blank)
        self._saver: Saver | None = None
        self._held = Held(device)
        self.memory = Residence(self._weights, self._optimizer, device, self._copied)

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
            expectation on policy), ``samples``, ``samples_kept``, ``samples_masked`` (by ``gap_mask``), ``tokens`` (response
            tokens trained on), ``tokens_packed`` (computed, with prompts and padding), ``tokens_per_s``, ``updates``, and
            seconds ``pack_s``, ``forward_s``, ``backward_s``, ``optimizer_s``, ``train_s``, and ``host_s``: of ``train_s``,
            until the host had told a GPU all that it was to do. Where both are the same, the host is what the step waits for.

        Raises:
            SampleError: a sample that cannot be trained on; nothing was trained.
            WorldError: rank 0 refused the batch.
            TrainingDiverged: a loss or gradient is not finite.
            OutOfMemory: a GPU does not hold a micro-batch; gradients may be left.
        """
        figures = self._train(samples, updates=self.settings.minibatches)
        self.step += 1
        return figures

    def train_part(self, samples: Sequence[Sample] | None) -> dict[str, float]:
        """One optimizer step on a part of a batch, whole groups, which :meth:`end_parts` ends. A collective.

        The loss is normalised over the part, as it is over each of ``minibatches``; the proximal policy is the one that the
        part finds. Arguments, figures and errors are as of :meth:`train_batch`.
        """
        return self._train(samples, updates=1)

    def end_parts(self) -> None:
        """The batch whose parts were trained is whole: the step counts."""
        self.step += 1

    def hold(self) -> None:
        """Copy all that training goes on from to the host, for :meth:`roll_back`."""
        self._held.keep(self._state())

    def roll_back(self) -> None:
        """Be again as at the last :meth:`hold`, after parts of a batch that is not to be ended."""
        self._copied()
        self._held.put_back(self._state())
        self._weights.clear_gradients()
        self._weights.renew()

    def preflight(self, longest: int) -> dict[str, float]:
        """Forward and backward of a full micro-batch of the longest samples; nothing of it stays. A collective.

        Args:
            longest: tokens of a sample, prompt and response; 0 takes the context.

        Returns:
            ``tokens`` computed, ``seconds``, and ``gpu_gib``, the most memory of a GPU that it took [GiB]; 0 on a CPU.

        Raises:
            OutOfMemory: a GPU does not hold it.
        """
        settings, device = self.settings, self._ranks.device
        longest = min(longest or self._shape.context, self._shape.context)
        batch = longest_samples(longest, settings.tokens_per_microbatch, self._shape.vocabulary)
        micros = self._layout.pack(batch, range(len(batch)))
        weights = np.full(len(batch), 1 / sum(len(sample.response_ids) for sample in batch))
        random = torch.get_rng_state()
        figures = Figures(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with explained(settings, device, "preflight at the longest length", longest), figures.clock():
            for micro in micros:
                loss, _ = self._passes.forward(micro, self._passes.token_loss(micro, batch, weights, None, figures))
                torch.autograd.backward(loss)
                self._weights.collect_gradients()
        self._weights.clear_gradients()
        torch.set_rng_state(random)
        seconds = figures.reduced(self._ranks)["train_s"]
        most = torch.cuda.max_memory_allocated(device) / (1 << 30) if device.type == "cuda" else 0.0
        high = float(self._ranks.reduce_max(np.array([most]))[0])
        return {"tokens": sum(micro.tokens.size for micro in micros), "seconds": seconds, "gpu_gib": high}

    def logprobs(self, samples: Sequence[Sample] | None) -> list[np.ndarray]:
        """Log-probabilities of the response tokens under the current weights, float32 (response,) a sample. A collective.

        Args:
            samples: on rank 0, None elsewhere; their advantages do not matter.

        Returns:
            On every rank, in the order of the samples.
        """
        batch = self._ranks.share_batch(samples, self._check)
        work = plan_scoring(batch, self._layout, self._ranks)
        scored = self._score(work.micro)
        lengths = [len(sample.response_ids) for sample in batch]
        flat = np.zeros(sum(lengths))
        starts = np.cumsum([0, *lengths])
        for index, values in scored.items():
            flat[starts[index] : starts[index + 1]] = values.cpu().numpy()
        flat = self._ranks.reduce(flat).astype(np.float32)
        return [flat[start:end] for start, end in pairwise(starts)]

    def hf_specs(self) -> list[TensorSpec]:
        """What :meth:`hf_tensors` gives, in its order; the same on every rank. A collective."""
        dtype = DTYPES[self.settings.publish_dtype]
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
        dtype = DTYPES[self.settings.publish_dtype]
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
        self.memory.close()
        self._model = self._optimizer = self._weights = None

    def _to_publish(self) -> list[tuple[str, torch.Tensor]]:
        held = self._model.state_dict().items()
        return [(name, tensor) for name, tensor in held if not (self._shape.tied and name == "lm_head.weight")]

    def _check(self, samples: Sequence[Sample]) -> None:
        check_samples(samples, vocabulary=self._shape.vocabulary, context=self._shape.context)

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
        return self.memory.state()

    def _copied(self) -> None:
        """Wait until a save that is under way has copied the state."""
        if self._saver is not None:
            self._saver.copied()

    def _train(self, samples: Sequence[Sample] | None, *, updates: int) -> dict[str, float]:
        settings, figures = self.settings, Figures(self._ranks.device)
        with explained(settings, self._ranks.device, f"step {self.step}", self._shape.context), figures.clock():
            with figures.time("pack_s", host=True):
                batch = self._ranks.share_batch(samples, self._check)
                steps = plan_steps(batch, settings, self._layout, self._ranks, updates=updates)
            proximal = None
            if steps and (len(steps) > 1 or settings.gap_mask is not None):
                proximal = self._score([micro for step in steps for micro in step.micro])
                self._mask_far(steps, batch, proximal, figures)
            lr = learning_rate(self.step, settings)
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            for step in steps:
                self._update(step, batch, proximal, figures)
        kept = sum(sample.advantage != 0 for sample in batch)
        return {"lr": lr, "samples": len(batch), "samples_kept": kept, "updates": len(steps), **figures.reduced(self._ranks)}

    def _mask_far(
        self, steps: Sequence[Work], batch: Sequence[Sample], proximal: dict[int, torch.Tensor], figures: Figures
    ) -> None:
        """Give samples that ``gap_mask`` is for no weight; the others' stay what they are."""
        if self.settings.gap_mask is None:
            return
        far = self._ranks.reduce(mean_gaps(proximal, batch)) > self.settings.gap_mask
        for step in steps:
            step.weights[far] = 0.0
        figures.set(samples_masked=float(far.sum()))

    def _update(self, work: Work, batch: Sequence[Sample], proximal: dict[int, torch.Tensor] | None, figures: Figures) -> None:
        done = []
        for number in range(work.rounds):
            micro = work.micro[number] if number < len(work.micro) else MicroBatch.empty()
            loss_of = self._passes.token_loss(micro, batch, work.weights, proximal, figures)
            with figures.time("forward_s"):
                loss, logprobs = self._passes.forward(micro, loss_of)
            with figures.time("backward_s"):
                torch.autograd.backward(loss)
                self._weights.collect_gradients()
            done.append((micro, loss.detach(), logprobs))
            figures.add(tokens_packed=micro.tokens.size if micro.samples else 0)
        # Only here the host waits for a GPU: whatever was looked at before would let it run dry.
        losses = torch.stack([loss for _, loss, _ in done]).double().cpu().numpy()
        self._require_finite(losses, done)
        figures.add(loss=float(losses.sum()))
        self._copied()
        with figures.time("optimizer_s"):
            norm = clip_gradients(self._weights.named, self.settings.max_grad_norm)
            if not np.isfinite(norm):
                self._diverged(f"the gradient norm is {norm}")
            figures.set(grad_norm=norm)
            self._optimizer.step()
            self._weights.clear_gradients()
            self._weights.renew()

    def _score(self, micros: Sequence[MicroBatch]) -> dict[int, torch.Tensor]:
        return self._passes.score(micros, int(self._ranks.reduce_max(np.array([len(micros)]))[0]))

    def _require_finite(self, losses: np.ndarray, done: Sequence[tuple[MicroBatch, torch.Tensor, torch.Tensor]]) -> None:
        broken = np.flatnonzero(~np.isfinite(losses))
        # All ranks stop together.
        if not self._ranks.reduce_max(np.array([len(broken)]))[0]:
            return
        if not len(broken):
            self._diverged("a loss of another rank is not finite")
        micro, _, logprobs = done[broken[0]]
        owners = np.repeat(micro.samples, micro.lengths)
        bad = (~torch.isfinite(logprobs)).nonzero()
        who = f"sample {owners[int(bad[0])]}" if len(bad) else f"one of samples {sorted(micro.samples)}"
        self._diverged(f"the loss of {who} of the batch is {losses[broken[0]]}")

    def _diverged(self, what: str) -> NoReturn:
        self._weights.clear_gradients()
        raise TrainingDiverged(
            f"step {self.step}: {what}; the weights are those before the update; go back to an earlier save with a lower "
            "learning rate"
        )
