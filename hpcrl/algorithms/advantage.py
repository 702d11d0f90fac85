"""Group-relative advantages.

GRPO: Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1.2 (outcome supervision): A_i = (r_i - mean(r)) / std(r).
Dr. GRPO: Liu et al. 2025, "Understanding R1-Zero-Like Training", arXiv:2503.20783, section 3.2: A_i = r_i - mean(r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Advantages:
    """Result of :func:`group_advantages`.

    Attributes:
        values: float32 (samples,).
        has_signal: bool (samples,), False for every sample of a group whose rewards are all equal; its advantage is 0.
    """

    values: np.ndarray
    has_signal: np.ndarray


def group_advantages(rewards: np.ndarray, groups: np.ndarray, *, divide_by_std: bool = True, eps: float = 1e-4) -> Advantages:
    """Advantage of each sample against the other samples of its prompt.

    Args:
        rewards: float (samples,).
        groups: any integers (samples,); samples with the same value answer the same prompt. Groups may differ in size
            and need not be contiguous. A group of one has no signal.
        divide_by_std: GRPO if True, else Dr. GRPO. The standard deviation is the unbiased one (n - 1).
        eps: added to the standard deviation.

    Raises:
        ValueError: shapes differ, or a reward is not finite (names the sample).
    """
    rewards, groups = np.asarray(rewards, np.float64), np.asarray(groups)
    if rewards.ndim != 1 or rewards.shape != groups.shape:
        raise ValueError(f"rewards and groups must be of one length, got shapes {rewards.shape} and {groups.shape}")
    bad = np.flatnonzero(~np.isfinite(rewards))
    if bad.size:
        raise ValueError(f"reward of sample {bad[0]} is {rewards[bad[0]]}; rewards must be finite")
    _, member = np.unique(groups, return_inverse=True)
    size = np.bincount(member)
    low = np.full(size.shape, np.inf)
    high = np.full(size.shape, -np.inf)
    np.minimum.at(low, member, rewards)
    np.maximum.at(high, member, rewards)
    has_signal = (high > low)[member]
    mean = np.bincount(member, rewards) / np.maximum(size, 1)
    centred = rewards - mean[member]
    if divide_by_std:
        std = np.sqrt(np.bincount(member, centred**2) / np.maximum(size - 1, 1))
        centred = centred / (std[member] + eps)
    return Advantages(np.where(has_signal, centred, 0.0).astype(np.float32), has_signal)
