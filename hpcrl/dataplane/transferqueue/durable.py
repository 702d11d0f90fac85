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
        self._refs: dict[tuple[str, int], Ref] = {}
        self._live: Counter[str] = Counter()
        self._released: Counter[str] = Counter()
        for kind, data in self._log.replay():
            if kind == "state":
                self._refs = {(kept.field, kept.index): kept.ref for kept in _state.decode(data)}
                continue
            record = _record.decode(data)
            if isinstance(record, _Kept):
                self._refs[record.field, record.index] = record.ref
            else:
                gone = set(record.indexes)
                self._refs = {key: ref for key, ref in self._refs.items() if key[1] not in gone}
        self._live.update(ref.where for ref in self._refs.values())
        # Segments of earlier lives in which nothing is left.
        self._writer.freed({name: 0 for name in self._writer.earlier() if not self._live[name]})
        for (field, index), ref in self._refs.items():
            self._show(field, index, ref)

    def put_data(self, field_data: dict[str, Any], global_indexes: list[int]) -> None:
        """Keep values; durable when this returns."""
        kept: list[_Kept] = []
        for field, values in field_data.items():
            for index, value in zip(global_indexes, _rows(values), strict=True):
                kept.append(_Kept(field, index, self._writer.write([np.ascontiguousarray(value.numpy()).view(np.uint8)])))
        self._log.append(*(_encoder.encode(item) for item in kept))
        for item in kept:
            self._let_go([self._refs.pop((item.field, item.index), None)])
            self._refs[item.field, item.index] = item.ref
            self._live[item.ref.where] += 1
            self._show(item.field, item.index, item.ref)
        self._compact()

    def clear(self, keys: list[int]) -> None:
        """Forget values."""
        super().clear(keys)
        self._log.append(_encoder.encode(_Cleared(list(keys))))
        fields = list(self.field_data)
        self._let_go([self._refs.pop((field, index), None) for index in keys for field in fields])
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

    def _let_go(self, refs: Iterable[Ref | None]) -> None:
        freed: dict[str, int] = {}
        for ref in refs:
            if ref is not None:
                self._live[ref.where] -= 1
                self._released[ref.where] += 1
                if not self._live[ref.where]:
                    freed[ref.where] = self._released[ref.where]
        if freed:
            self._writer.freed(freed)

    def _compact(self) -> None:
        if self._log.grown > max(_COMPACT_BYTES, 4 * (self._log.size - self._log.grown)):
            self._log.compact(_encoder.encode([_Kept(field, index, ref) for (field, index), ref in self._refs.items()]))


def _rows(values: Any) -> Iterable[torch.Tensor]:
    return values.unbind() if isinstance(values, torch.Tensor) else values
