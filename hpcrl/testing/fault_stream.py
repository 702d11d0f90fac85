"""A recipe without any model, for faults: two streams at full rate, each process with a durable note of what it has done.

Stream ``moved`` is to travel through storage units, ``local`` through the node's shared memory. Makers put prompts of four rows
into both, scorers fill a column, and each stream has a trainer whose journal is its checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrl.recipe import Column, Limits, Reads, Recipe, Role, RoleGroup, Schedule, Stream, Writes

if TYPE_CHECKING:
    from hpcrl.dataplane.interface import Batch
    from hpcrl.roles.context import RoleContext

MOVED, LOCAL = "moved", "local"
STREAMS = (MOVED, LOCAL)
ROWS, TOKENS = 4, 600
PUT, SCORED, TRAINED = "put", "scored", "trained"
_CREATED = (
    Column(name="number", dtype="int64"),
    Column(name="tokens", dtype="int32", ragged=True),
    Column(name="logprobs", dtype="float32", ragged=True, finite=True),
    Column(name="text", dtype="str"),
)
_SCORE = Column(name="score", dtype="float32")
_MADE = tuple(column.name for column in _CREATED)


@dataclass(frozen=True, kw_only=True)
class Make(Role):
    """Puts prompts until the file ``end`` is in the run's directory. Journal: ``put``, with stream, prompt, pid, began [s].

    Attributes:
        pause_s: between two prompts of a stream [s].
    """

    pause_s: float = 0.0

    def writes(self) -> tuple[Writes, ...]:
        """All but the score."""
        return tuple(Writes(stream=name, columns=_MADE, creates=True) for name in STREAMS)

    def run(self, context: RoleContext) -> None:
        """See the class."""
        end = context.attempt.run.path / "end"
        # No life uses the numbers of another: a put takes longer than a microsecond.
        number = context.identity.rank << 54 | time.time_ns() >> 10
        while not end.exists():
            context.raise_if_stopped()
            for stream in STREAMS:
                began = time.time()
                context.queue.put(stream, _rows(number))
                context.journal.write(PUT, stream=stream, prompt=number, pid=os.getpid(), began=began)
                number += 1
            time.sleep(self.pause_s)
        for stream in STREAMS:
            context.queue.close_stream(stream)


@dataclass(frozen=True, kw_only=True)
class Score(Role):
    """Fills in each row's score. Journal: ``scored``, with stream and pid."""

    def reads(self) -> tuple[Reads, ...]:
        """What the score is made of."""
        return tuple(Reads(stream=name, columns=("number", "tokens")) for name in STREAMS)

    def writes(self) -> tuple[Writes, ...]:
        """The score."""
        return tuple(Writes(stream=name, columns=(_SCORE.name,)) for name in STREAMS)

    def run(self, context: RoleContext) -> None:
        """Both streams at a time, to their ends."""
        with ThreadPoolExecutor(len(STREAMS)) as pool:
            for job in [pool.submit(self._score, context, stream) for stream in STREAMS]:
                job.result()

    def _score(self, context: RoleContext, stream: str) -> None:
        import numpy as np

        for batch in _batches(context, stream, ("number", "tokens")):
            scores = np.array([len(tokens) for tokens in batch.columns["tokens"]], np.float32)
            context.queue.fill(batch, {_SCORE.name: scores})
            context.journal.write(SCORED, stream=stream, pid=os.getpid())
        context.queue.close_stream(stream)


@dataclass(frozen=True, kw_only=True)
class Train(Role):
    """Trains the rows of a stream, each batch a step. Journal, its checkpoint: ``trained``, with stream, step, prompts, blocks
    (first row and rows of each) and pid."""

    stream: str

    def reads(self) -> tuple[Reads, ...]:
        """Everything; clears it."""
        return (Reads(stream=self.stream, columns=(*_MADE, _SCORE.name), final=True),)

    def run(self, context: RoleContext) -> None:
        """To the end of the stream, on from what the journal has."""
        step, blocks = _checkpoint(context.attempt.journal / f"{context.identity.name}.jsonl")
        # Killed before or after it had said so: nobody knows.
        context.queue.acknowledge(_of_blocks(self.stream, blocks))
        for batch in _batches(context, self.stream, (*_MADE, _SCORE.name)):
            prompts = _checked(batch)
            step += 1
            context.queue.trained(batch, step)
            held = [[int(block.row_ids[0]), len(block.row_ids)] for block in batch.blocks]
            context.journal.write(TRAINED, stream=self.stream, step=step, prompts=prompts, blocks=held, pid=os.getpid())
            context.queue.acknowledge(batch)


def recipe(pause_s: float = 0.0, *, spares: bool = True) -> Recipe:
    """The recipe."""
    streams = tuple(
        Stream(
            name=name,
            columns=(*_CREATED, _SCORE),
            block_rows=ROWS,
            capacity_rows=2000,
            prompt="number",
            tokens=("tokens",),
            aligned=(("tokens", "logprobs"),),
        )
        for name in STREAMS
    )
    return Recipe(
        name="faults",
        groups={
            "make": RoleGroup(role=Make(pause_s=pause_s), replicas=2),
            "score": RoleGroup(role=Score(), replicas=2),
            **{f"train_{name}": RoleGroup(role=Train(stream=name)) for name in STREAMS},
        },
        streams=streams,
        schedule=Schedule(steps=1, prompts_per_step=16, samples_per_prompt=ROWS, window=None),
        limits=Limits(start_s=240, wait_s=120, call_s=60, drain_s=30, snapshot_s=0, spares=spares),
    )


def _rows(number: int) -> dict[str, Any]:
    import numpy as np

    lengths = [TOKENS - number % 7 - row for row in range(ROWS)]
    return {
        "number": np.full(ROWS, number),
        "tokens": [np.full(length, number & 0x7FFFFFFF, np.int32) for length in lengths],
        "logprobs": [np.full(length, -1 / (1 + number % 7), np.float32) for length in lengths],
        "text": [f"prompt {number}"] * ROWS,
    }


def _checked(batch: Batch) -> list[int]:
    """Prompts of a batch, after a look at every value."""
    import numpy as np

    prompts = []
    for block in batch.split():
        number = int(block.columns["number"][0])
        expected = _rows(number)
        for name, data in block.columns.items():
            wanted = expected[name] if name in expected else [len(tokens) for tokens in expected["tokens"]]
            if not all(np.array_equal(one, other) for one, other in zip(data, wanted, strict=True)):
                raise ValueError(f"column {name} of prompt {number} is not what was put")
        prompts.append(number)
    return prompts


def _batches(context: RoleContext, stream: str, columns: tuple[str, ...]) -> Iterator[Batch]:
    from hpcrl.dataplane.interface import EndOfStream

    try:
        while True:
            yield context.read(stream, columns, max_rows=16 * ROWS)
    except EndOfStream:
        return


def _checkpoint(journal: Path) -> tuple[int, list[list[int]]]:
    """Step and blocks of the newest training that the journal holds."""
    for line in reversed(journal.read_bytes().splitlines()):
        # One that was cut short has no end.
        if f'"kind":"{TRAINED}"'.encode() in line and line.endswith(b"}"):
            record = json.loads(line)
            return record["step"], record["blocks"]
    return 0, []


def _of_blocks(stream: str, blocks: list[list[int]]) -> Batch:
    import numpy as np

    from hpcrl.dataplane.interface import Batch, Block

    return Batch(stream, {}, tuple(Block(np.arange(first, first + rows)) for first, rows in blocks))
