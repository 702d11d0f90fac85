"""Which blocks a fetch gets; runs inside the controller.

A block is one row of TransferQueue, under a key that tells its row ids. A fetch takes ready blocks, oldest first, as long as
their rows fit the request. Every fetch carries a ticket: a fetch repeated with its ticket gets its blocks again, so an answer
that was lost on the way loses no rows.
"""

from __future__ import annotations

from typing import Any

from hpcrl.dataplane.transferqueue.compat import BaseSampler


def block_key(first_row_id: int, rows: int) -> str:
    """Key of a block whose row ids run on from the first."""
    return f"{first_row_id}:{rows}"


def parse_key(key: str) -> tuple[int, int]:
    """First row id and number of rows."""
    first, rows = key.split(":")
    return int(first), int(rows)


class BlockSampler(BaseSampler):  # type: ignore[misc]
    """Takes whole blocks up to ``max_rows`` rows, and remembers what each open ticket was given.

    A fetch's ``sampling_config``: ``reader`` (process), ``ticket``, ``oldest`` (the reader's oldest ticket still open) and
    ``max_rows``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[tuple[str, str], dict[int, list[str]]] = {}

    def has_cached_result(self, partition_id: str, task_name: str, sampling_config: dict[str, Any] | None = None) -> bool:
        """Whether this ticket was already given blocks."""
        config = sampling_config or {}
        return config.get("ticket") in self._given.get((partition_id, config.get("reader", "")), {})

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        *args: Any,
        partition: Any = None,
        reader: str = "",
        ticket: int = 0,
        oldest: int = 0,
        max_rows: int = 0,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """Indexes of the blocks given, and again as those consumed; each is tagged with its key."""
        given = self._given.setdefault((partition.partition_id, reader), {})
        for closed in [number for number in given if number < oldest]:
            del given[closed]
        # A key of the ticket whose block was cleared since is left out.
        keys = [key for key in given.pop(ticket, ()) if key in partition.keys_mapping] or self._take(
            partition, set(ready_indexes), max_rows
        )
        if keys:
            given[ticket] = keys
        indexes = [partition.keys_mapping[key] for key in keys]
        partition.set_custom_meta({index: {"key": key} for index, key in zip(indexes, keys, strict=True)})
        return indexes, indexes

    @staticmethod
    def _take(partition: Any, ready: set[int], max_rows: int) -> list[str]:
        keys: list[str] = []
        for key, index in partition.keys_mapping.items():
            if index in ready:
                max_rows -= parse_key(key)[1]
                if max_rows < 0:
                    break
                keys.append(key)
        return keys
