"""What a role sees of the data plane, whatever moves the bytes.

A **block** is what one ``put`` wrote: it travels, is filled, read and cleared as a whole, which is what makes small rows
cheap. A **batch** is what one ``read`` returned: whole blocks, their rows one after the other.

Life of a row: ``put`` by the group that creates it, ``fill`` by the groups that own further columns, ``read`` once by each
group that asks for it (one replica gets it), ``acknowledge`` by the final reader, which clears it.

What is read is under **lease**: it goes to another process of the group if its reader is not heard of for a while (calls and
a thread of the data plane's own are its signs of life), begins a new life, or gives it back. A lease ends when the reader
fills its columns, or acknowledges; who only looks on must acknowledge too, or the group's other readers see no end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcrl.run.errors import HpcrlError

if TYPE_CHECKING:
    # Ignitors and supervisors import this for its errors alone.
    import numpy as np

    from hpcrl.dataplane.seat import Seat

# A scalar column: array of shape (rows,). A ragged column: one 1-D array a row. A str column: one string a row.
ColumnData: TypeAlias = "np.ndarray | list[np.ndarray] | list[str]"


class DataPlaneError(HpcrlError):
    """The data plane refused a call or could not serve it; names stream, column and peer."""


class NotAnswered(DataPlaneError):
    """The data plane was silent past the deadline; what was asked for may have been carried out all the same."""


class SchemaError(DataPlaneError):
    """Rows do not fit the stream's declared columns; nothing was written."""


class TurnOver(DataPlaneError):
    """The caller's turn in a ring is over: another group may have the token by now."""


class EndOfStream(DataPlaneError):
    """Every producer of the columns asked for has closed the stream, and no other process of the reader's group holds rows
    that could come back to it (rows that it trained could only come back to itself)."""


@dataclass(frozen=True)
class Block:
    """A handle on the rows of one ``put``; opaque to roles.

    Attributes:
        row_ids: int64 (rows,), unique within the run.
    """

    row_ids: np.ndarray


@dataclass(frozen=True)
class Batch:
    """Rows that one ``read`` returned.

    Attributes:
        columns: the columns asked for, each with as many entries as there are rows.
        blocks: the whole blocks that the rows came in, in the rows' order.
    """

    stream: str
    columns: Mapping[str, ColumnData]
    blocks: tuple[Block, ...]

    @property
    def row_ids(self) -> np.ndarray:
        """int64 (rows,), in the order of the columns' entries."""
        import numpy as np

        return np.concatenate([block.row_ids for block in self.blocks]) if self.blocks else np.empty(0, np.int64)

    def __len__(self) -> int:
        return sum(len(block.row_ids) for block in self.blocks)

    def split(self) -> list[Batch]:
        """One batch for each block, so that blocks read together can be filled or cleared apart."""
        parts, start = [], 0
        for block in self.blocks:
            end = start + len(block.row_ids)
            parts.append(Batch(self.stream, {name: data[start:end] for name, data in self.columns.items()}, (block,)))
            start = end
        return parts


@dataclass(frozen=True)
class Feedback:
    """The newest value that one writer announced on a feedback stream.

    Attributes:
        writer: ``group.replica`` of the announcer.
        sequence: 1 for the writer's first value, then rising by one.
        value: JSON-like.
    """

    writer: str
    sequence: int
    value: dict[str, Any]


@dataclass(frozen=True)
class StreamDepth:
    """Live rows and blocks of a stream, and how many have each column.

    Attributes:
        untrained: rows that are still to be trained; the others wait to be acknowledged.
    """

    rows: int
    untrained: int
    blocks: int
    rows_with: Mapping[str, int]


