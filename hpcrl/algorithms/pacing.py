"""How far generation may run ahead of training. Batches and versions both count from 0.

Training on batch ``b`` turns policy version ``b`` into version ``b + 1``. Generating batch ``b`` with version ``v`` therefore
trains on tokens that are ``b - v`` versions old.
"""

from __future__ import annotations


def version_needed(batch_index: int, *, window: int | None, version_lag: int) -> int:
    """The smallest live policy version with which batch ``batch_index`` may be generated.

    Args:
        window: pacing window W. 1 is lock-step (batch b needs version b), 2 generates one batch ahead, None has no window
            and shares the lag between starting early and :func:`lateness`.
        version_lag: the most versions between the one that generates a token and the one that trains on it. It holds
            whatever the window.

    Raises:
        ValueError: a negative batch or lag, or a window below 1.
    """
    if batch_index < 0:
        raise ValueError(f"batch_index must be at least 0, not {batch_index}")
    if version_lag < 0:
        raise ValueError(f"version_lag must be at least 0, not {version_lag}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 or None, not {window}")
    slip = lateness(window=window, version_lag=version_lag)
    ahead = version_lag - slip if window is None else min(window - 1, version_lag)
    return max(0, batch_index - ahead)


def lateness(*, window: int | None, version_lag: int) -> int:
    """How many steps after its turn a prompt may be trained, others standing in for it meanwhile.

    With a window, none: step s trains batch s. Without one, half of the allowed lag is for starting early and half for coming
    late, so that a token is never more than ``version_lag`` versions old when it is trained on.
    """
    return version_lag // 2 if window is None else 0


def may_start(batch_index: int, live_version: int, *, window: int | None, version_lag: int) -> bool:
    """Whether generation of a batch may start while ``live_version`` is the newest policy; errors as :func:`version_needed`."""
    return live_version >= version_needed(batch_index, window=window, version_lag=version_lag)
