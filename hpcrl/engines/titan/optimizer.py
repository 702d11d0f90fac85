"""The optimizer of named weights, and clipping of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpcrl.engines.titan.settings import TrainerSettings

Named = Sequence[tuple[str, torch.nn.Parameter]]


def build_optimizer(named: Named, settings: TrainerSettings, device: torch.device, *, blank: bool = False) -> Any:
    """Fused AdamW with its state made, so that a save can be loaded before the first step.

    Vectors (norms and biases) do not decay.

    Args:
        blank: a save will be loaded, so that memory is filled only once.
    """
    matrices: list[torch.Tensor] = [p for _, p in named if p.ndim >= 2]
    vectors: list[torch.Tensor] = [p for _, p in named if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.adam_eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    moment = torch.empty_like if blank else torch.zeros_like
    for _, p in named:
        optimizer.state[p] = {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": moment(p),
            "exp_avg_sq": moment(p),
        }
    return optimizer


def clip_gradients(named: Named, limit: float | None) -> float:
    """Scale the gradients down to a 2-norm of ``limit`` and return the norm before; not finite, they stay. A collective."""
    grads = [p.grad for _, p in named if p.grad is not None]
    total: Any = torch.nn.utils.get_total_norm(grads)
    norm = float(total.full_tensor() if hasattr(total, "full_tensor") else total)
    if limit is not None and limit < norm < float("inf"):
        torch._foreach_mul_([grad.to_local() if hasattr(grad, "to_local") else grad for grad in grads], limit / norm)
    return norm


def state_of(named: Named, optimizer: Any) -> dict[str, Any]:
    """All that training goes on from, by name: ``model.NAME`` and ``optimizer.NAME.KEY``. The tensors are those in use."""
    state: dict[str, Any] = {}
    for name, p in named:
        state[f"model.{name}"] = p.detach()
        state.update({f"optimizer.{name}.{key}": value for key, value in optimizer.state[p].items()})
    return state