class DataPlane(ABC):
    """One role process's connection. Calls are blocking, thread-safe, and end within their deadline.

    Every method raises :class:`DataPlaneError` when the data plane cannot be reached within the deadline.
    """

    @abstractmethod
    def put(self, stream: str, columns: Mapping[str, ColumnData]) -> np.ndarray:
        """Add new rows as one block and return their row ids, int64 (rows,).

        Raises:
            SchemaError: unknown or missing column, wrong dtype or shape, unequal lengths, no rows, more rows than the
                stream's ``block_rows``, or the caller's contract does not create rows of this stream.
        """

    @abstractmethod
    def read(self, stream: str, columns: Sequence[str], *, max_rows: int, wait_s: float) -> Batch | None:
        """Up to ``max_rows`` rows, in whole blocks, that have all these columns and that this group has not read yet.

        Returns as soon as at least one block is there, else None after ``wait_s`` seconds. The rows are under lease.

        Raises:
            EndOfStream: nothing is left and nothing more will come.
            SchemaError: unknown column, or ``max_rows`` below the stream's ``block_rows``.
            DataPlaneError: a row came back that was not asked for (row ids are checked).
        """

    @abstractmethod
    def draw(
        self,
        stream: str,
        columns: Sequence[str],
        *,
        draw: int,
        rows: int,
        share: int,
        shares: int,
        wait_s: float,
        max_tokens: int = 0,
        quadratic: float = 0.0,
    ) -> Batch | None:
        """One of ``shares`` shares, balanced by length, of the ``draw``-th set of ``rows`` rows.

        Whoever asks for the same share of the same draw gets the same rows; the set is fixed by who asks first. It is the
        oldest whole blocks that fit into ``rows``, and what is left at the end of the stream. None after ``wait_s`` seconds
        while there are fewer; a share may be an empty batch.

        Args:
            max_tokens: no share may hold more, 0 = no limit; the set is cut to fewer blocks until none does.
            quadratic: a row of t tokens costs ``t + quadratic * t * t``.

        Raises:
            EndOfStream, SchemaError, DataPlaneError: as :meth:`read`.
        """

    @abstractmethod
    def fill(self, batch: Batch, columns: Mapping[str, ColumnData]) -> None:
        """Add columns to the rows of a batch; the same checks as ``put``. Acknowledges it for this group.

        Who lost the lease may fill all the same: the first to fill a block wins, and what comes later is left out in silence.
        """

    @abstractmethod
    def trained(self, batch: Batch, version: int) -> None:
        """The final reader trained on the rows: they make room for new ones, and stay until they are acknowledged.

        Args:
            version: policy version that the training made.

        Raises:
            DataPlaneError: another process has had some of them meanwhile: this training must not count.
        """

    @abstractmethod
    def acknowledge(self, batch: Batch) -> None:
        """This group is done with the rows; those of the final reader are gone for good. Rows that are gone are no error.

        A final reader that was started again begins with this for the rows that its checkpoint holds as trained: nobody
        knows whether it was killed before or after it had said so.

        Raises:
            DataPlaneError: the final reader lost the lease, and another process has the rows.
        """

    @abstractmethod
    def give_back(self, batch: Batch) -> None:
        """Whoever of this group reads next gets the rows."""

    @abstractmethod
    def drop(self, batch: Batch, reason: str) -> None:
        """Remove rows for good, untrained, by a policy; counted by its reason."""

    @abstractmethod
    def close_stream(self, stream: str) -> None:
        """This process will put or fill no more rows of the stream. Safe to call twice."""

    @abstractmethod
    def announce(self, feedback: str, value: dict[str, Any]) -> None:
        """Replace this writer's newest value on a feedback stream."""

    @abstractmethod
    def newest(self, feedback: str) -> dict[str, Feedback]:
        """The newest value of each writer, by writer; empty before the first."""

    @abstractmethod
    def seat(self, ring: str) -> Seat:
        """This process's place in a ring of the recipe that has a token.

        Raises:
            SchemaError: there is no such ring, or this group is no member of it.
        """

    @abstractmethod
    def depth(self, stream: str) -> StreamDepth:
        """How much is in a stream now."""

    @abstractmethod
    def figures(self, stream: str = "") -> dict[str, dict[str, Any]]:
        """What is known of a stream, or of all, by name; see :func:`hpcrl.dataplane.ledger.why.figures`."""

    @abstractmethod
    def held(self, stream: str) -> frozenset[int]:
        """Numbers of the prompts whose rows live in a stream."""

    @abstractmethod
    def why(self, row_id: int) -> list[str]:
        """Sentences: where a row is, who holds it, which columns it lacks and who owes them."""

    @abstractmethod
    def close(self) -> None:
        """Let go of sockets and threads. Does not close streams; leases run out."""
