"""What the trainer can be told. Standard library only, so that a recipe may hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


class ProcessInfo(Protocol):
    """What the engine needs to know about its process; a role's identity has it."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def world_size(self) -> int: ...  # noqa: D102
    @property
    def cpus(self) -> int: ...  # noqa: D102
    @property
    def gpus(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def world_address(self) -> str: ...  # noqa: D102
    @property
    def world_port(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class World:
    """A :class:`ProcessInfo` by itself. The default is one process that needs no port.

    Attributes:
        cpus: threads of this process.
        gpus: GPU indexes that the process may use; it uses the first. Empty: it trains on the CPU.
        world_address, world_port: where rank 0 listens; not used by a world of one.
    """

    rank: int = 0
    world_size: int = 1
    cpus: int = 1
    gpus: tuple[int, ...] = ()
    world_address: str = "127.0.0.1"
    world_port: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Settings of :class:`~hpcrl.engines.titan.trainer.TitanTrainer`.

    Attributes:
        model: folder in Hugging Face layout to start from.
        lr: learning rate after warm-up.
        lr_schedule: after ``warmup_steps`` of linear rise; linear and cosine fall to 0 at ``total_steps``.
        weight_decay: decoupled (AdamW); not applied to vectors (norms).
        max_grad_norm: gradients are scaled down to this 2-norm; None does not clip.
        compute_dtype: of matrix products and activations; weights and optimizer state are float32 always.
        tokens_per_microbatch: the most tokens of one forward pass, padding included; one longer sample goes alone.
        logits_chunk: tokens whose logits are in memory at once; None takes 512 on a CPU, and on a GPU as many as make float32
            logits of 1 GiB.
        minibatches: optimizer steps on each batch. With more than one, the proximal policy is the policy at the start of
            the batch; with one it is the current policy.
        normalisation: see :mod:`hpcrl.algorithms.normalise`. It runs over the samples kept for training: samples with
            an advantage of 0 are dropped first, as they give no gradient.
        temperature: the sampling temperature that the behaviour log-probabilities belong to.
        clip_low, clip_high, importance_cap: see :mod:`hpcrl.algorithms.policy_loss`.
        gap_warn, gap_stop: limits of the mean |trainer - rollout| log-probability over a step's tokens [nats]. Above the first
            a step is warned of; ``gap_steps`` steps in a row above the second end the run. None switches a limit off.
        gap_mask: samples whose mean |trainer - rollout| log-probability is above this count for nothing [nats]. It needs a
            forward pass before the first update, which several ``minibatches`` make anyway. None trains on all.
        activation_checkpointing: what the backward pass computes again instead of keeping it: nothing, all but the costly
            results and every second matrix product (selective), or the whole of each layer (full).
        attention: "masked" takes any device and dtype and costs the square of a row's length; "varlen" is flash attention
            over each sequence by itself, on a GPU in bfloat16. "auto" takes varlen where it can.
        compile: let torch.compile fuse each layer's operations. The first steps take minutes longer.
        preflight: before the first step, try the longest sample and a full micro-batch, so that too little memory shows before
            anything is generated. None does it on a GPU.
        context: the most tokens of one sample; None takes the model's.
        keep_states: newest saves of the whole state that stay.
        keep_states_every: saves of steps that are a multiple of this stay too; 0 = none.
        keep_best_states: so many saves with the highest ``best_by`` stay too.
        best_by: a figure of the step, such as ``reward``; with ``-`` before it, the lowest are the best.
        collective_s: deadline of one collective between ranks [s].
    """

    model: str
    lr: float = 1e-6
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    publish_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    tokens_per_microbatch: int = 4096
    logits_chunk: int | None = None
    minibatches: int = 1
    normalisation: Literal["token", "sequence"] = "token"
    temperature: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float | None = 2.0
    gap_warn: float | None = 0.1
    gap_stop: float | None = 1.0
    gap_steps: int = 3
    gap_mask: float | None = None
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    attention: Literal["auto", "masked", "varlen"] = "auto"
    compile: bool = False
    preflight: bool | None = None
    context: int | None = None
    keep_states: int = 2
    keep_states_every: int = 0
    keep_best_states: int = 0
    best_by: str = "reward"
    collective_s: float = 1800.0

    def problems(self) -> list[str]:
        """Everything wrong with the values themselves, a sentence each."""
        wrong = []
        for name in ("tokens_per_microbatch", "minibatches", "keep_states", "gap_steps"):
            if getattr(self, name) < 1:
                wrong.append(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("lr", "temperature", "adam_eps", "collective_s"):
            if not getattr(self, name) > 0:
                wrong.append(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay", "clip_low", "clip_high", "keep_states_every", "keep_best_states"):
            if getattr(self, name) < 0:
                wrong.append(f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("max_grad_norm", "importance_cap", "context", "logits_chunk", "gap_warn", "gap_stop", "gap_mask"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                wrong.append(f"{name} must be above 0 or None, not {value}")
        choices = {
            "lr_schedule": ("constant", "linear", "cosine"),
            "compute_dtype": ("bfloat16", "float32"),
            "publish_dtype": ("bfloat16", "float32"),
            "normalisation": ("token", "sequence"),
            "activation_checkpointing": ("none", "selective", "full"),
            "attention": ("auto", "masked", "varlen"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                wrong.append(f"{name} must be one of {list(allowed)}, not {getattr(self, name)!r}")
        if self.lr_schedule != "constant" and (self.total_steps is None or self.total_steps <= self.warmup_steps):
            wrong.append(f"lr_schedule {self.lr_schedule!r} needs total_steps above warmup_steps ({self.warmup_steps})")
        return wrong
