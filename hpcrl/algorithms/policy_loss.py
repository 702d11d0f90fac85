"""Clipped policy loss with behaviour, proximal and current policies kept apart.

- current: the policy being optimised; behaviour: the one that generated the tokens; proximal: the one that clipping holds the
  current one near, which is the current one at the start of the batch.
- Clipping: Schulman et al. 2017, "PPO", arXiv:1707.06347, equation 7, with separate lower and upper bounds, Yu et al. 2025,
  "DAPO", arXiv:2503.14476, equation 10.
- Decoupled proximal policy: Hilton et al. 2022, "Batch size-invariance for policy optimization", arXiv:2110.00641, equation 2.
- Truncated importance weight: Espeholt et al. 2018, "IMPALA", arXiv:1802.01561, section 4.1 (rho-bar), on tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PolicyLoss:
    """Per token, each of the shape of the log-probabilities given.

    Attributes:
        loss: to minimise, differentiable with respect to the current log-probabilities.
        clipped: bool, where the clipped branch was taken, so that the token gives no gradient.
        kl: estimate of KL(proximal || current), at least 0, Schulman's k3: (ratio - 1) - log ratio, not differentiable.
        gap: |proximal - behaviour| log-probability: how far training and generation disagree, not differentiable.
    """

    loss: torch.Tensor
    clipped: torch.Tensor
    kl: torch.Tensor
    gap: torch.Tensor


def policy_loss(
    current: torch.Tensor,
    proximal: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    importance_cap: float | None = None,
) -> PolicyLoss:
    """L = -w min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), rho = exp(current - proximal), per token.

    Args:
        current: natural log-probabilities of the tokens, float (tokens,); the only input that gets a gradient.
        proximal, behaviour: the same under the other two policies.
        advantages: of the sample that each token belongs to, (tokens,).
        importance_cap: C in w = min(exp(proximal - behaviour), C); None leaves w = 1.
    """
    proximal, behaviour = proximal.detach(), behaviour.detach()
    log_ratio = current - proximal
    ratio = log_ratio.exp()
    plain = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    objective = torch.minimum(plain, bounded)
    if importance_cap is not None:
        objective = objective * (proximal - behaviour).exp().clamp(max=importance_cap)
    return PolicyLoss(
        loss=-objective,
        clipped=bounded.detach() < plain.detach(),
        kl=(ratio - 1 - log_ratio).detach(),
        gap=(proximal - behaviour).abs(),
    )
