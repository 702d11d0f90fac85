"""The language-model head that gives log-probabilities of chosen tokens and never holds all logits.

It projects only the positions asked for, a chunk at a time. In training the loss of each chunk is known from its
log-probabilities alone, so its gradient is formed while the chunk's logits are still there, and nothing is computed twice.
The idea of a fused linear loss: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2.

Import only after :func:`hpcrl.engines.titan.compat.enable`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.models.common.linear import Linear

# Of float32 logits on a GPU, where few large products cost less than many launches.
_LOGITS_BYTES = 1 << 30
_CPU_CHUNK = 512

# (log-probabilities (n,), first, last) -> loss of each of the targets [first, last), whose sum is minimised.
TokenLoss = Callable[[torch.Tensor, int, int], torch.Tensor]


def default_chunk(vocabulary: int, device: torch.device) -> int:
    """How many tokens' logits to hold at once on a device."""
    return _CPU_CHUNK if device.type == "cpu" else max(_CPU_CHUNK, _LOGITS_BYTES // (4 * vocabulary))


@dataclass(frozen=True)
class Task:
    """What the next forward pass is for.

    Attributes:
        source: int64 (targets,), flat positions whose hidden state predicts each target.
        targets: int64 (targets,), token ids.
        loss: None to get log-probabilities only.
    """

    source: torch.Tensor
    targets: torch.Tensor
    loss: TokenLoss | None = None


class LogProbHead(Linear):  # type: ignore[misc]
    """A linear layer whose forward pass does a :class:`Task` instead of returning logits.

    Being called inside the model's forward pass, once, it works with FSDP and tied weights like any head.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):  # type: ignore[misc]
        """Shape as for a linear layer."""

        chunk: int = 512
        temperature: float = 1.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.chunk, self.temperature = config.chunk, config.temperature
        self.task: Task | None = None

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(sum of losses, a differentiable scalar; log-probabilities (targets,), not differentiable), both float32.

        Args:
            hidden: (rows, length, width).
        """
        task = self.task
        if task is None:
            raise RuntimeError("set the head's task before the forward pass")
        chosen = hidden.flatten(0, 1).index_select(0, task.source)
        apply: Any = _HeadLoss.apply
        loss, logprobs = apply(chosen, self.weight, task, self.chunk, self.temperature)
        return loss, logprobs


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, task: Task, chunk: int, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(task.targets)
        logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        learns = task.loss is not None and ctx.needs_input_grad[0]
        hidden_grad = torch.zeros_like(hidden) if learns else None
        weight_grad = None
        for first in range(0, count, chunk):
            last = min(first + chunk, count)
            part, targets = hidden[first:last], task.targets[first:last, None]
            logits = (part @ weight.t()).float()
            if temperature != 1.0:
                logits.div_(temperature)
            logits.sub_(logits.logsumexp(-1, keepdim=True))
            logprobs[first:last] = logits.gather(1, targets)[:, 0]
            if task.loss is None:
                continue
            with torch.enable_grad():
                leaf = logprobs[first:last].clone().requires_grad_(learns)
                loss = task.loss(leaf, first, last).sum()
            total += loss.detach()
            if hidden_grad is None:
                continue
            (slope,) = torch.autograd.grad(loss, leaf)
            slope = (slope / temperature)[:, None]
            # d logprob(target) / d logits = onehot(target) - softmax
            logits.exp_().mul_(-slope).scatter_add_(1, targets, slope)
            error = logits.to(hidden.dtype)
            del logits
            torch.mm(error, weight, out=hidden_grad[first:last])
            step = error.t() @ part
            # Further chunks add up in float32, as one large product would inside.
            weight_grad = step if weight_grad is None else weight_grad.float().add_(step)
        if hidden_grad is not None:
            ctx.save_for_backward(
                hidden_grad, torch.zeros_like(weight) if weight_grad is None else weight_grad.to(weight.dtype)
            )
        ctx.mark_non_differentiable(logprobs)
        return total, logprobs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors
        # To look at it would make the host wait for a GPU.
        if grads[0].device.type != "cpu" or float(grads[0]) != 1.0:
            hidden_grad, weight_grad = hidden_grad.mul_(grads[0]), weight_grad.mul_(grads[0])
        return hidden_grad, weight_grad, None, None, None
