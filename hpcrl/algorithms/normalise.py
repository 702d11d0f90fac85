"""How much each token counts in a batch's loss.

"token": every token counts the same, Yu et al. 2025, "DAPO", arXiv:2503.14476, equation 8: 1 / sum_i |o_i|.
"sequence": every sample counts the same, Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, equation 3: 1 / (G |o_i|).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Normalisation = Literal["token", "sequence"]


def token_weights(lengths: np.ndarray, mode: Normalisation) -> np.ndarray:
    """Weight of each token of each sample, float64 (samples,).

    Call it with the lengths of the whole batch, whichever rank holds which sample: then the weights of all tokens on all
    ranks sum to 1, so that the sum over ranks of weighted losses is the batch's mean however the batch is spread.

    Args:
        lengths: response tokens of every sample (samples,). A sample without tokens counts for nothing.

    Raises:
        ValueError: unknown mode, a negative length, or no token at all.
    """
    lengths = np.asarray(lengths, np.int64)
    if lengths.size and lengths.min() < 0:
        raise ValueError(f"length of sample {int(lengths.argmin())} is negative")
    filled = lengths > 0
    if not filled.any():
        raise ValueError("no response tokens to normalise over")
    if mode == "token":
        return np.where(filled, 1.0 / lengths.sum(), 0.0)
    if mode == "sequence":
        return np.where(filled, 1.0 / (filled.sum() * np.maximum(lengths, 1)), 0.0)
    raise ValueError(f"normalisation must be 'token' or 'sequence', not {mode!r}")
