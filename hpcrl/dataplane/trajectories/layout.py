"""Where trajectories lie, and their columns. Imports no HDF5: the trainer uses it."""

from __future__ import annotations

from pathlib import Path

from hpcrl.recipe import Column, Stream
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.disk import FileDamaged
from hpcrl.run.sealed import read_sealed

BEGAN = "began.json"
NAME = "trajectories"

# outcome: a value of hpcrl.data.rewards.Outcome. versions: the policy version that made each response token.
STREAM = Stream(
    name=NAME,
    columns=(
        Column(name="step", dtype="int32"),
        Column(name="prompt_number", dtype="int64"),
        Column(name="sample_index", dtype="int32"),
        Column(name="reward", dtype="float32"),
        Column(name="outcome", dtype="int8"),
        Column(name="advantage", dtype="float32"),
        Column(name="prompt_ids", dtype="int32", ragged=True),
        Column(name="response_ids", dtype="int32", ragged=True),
        Column(name="rollout_logprobs", dtype="float32", ragged=True),
        Column(name="versions", dtype="int32", ragged=True),
        Column(name="response", dtype="str"),
        Column(name="item", dtype="str"),
        Column(name="finish", dtype="str"),
    ),
    prompt="prompt_number",
    version="versions",
    tokens=("prompt_ids", "response_ids"),
)
# Of these the trainer itself says what they are.
_OWN = ("step", "advantage")
# What is kept of each row of the stream of samples.
TAKEN = tuple(column.name for column in STREAM.columns if column.name not in _OWN)


def folder_of(attempt: Attempt) -> Path:
    """Where an attempt's lie."""
    return attempt.path / NAME


def file_name(first_step: int) -> str:
    """Names sort by the step."""
    return f"step-{first_step:08d}.h5"


def files(run: RunDirectory) -> list[tuple[Path, int | None]]:
    """Every file of a run, oldest first, and the last of its steps that counts; None where all do.

    Steps beyond the one that a later attempt went on from were lost, and trained again there.
    """
    found: list[tuple[Path, int | None]] = []
    upto: int | None = None
    for attempt in reversed(run.attempts()):
        folder = folder_of(attempt)
        paths = sorted(folder.glob("step-*.h5"), reverse=True)
        found += [(path, upto) for path in paths]
        after = _after(folder)
        if after is not None:
            upto = after if upto is None else min(upto, after)
    return found[::-1]


def _after(folder: Path) -> int | None:
    try:
        after = read_sealed(folder / BEGAN)["after"]
    except (FileDamaged, KeyError):
        return None
    return int(after)
