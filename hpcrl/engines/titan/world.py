"""The process group of the trainer's ranks, and batches sent from rank 0 to all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hpcrl.engines.titan.samples import Sample, SampleError, flatten, unflatten
from hpcrl.engines.titan.settings import ProcessInfo
from hpcrl.run.errors import HpcrlError


class WorldError(HpcrlError):
    """The ranks of the trainer could not meet, or rank 0 refused a batch."""


class Ranks:
    """All ranks of one trainer. A world of one needs no process group; of a larger one a process may join one at a time.

    Attributes:
        device: what this rank computes on.
    """

    def __init__(self, process: ProcessInfo, *, collective_s: float) -> None:
        self.rank, self.size = process.rank, process.world_size
        self.device = torch.device("cuda", process.gpus[0]) if process.gpus else torch.device("cpu")
        self._joined = False
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.size > 1:
            self._join(process, timedelta(seconds=collective_s))

    def _join(self, process: ProcessInfo, timeout: timedelta) -> None:
        if dist.is_initialized():
            raise WorldError("this process already has a torch.distributed process group; close the other trainer first")
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        try:
            store = dist.TCPStore(process.world_address, process.world_port, self.size, self.rank == 0, timeout)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout)
        except (RuntimeError, ValueError) as error:
            where = f"{process.world_address}:{process.world_port}"
            raise WorldError(
                f"trainer rank {self.rank} of {self.size} could not meet the others at {where}: {error}"
            ) from error
        self._joined = True

    def share_batch(self, samples: Sequence[Sample] | None, check: Callable[[Sequence[Sample]], None]) -> list[Sample]:
        """The batch of rank 0 on every rank, checked there once. A collective.

        Every rank gets the whole of it: token ids are small beside weights and activations, and with the whole batch each
        rank can compute shares, weights and numbers of micro-batches by itself.

        Raises:
            SampleError: on rank 0, what ``check`` raised, or that samples are missing.
            WorldError: on other ranks, when rank 0 refused the batch.
        """
        whole, real = np.zeros(0, np.int64), np.zeros(0, np.float32)
        refusal: Exception | None = None
        if self.rank == 0:
            try:
                if not samples:
                    raise SampleError("rank 0 got no samples")
                check(samples)
                whole, real = flatten(samples)
            except SampleError as error:
                refusal = error
        if self.size > 1:
            sizes = torch.tensor([-1, -1] if refusal else [len(whole), len(real)])
            dist.broadcast(sizes, 0)
            if int(sizes[0]) < 0 and refusal is None:
                raise WorldError(f"rank 0 of the trainer refused the batch, so rank {self.rank} stops; read the log of rank 0")
            if refusal is None:
                numbers = torch.from_numpy(whole) if self.rank == 0 else torch.empty(int(sizes[0]), dtype=torch.int64)
                floats = torch.from_numpy(real) if self.rank == 0 else torch.empty(int(sizes[1]), dtype=torch.float32)
                dist.broadcast(numbers, 0)
                dist.broadcast(floats, 0)
                whole, real = numbers.numpy(), floats.numpy()
        if refusal is not None:
            raise refusal
        return list(samples) if self.size == 1 and samples else unflatten(whole, real)

    def reduce(self, values: np.ndarray) -> np.ndarray:
        """Sum over ranks of a float64 array, on every rank. A collective."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def reduce_max(self, values: np.ndarray) -> np.ndarray:
        """Maximum over ranks of each entry, on every rank. A collective."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: np.ndarray, op: Any) -> np.ndarray:
        if self.size == 1:
            return values
        tensor = torch.from_numpy(values.astype(np.float64))
        dist.all_reduce(tensor, op)
        return tensor.numpy()

    def exchange(self, said: bytes) -> list[bytes]:
        """The bytes that each rank gives, on every rank. A collective."""
        if self.size == 1:
            return [said]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(said)]))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(said)] = torch.from_numpy(np.frombuffer(said, np.uint8).copy())
        heard = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(heard, padded)
        return [data[: int(length)].numpy().tobytes() for data, length in zip(heard, lengths, strict=True)]

    def say(self, number: int) -> int:
        """The number that rank 0 gives, on every rank. A collective."""
        if self.size == 1:
            return number
        tensor = torch.tensor([number])
        dist.broadcast(tensor, 0)
        return int(tensor)

    def close(self) -> None:
        """Leave the process group. Safe to call twice."""
        if self._joined:
            self._joined = False
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dist.destroy_process_group()
