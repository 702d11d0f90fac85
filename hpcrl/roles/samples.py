"""The stream that sampled responses travel in: one row a sample, one block the samples of one prompt.

The rollout role creates the rows, the reward role fills ``reward`` and ``outcome``, the trainer reads and clears them.
"""

from __future__ import annotations

from hpcrl.recipe import Column, Stream

SAMPLES = "samples"

# prompt_number: position in the prompt stream; step: the batch that it belongs to; sample_index: within its prompt.
# versions: the policy version that made each response token. item: the prompt's record as JSON, for the reward.
CREATED = (
    Column(name="prompt_number", dtype="int64"),
    Column(name="sample_index", dtype="int32"),
    Column(name="step", dtype="int32"),
    Column(name="prompt_ids", dtype="int32", ragged=True),
    Column(name="response_ids", dtype="int32", ragged=True),
    Column(name="rollout_logprobs", dtype="float32", ragged=True, finite=True),
    Column(name="versions", dtype="int32", ragged=True),
    Column(name="response", dtype="str"),
    Column(name="item", dtype="str"),
    Column(name="finish", dtype="str"),
)
# outcome: a value of hpcrl.data.rewards.Outcome.
GRADED = (Column(name="reward", dtype="float32"), Column(name="outcome", dtype="int8"))

CREATED_NAMES = tuple(column.name for column in CREATED)
GRADED_NAMES = tuple(column.name for column in GRADED)
# What a trainer needs of each sample.
TRAINED_NAMES = ("prompt_number", "prompt_ids", "response_ids", "rollout_logprobs", "versions", "reward")


def samples_stream(*, samples_per_prompt: int, name: str = SAMPLES, capacity_rows: int = 65_536) -> Stream:
    """The stream of sampled responses, with a block for each prompt."""
    return Stream(
        name=name,
        columns=CREATED + GRADED,
        block_rows=samples_per_prompt,
        capacity_rows=capacity_rows,
        prompt="prompt_number",
        version="versions",
        tokens=("prompt_ids", "response_ids"),
        aligned=(("response_ids", "rollout_logprobs", "versions"),),
    )
