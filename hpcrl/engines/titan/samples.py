"""One answer to learn from, and its flat form in which a batch travels between ranks without pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcrl.run.errors import HpcrlError


class SampleError(HpcrlError):
    """A sample cannot be trained on; names its index in the batch."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A prompt and one response to it.

    Attributes:
        prompt_ids: int32 (prompt,), at least one token.
        response_ids: int32 (response,), at least one token.
        behaviour_logprobs: float32 (response,), natural log-probabilities under the policy that generated each token.
        advantage: of the whole response.
        group: samples with the same value must have the same prompt.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    behaviour_logprobs: np.ndarray
    advantage: float
    group: int

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def check_samples(samples: Sequence[Sample], *, vocabulary: int, context: int) -> None:
    """Refuse what would crash or poison training later.

    Raises:
        SampleError: the first sample that is wrong and why.
    """
    prompts: dict[int, np.ndarray] = {}
    for index, sample in enumerate(samples):
        problem = _problem(sample, vocabulary, context)
        if problem is None and not np.array_equal(prompts.setdefault(sample.group, sample.prompt_ids), sample.prompt_ids):
            problem = "its prompt differs from that of an earlier sample of the group"
        if problem is not None:
            raise SampleError(f"sample {index} of {len(samples)} (group {sample.group}): {problem}")


def _problem(sample: Sample, vocabulary: int, context: int) -> str | None:
    if not len(sample.prompt_ids) or not len(sample.response_ids):
        return f"it has {len(sample.prompt_ids)} prompt and {len(sample.response_ids)} response tokens; both need at least 1"
    if len(sample.response_ids) != len(sample.behaviour_logprobs):
        return f"{len(sample.response_ids)} response tokens but {len(sample.behaviour_logprobs)} log-probabilities"
    if len(sample) > context:
        return f"its {len(sample)} tokens exceed the model's context of {context}"
    for name, ids in (("prompt", sample.prompt_ids), ("response", sample.response_ids)):
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            return f"a {name} token lies outside the model's vocabulary of {vocabulary}"
    if not np.isfinite(sample.behaviour_logprobs).all():
        return "a behaviour log-probability is not finite"
    if not np.isfinite(sample.advantage):
        return f"its advantage is {sample.advantage}"
    return None


def flatten(samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
    """(int64, float32) arrays that :func:`unflatten` turns back into equal samples."""
    table = np.array([[len(s.prompt_ids), len(s.response_ids), s.group] for s in samples], np.int64).reshape(-1, 3)
    whole = [np.array([len(samples)]), table.ravel(), *(part for s in samples for part in (s.prompt_ids, s.response_ids))]
    real = [np.array([s.advantage for s in samples], np.float32), *(s.behaviour_logprobs for s in samples)]
    return np.concatenate(whole).astype(np.int64), np.concatenate(real).astype(np.float32)


def unflatten(whole: np.ndarray, real: np.ndarray) -> list[Sample]:
    """Samples back from :func:`flatten`; their arrays are views."""
    count = int(whole[0])
    table = whole[1 : 1 + 3 * count].reshape(count, 3)
    tokens, floats = whole[1 + 3 * count :].astype(np.int32), real[count:]
    samples, token, number = [], 0, 0
    for (prompt, response, group), advantage in zip(table.tolist(), real[:count].tolist(), strict=True):
        middle = token + prompt
        samples.append(
            Sample(
                prompt_ids=tokens[token:middle],
                response_ids=tokens[middle : middle + response],
                behaviour_logprobs=floats[number : number + response],
                advantage=advantage,
                group=group,
            )
        )
        token, number = middle + response, number + response
    return samples
