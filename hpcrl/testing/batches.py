"""Random samples for a trainer."""

from __future__ import annotations

import numpy as np

from hpcrl.engines.titan.samples import Sample

VOCABULARY = 128


def make_batch(seed: int = 0, groups: int = 3, each: int = 4, vocabulary: int = VOCABULARY, longest: int = 12) -> list[Sample]:
    """Groups of random prompts and responses of random lengths; the last sample of each group has no signal.

    No padding token: transformers gives its embedding no gradient, wherever it stands.

    Args:
        longest: responses are shorter than this [tokens].
    """
    rng = np.random.default_rng(seed)
    samples = []
    for group in range(groups):
        prompt = rng.integers(2, vocabulary, rng.integers(3, 9)).astype(np.int32)
        for number in range(each):
            response = rng.integers(2, vocabulary, rng.integers(1, longest)).astype(np.int32)
            samples.append(
                Sample(
                    prompt_ids=prompt,
                    response_ids=response,
                    behaviour_logprobs=rng.normal(-np.log(vocabulary), 0.1, len(response)).astype(np.float32),
                    advantage=float(rng.normal()) if number < each - 1 else 0.0,
                    group=group,
                )
            )
    return samples
