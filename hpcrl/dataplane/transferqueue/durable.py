"""Values of a storage unit in shared memory with a log beside them, so that a unit that was killed has them again."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.shm.writer import SegmentWriter
from hpcrl.dataplane.transferqueue import compat
from hpcrl.dataplane.wal import WriteAheadLog

_COMPACT_BYTES = 16 << 20


class _Kept(msgspec.Struct, tag=True, array_like=True):
    field: str
    index: int
    ref: Ref


class _Cleared(msgspec.Struct, tag=True, array_like=True):
    indexes: list[int]


_encoder = msgspec.msgpack.Encoder()
_record: msgspec.msgpack.Decoder[_Kept | _Cleared] = msgspec.msgpack.Decoder(_Kept | _Cleared)
_state = msgspec.msgpack.Decoder(list[_Kept])


class DurableData(compat.StorageUnitData):  # type: ignore[misc]
    """What a storage unit holds; goes on where an earlier life of it ended.

    Args:
        folder: the attempt's, in the node's shared memory.
        who, life, node: of the unit's process.

    Raises:
        DataPlaneError: another process has the log, or the folder cannot be used.
    """

    def __init__(self, folder: Path, *, who: str, life: int, node: str) -> None:
        super().__init__(None)
        self._writer = SegmentWriter(folder, who, life, node)
        self._reader = SegmentReader(folder, node)
        self._log = WriteAheadLog(folder / f"{who}.wal")
        # By index and field.
        self._refs: dict[int, dict[str, Ref]] = {}
        self._live: Counter[str] = Counter()
        self._released: Counter[str] = Counter()
        for kind, data in self._log.replay():
            if kind == "state":
                self._refs = {}
            for record in _state.decode(data) if kind == "state" else [_record.decode(data)]:
                if isinstance(record, _Kept):
                    self._refs.setdefault(record.index, {})[record.field] = record.ref
                else:
                    for index in record.indexes:
                        self._refs.pop(index, None)
        self._live.update(ref.where for refs in self._refs.values() for ref in refs.values())
        # Segments of earlier lives in which nothing is left.
        self._writer.freed({name: 0 for name in self._writer.earlier() if not self._live[name]})
        for index, refs in self._refs.items():
            for field, ref in refs.items():
                self._show(field, index, ref)

    def put_data(self, field_data: dict[str, Any], global_indexes: list[int]) -> None:
        """Keep values; durable when this returns."""
        kept: list[_Kept] = []
        try:
            for field, values in field_data.items():
                for index, value in zip(global_indexes, _rows(values), strict=True):
                    kept.append(_Kept(field, index, self._writer.write([np.ascontiguousarray(value.numpy()).view(np.uint8)])))
            self._log.append(*(_encoder.encode(item) for item in kept))
        except BaseException:
            self._writer.discard([item.ref for item in kept])
            raise
        for item in kept:
            # A put that is sent again, because its answer was lost, replaces what it has written before.
            before = self._refs.setdefault(item.index, {}).get(item.field)
            self._refs[item.index][item.field] = item.ref
            self._live[item.ref.where] += 1
            self._show(item.field, item.index, item.ref)
            self._let_go([] if before is None else [before])
        self._compact()

    def clear(self, keys: list[int]) -> None:
        """Forget values."""
        super().clear(keys)
        self._log.append(_encoder.encode(_Cleared(list(keys))))
        self._let_go([ref for index in keys for ref in self._refs.pop(index, {}).values()])
        self._compact()

    def close(self) -> None:
        """Let go of files and mappings."""
        self.field_data.clear()
        self._reader.release()
        self._writer.close()
        self._log.close()

    def _show(self, field: str, index: int, ref: Ref) -> None:
        with warnings.catch_warnings():
            # Nobody writes to it; the warning is about those who would.
            warnings.simplefilter("ignore")
            value = torch.from_numpy(self._reader.read(ref))
        self.field_data.setdefault(field, {})[index] = value
        self._active_keys.add(index)

    def _let_go(self, refs: Iterable[Ref]) -> None:
        freed: dict[str, int] = {}
        for ref in refs:
            self._live[ref.where] -= 1
            self._released[ref.where] += 1
            if not self._live[ref.where]:
                freed[ref.where] = self._released[ref.where]
        if freed:
            self._writer.freed(freed)

    def _compact(self) -> None:
        if self._log.grown > max(_COMPACT_BYTES, 4 * (self._log.size - self._log.grown)):
            kept = [_Kept(field, index, ref) for index, refs in self._refs.items() for field, ref in refs.items()]
            self._log.compact(_encoder.encode(kept))


def _rows(values: Any) -> Iterable[torch.Tensor]:
    return values.unbind() if isinstance(values, torch.Tensor) else values
