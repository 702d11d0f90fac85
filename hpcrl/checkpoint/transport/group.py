"""A process group of one sender and some engines, apart from any other group of these processes.

Engines of SGLang make theirs with its ``init_custom_process_group``; the keys under which the members find each other are the
same here.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.run.addresses import family_of
from hpcrl.run.errors import host

Backend = Literal["gloo", "nccl"]
_NCCL = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
# Between two looks at whether the group was left meanwhile.
_LOOK_S = 0.1
# Groups that were left while something was under way in them.
_abandoned: list[Any] = []


class Group:
    """Rank 0 sends, the others receive. A group in which anything failed is of no more use.

    What it sends is neither secret nor protected against others in the network, as with any group of torch.distributed; who
    receives checks a hash that came another way.

    Args:
        address: of rank 0; it listens there, and gloo's connections go over the same network.
        rank: of this process, out of ``size``.
        name: the same for all members, of no other group at this address.
        seconds: until all members are there, and the most that one tensor may take.

    Raises:
        TransportError: the members did not meet in time, or the port is taken.
    """

    def __init__(self, address: str, port: int, *, rank: int, size: int, name: str, backend: Backend, seconds: float) -> None:
        self._name, self._rank, self._backend, self._seconds = name, rank, backend, seconds
        self._lock, self._under_way = threading.Lock(), None
        timeout = timedelta(seconds=seconds)
        self._group: Any = None
        try:
            self._store = _store(address, port, rank, size, timeout)
            # SGLang's prefix, then those of torch: group and device.
            prefix = dist.PrefixStore(f"{name}/", dist.PrefixStore(name, self._store))  # type: ignore[attr-defined]
            if backend == "gloo":
                gloo: Any = dist.ProcessGroupGloo
                options = gloo._Options()
                options._timeout = timeout
                options._devices = [gloo.create_device(hostname=_own_address(address, port))]
                self._group = gloo(dist.PrefixStore("cpu/", prefix), rank, size, options)  # type: ignore[attr-defined]
            else:
                nccl: Any = dist.ProcessGroupNCCL
                options = nccl.Options()
                options._timeout = timeout
                with _waits_that_fail():
                    self._group = nccl(dist.PrefixStore("cuda/", prefix), rank, size, options)  # type: ignore[attr-defined]
        except (RuntimeError, OSError) as error:
            raise TransportError(
                f"rank {rank} of {size} of weight group {name!r} on {host()}: the members did not meet at {address}:{port} "
                f"within {seconds:g} s: {_first_line(error)}"
            ) from error

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor, or fill it with what rank 0 sends.

        Raises:
            TransportError: a member is gone, or it took too long.
        """
        work = self._start(tensor)
        wait = self._wait_blocking if self._backend == "nccl" else self._wait_looking
        why = wait(work)
        if why is not None:
            raise TransportError(
                f"rank {self._rank} of weight group {self._name!r} on {host()}: a member is gone or did not come "
                f"within {self._seconds:g} s: {why}"
            )

    def close(self) -> None:
        """Leave the group; what another thread sends or receives in it ends with an error. Safe to call twice."""
        with self._lock:
            group, self._group, self._store = self._group, None, None
            under_way = self._under_way is not None and not self._under_way.is_completed()
            if under_way and self._backend == "gloo":
                # To let go of it now would wait, and all of Python with it, until what is under way has timed out.
                _abandoned.append(group)
        if group is not None and self._backend == "nccl":
            with suppress(RuntimeError):
                group.abort()

    def _wait_looking(self, work: Any) -> str | None:
        """Until it is done, or the group was left; returns what went wrong. A wait of gloo cannot be ended from outside."""
        while True:
            try:
                work.wait(timedelta(seconds=_LOOK_S))
                return None
            except RuntimeError:
                if work.is_completed():
                    return _failure(work)
            if self._group is None:
                return "this process has left"

    def _wait_blocking(self, work: Any) -> str | None:
        """The same for NCCL, whose waits end when the group is left, and which gives up a group that waited too long."""
        try:
            work.wait(timedelta(seconds=self._seconds))
        except RuntimeError as error:
            return _first_line(error)
        # One that was ended by leaving looks as if it had come.
        return "this process has left" if self._group is None else None

    def _start(self, tensor: torch.Tensor) -> Any:
        with self._lock:
            if self._group is None:
                raise self._left()
            self._under_way = self._group.broadcast(tensor, 0)
            return self._under_way

    def _left(self) -> TransportError:
        return TransportError(f"rank {self._rank} of weight group {self._name!r} on {host()} has left it")


def _failure(work: Any) -> str | None:
    """Why a broadcast that has ended did not succeed."""
    try:
        work.wait()
    except RuntimeError as error:
        return _first_line(error)
    return None


def _listen(address: str, port: int) -> socket.socket:
    """Only at the planned address; torch's store by itself would listen at every one."""
    listener = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _store(address: str, port: int, rank: int, size: int, timeout: timedelta) -> Any:
    # The store's from then on, also where it fails.
    listener = _listen(address, port).detach() if rank == 0 else None
    store: Any = dist.TCPStore  # type: ignore[attr-defined]
    return store(address, port, size, rank == 0, timeout, master_listen_fd=listener)


@contextmanager
def _waits_that_fail() -> Iterator[None]:
    """Of NCCL groups made inside, a wait ends with an error where a member is gone; else torch ends the whole process."""
    before = {name: os.environ.get(name) for name in _NCCL}
    os.environ.update(_NCCL)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _own_address(address: str, port: int) -> str:
    """This host's address in the network in which rank 0 is. Nothing is sent."""
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def _first_line(error: Exception) -> str:
    # Gloo adds advice that does not hold here.
    return (str(error).splitlines() or [repr(error)])[0].partition(". This is typically")[0]
