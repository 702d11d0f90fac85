"""Parts of tensors out of a save of torch's distributed checkpoint, reading only what is asked for.

Needs no other rank and no process group, whoever made the save and in whatever layout: a rank that comes back alone, or one of
another number of ranks, fills its own shards.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from hpcrl.checkpoint.hashing import tensor_bytes
from hpcrl.checkpoint.reshard.box import Box
from hpcrl.checkpoint.reshard.layout import Layout, Piece, ReshardError, TensorLayout
from hpcrl.checkpoint.reshard.plan import Copy, plan_rank
from hpcrl.checkpoint.reshard.stored import Stored, locate
from hpcrl.checkpoint.reshard.window import Window

_THREADS = 4


class Wanted(NamedTuple):
    """A part of a tensor and where to put it.

    Attributes:
        out: of the box's shape; on any device.
    """

    box: Box
    out: torch.Tensor


class SaveReader:
    """Reads one save.

    Args:
        folder: has ``.metadata`` and the files that it names.

    Attributes:
        bytes_read: of those files so far.

    Raises:
        ReshardError: there is no save in the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.bytes_read = folder, 0
        try:
            self._metadata: Metadata = FileSystemReader(str(folder)).read_metadata()
        except (OSError, EOFError, ValueError, KeyError, AttributeError, ImportError, pickle.UnpicklingError) as error:
            raise ReshardError(f"no distributed checkpoint in {folder}: {error!r}") from error
        self._stored: dict[tuple[str, int], Stored | None] = {}

    @cached_property
    def layout(self) -> Layout:
        """Who holds what; here a tensor's ranks number its chunks in the save."""
        tensors = {
            name: TensorLayout(tuple(held.size), held.properties.dtype.itemsize, _pieces(held))
            for name, held in self._metadata.state_dict_metadata.items()
            if isinstance(held, TensorStorageMetadata)
        }
        return Layout(max((len(held.pieces) for held in tensors.values()), default=0), tensors)

    def dtype(self, name: str) -> torch.dtype:
        """Element type of a tensor in the save."""
        return self._held(name).properties.dtype

    def read_slice(self, name: str, box: Box | None = None) -> torch.Tensor:
        """A part of one tensor, or all of it, on the CPU; errors as :meth:`read`."""
        box = Box.whole(self._held(name).size) if box is None else box
        out = torch.empty(box.shape, dtype=self.dtype(name))
        self.read({name: Wanted(box, out)})
        return out

    def read(self, wanted: Mapping[str, Wanted]) -> None:
        """Fill tensors, each element read once, file by file and in the order of the bytes.

        Raises:
            ReshardError: the save lacks a tensor or a part, has it in another shape or type, or a file is damaged or missing.
        """
        tensors = {}
        for name, (box, out) in wanted.items():
            held = self._held(name)
            if out.dtype != held.properties.dtype or tuple(out.shape) != box.shape:
                raise ReshardError(
                    f"tensor {name} in {self._folder} is {held.properties.dtype}; {box.shape} of it do not fit into "
                    f"{out.dtype} of shape {tuple(out.shape)}"
                )
            pieces = (Piece(box, (0,)),) if box.size else ()
            tensors[name] = TensorLayout(tuple(held.size), out.dtype.itemsize, pieces)
        copies = plan_rank(self.layout, Layout(1, tensors), 0)
        copies.sort(key=lambda copy: self._place(copy)[:2])
        # Memory that was never used is slow to fill, and the kernel fills it for several threads at a time.
        threads = min(_THREADS, len(os.sched_getaffinity(0)))
        with ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
            files: dict[str, int] = {}
            opening = threading.Lock()

            def read(copy: Copy) -> int:
                file, offset, length = self._place(copy)
                try:
                    with opening:
                        if file not in files:
                            files[file] = os.open(self._folder / file, os.O_RDONLY | os.O_CLOEXEC)
                            stack.callback(os.close, files[file])
                    window = Window(files[file], offset, length)
                    self._copy(copy, window, wanted[copy.tensor].out[copy.target_box.slices])
                except (OSError, ValueError) as error:
                    where = f"{self._folder / file} from byte {offset} on"
                    raise ReshardError(f"tensor {copy.tensor} cannot be read from {where}: {error}") from error
                return window.read_bytes

            self.bytes_read += sum(pool.map(read, copies))

    def _copy(self, copy: Copy, window: Window, target: torch.Tensor) -> None:
        key = (copy.tensor, copy.source)
        if key not in self._stored:
            self._stored[key] = locate(window, copy.source_shape, target.dtype.itemsize)
        stored = self._stored[key]
        if stored is None:
            # Laid out in some other way: torch reads it, as a whole.
            window.seek(0)
            whole = torch.load(io.BytesIO(window.read() or b""), map_location="cpu", weights_only=True)
            target.copy_(whole[copy.source_box.slices])
            return
        direct = target.is_cpu and target.is_contiguous()
        part = target if direct else torch.empty(target.shape, dtype=target.dtype)
        window.read_ranges(copy.ranges(target.dtype.itemsize) + stored.offset, tensor_bytes(part))
        if not direct:
            target.copy_(part)

    def _place(self, copy: Copy) -> tuple[str, int, int]:
        """File, and first byte and length in it, of the chunk that a copy reads."""
        chunk = self._held(copy.tensor).chunks[copy.source]
        info = self._metadata.storage_data[MetadataIndex(copy.tensor, chunk.offsets)]
        if info.transform_descriptors:
            how = ", ".join(info.transform_descriptors)
            raise ReshardError(f"tensor {copy.tensor} in {self._folder} is encoded ({how}); only torch's own loader reads that")
        return info.relative_path, info.offset, info.length

    def _held(self, name: str) -> TensorStorageMetadata:
        held = self._metadata.state_dict_metadata.get(name)
        if not isinstance(held, TensorStorageMetadata):
            raise ReshardError(f"the save in {self._folder} has no tensor {name}")
        return held


def restore(folder: Path, tensors: Mapping[str, torch.Tensor]) -> int:
    """Fill the shards that this rank holds, in place, from a save of any layout. No collective.

    Args:
        tensors: by the save's names: whole ones, or DTensors, of which only the local part is filled.

    Returns:
        Bytes read.

    Raises:
        ReshardError: as :meth:`SaveReader.read`.
    """
    reader = SaveReader(folder)
    reader.read({name: _local(tensor) for name, tensor in tensors.items()})
    return reader.bytes_read


def _local(tensor: torch.Tensor) -> Wanted:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(tensor, DTensor):
        return Wanted(Box.whole(tensor.shape), tensor.detach())
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Wanted(Box.at(offset, shape), tensor.to_local().detach())


def _pieces(held: TensorStorageMetadata) -> tuple[Piece, ...]:
    """Chunk by chunk, so that a piece's rank is the number of its chunk; empty ones hold nothing."""
    boxes = (Box.at(chunk.offsets, chunk.sizes) for chunk in held.chunks)
    return tuple(Piece(box, (number,)) for number, box in enumerate(boxes) if box.size)
