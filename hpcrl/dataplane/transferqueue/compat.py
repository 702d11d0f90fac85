"""The one place that touches what TransferQueue 0.1.11 keeps private.

Importing this module imports TransferQueue with a stand-in for Ray, which its modules name but which nothing used here
needs. What is private, and why it is touched:

- ``ray``: stands in only while TransferQueue is imported, so that other libraries never find a false Ray.
- two marks of ``torch.compiler`` do nothing meanwhile: tensordict, which TransferQueue needs, marks functions with them as it
  is imported, and a mark loads the compiler, for 1.3 s and 70 MiB in every process. Nothing here is compiled.
- ``get_free_port`` and ``get_node_ip_address`` of its storage module: ports and address are planned by the run.
- ``create_zmq_socket``, its only source of sockets: CURVE on every one. A peer without the run's secret never gets past the
  handshake, so its pickles are not read.
- ``_connect_to_controller`` and ``notify_data_update`` of its storage manager: what is where is the ledger's to know;
  ``_clear_single_storage_unit`` and ``_group_by_hash``, because its ``clear_data`` hides that a unit was away;
  ``_put_to_single_storage_unit``, ``_get_from_single_storage_unit`` and ``_request_with_retry``, because its ``put_data`` and
  ``get_data`` make nested tensors of many values: a copy more, and the compiler (see above) in every process at its first row.
- ``pickle`` and ``cloudpickle`` of its serialisation, which sends shapes as pickles: nothing but plain values is unpickled.
- ``storage_data``, ``_handle_put`` and the checkpoint handlers of its storage unit: values outlive the process, and neither
  code nor paths are taken from a peer.
- time-outs read from the environment at import: ours come first.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import io
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.compiler
import zmq
import zmq.asyncio

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.run.curve import Pair, curve_pair, guard_client, guard_server
from hpcrl.run.sockets import IO_THREADS, shared_context

VERSION = "0.1.11"
_MARKS = ("allow_in_graph", "assume_constant_result")
_RAY = ("ray", "ray.util", "ray.util.scheduling_strategies")
# The limit on torch threads would fight with the role's own. A unit that was killed is asked again soon; the whole call has
# a deadline of its own.
_ENVIRONMENT = {
    "TQ_NUM_THREADS": "1",
    "TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT": "3",
    "TQ_SIMPLE_STORAGE_MAX_ATTEMPTS": "1000",
    "TQ_SIMPLE_STORAGE_PROBE_TIMEOUT": "1",
}


def _check_version() -> None:
    try:
        found = importlib.metadata.version("TransferQueue")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != VERSION:
        raise DataPlaneError(
            f"hpcrl needs TransferQueue {VERSION}, found {found}; run: pip install --no-deps TransferQueue=={VERSION}"
        )


def _make_ray() -> dict[str, types.ModuleType]:
    modules = {name: types.ModuleType(name) for name in _RAY}
    ray, util, strategies = modules.values()
    ray.__path__, util.__path__ = [], []

    def remote(*args: Any, **options: Any) -> Any:
        return args[0] if args and not options else lambda decorated: decorated

    ray.__dict__.update(remote=remote, ObjectRef=object, util=util)
    util.__dict__.update(scheduling_strategies=strategies)
    strategies.__dict__.update(NodeAffinitySchedulingStrategy=object)
    return modules


@contextlib.contextmanager
def _stand_in() -> Iterator[None]:
    saved_modules = {name: sys.modules.pop(name, None) for name in _RAY}
    saved_environment = {name: os.environ.get(name) for name in _ENVIRONMENT}
    saved_marks = {name: getattr(torch.compiler, name) for name in _MARKS}
    sys.modules.update(_make_ray())
    os.environ.update(_ENVIRONMENT)
    for name in _MARKS:
        setattr(torch.compiler, name, lambda function: function)
    try:
        yield
    finally:
        for name, mark in saved_marks.items():
            setattr(torch.compiler, name, mark)
        for name, module in saved_modules.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
        for name, value in saved_environment.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


_check_version()
with _stand_in():
    import transfer_queue.storage.managers.base as manager_module
    import transfer_queue.storage.managers.simple_storage_manager as simple_module
    import transfer_queue.storage.simple_storage as storage_module
    import transfer_queue.utils.serial_utils as serial_module
    import transfer_queue.utils.zmq_utils as zmq_module
    from transfer_queue.utils.enum_utils import Role as ServerRole


class _Plain(pickle.Unpickler):
    """Unpickles numbers, strings and what holds them; whatever names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a peer sent {module}.{name}, and nothing but plain values is taken from a peer")


def _plain_values(data: Any) -> Any:
    return _Plain(io.BytesIO(bytes(data))).load()


serial_module.pickle = types.SimpleNamespace(dumps=pickle.dumps, loads=_plain_values, HIGHEST_PROTOCOL=pickle.HIGHEST_PROTOCOL)
serial_module.cloudpickle = types.SimpleNamespace(dumps=serial_module.cloudpickle.dumps, loads=_plain_values)

StorageUnitData = storage_module.StorageUnitData
_create_zmq_socket = zmq_module.create_zmq_socket
_curve: Pair | None = None
_users = 0
_planning = threading.Lock()


def use_key(key: str) -> None:
    """Encrypt every TransferQueue socket of this process with keys made from the run's secret, until as many :func:`drop_key`.

    Raises:
        DataPlaneError: the process uses another run's secret.
    """
    global _curve, _users
    pair = curve_pair(key)
    with _planning:
        if _curve is not None and _curve != pair:
            raise DataPlaneError("this process already holds a connection to another run's queue; use one process for each run")
        _curve, _users = pair, _users + 1


def drop_key() -> None:
    """Whoever called :func:`use_key` has closed its sockets."""
    global _curve, _users
    with _planning:
        _users -= 1
        if not _users:
            _curve = None


def _create_curve_socket(ctx: zmq.Context[Any], socket_type: Any, ip: str, identity: Any = None) -> Any:
    # Of a context that has a socket already, this changes nothing.
    ctx.set(zmq.IO_THREADS, IO_THREADS)
    socket = _create_zmq_socket(ctx, socket_type, ip, identity)
    if _curve is None:
        socket.close(linger=0)
        raise DataPlaneError("a TransferQueue socket was asked for before use_key gave the run's secret")
    (guard_server if socket_type == zmq.ROUTER else guard_client)(socket, _curve)
    return socket


for _module in (zmq_module, storage_module, manager_module):
    _module.create_zmq_socket = _create_curve_socket


class _UnitsOnly(simple_module.AsyncSimpleStorageManager):  # type: ignore[misc]
    """Talks to storage units alone."""

    def _connect_to_controller(self) -> None:
        """There is none."""

    async def notify_data_update(self, *_: Any, **__: Any) -> None:
        """The ledger is told by the one who wrote."""


def connect_units(endpoints: Sequence[Mapping[str, Any]]) -> Any:
    """A storage manager for units, in their order."""
    infos = {str(endpoint["id"]): _server_info(endpoint) for endpoint in endpoints}
    return _UnitsOnly(None, {"zmq_info": infos}, zmq.asyncio.Context.shadow(shared_context()))


async def put_values(manager: Any, indexes: Sequence[int], values: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Keep values of fields, one for each index."""

    async def put(name: str, group: Any) -> None:
        chosen = {field: [held[position] for position in group.batch_positions] for field, held in values.items()}
        keep = partial(manager._put_to_single_storage_unit, group.global_indexes, chosen, target_storage_unit=name)
        await manager._request_with_retry("put", name, _shape(group, values), keep)

    await asyncio.gather(*(put(name, group) for name, group in manager._group_by_hash(list(indexes)).items()))


async def get_values(manager: Any, indexes: Sequence[int], fields: Sequence[str]) -> dict[str, list[torch.Tensor]]:
    """Values of fields, one for each index: views of what came."""
    found: dict[str, list[torch.Tensor]] = {field: [torch.empty(0)] * len(indexes) for field in fields}

    async def get(name: str, group: Any) -> None:
        fetch = partial(manager._get_from_single_storage_unit, group.global_indexes, list(fields), target_storage_unit=name)
        _, data = await manager._request_with_retry("get", name, _shape(group, fields), fetch)
        for field in fields:
            for position, value in zip(group.batch_positions, data[field], strict=True):
                found[field][position] = value

    await asyncio.gather(*(get(name, group) for name, group in manager._group_by_hash(list(indexes)).items()))
    return found


def _shape(group: Any, fields: Collection[str]) -> str:
    return f"samples={len(group.global_indexes)} fields={list(fields)}"


async def clear_values(manager: Any, indexes: Sequence[int]) -> list[int]:
    """Let units forget values; those whose unit did not say that it has."""
    groups = manager._group_by_hash(list(indexes))
    clears = [manager._clear_single_storage_unit(g.global_indexes, target_storage_unit=name) for name, g in groups.items()]
    answers = await asyncio.gather(*clears, return_exceptions=True)
    return [
        index
        for group, answer in zip(groups.values(), answers, strict=True)
        if isinstance(answer, Exception)
        for index in group.global_indexes
    ]


@contextlib.contextmanager
def _planned(address: str, port: int) -> Iterator[None]:
    """A unit made inside binds to this port of this address, or fails."""
    left = [port]

    def next_port(ip: str) -> int:
        if not left:
            raise DataPlaneError(f"the planned port {port} on {ip} is busy; another program of this node uses it")
        return left.pop()

    with _planning:
        saved = storage_module.get_free_port, storage_module.get_node_ip_address
        storage_module.get_free_port, storage_module.get_node_ip_address = next_port, lambda: address
        try:
            yield
        finally:
            storage_module.get_free_port, storage_module.get_node_ip_address = saved


class _GuardedUnit(storage_module.SimpleStorageUnit):  # type: ignore[misc]
    """Takes no code and no paths from a peer."""

    def _handle_put(self, data_parts: Any) -> Any:
        if data_parts.body.get("data_parser") is not None:
            raise DataPlaneError("storage units of a run execute nothing that a peer sends")
        return super()._handle_put(data_parts)

    def _handle_save_checkpoint(self, data_parts: Any) -> Any:
        raise DataPlaneError("storage units of a run write no checkpoints")

    def _handle_load_checkpoint(self, data_parts: Any) -> Any:
        raise DataPlaneError("storage units of a run load no checkpoints")


def start_storage(address: str, port: int, data: Any, name: str) -> Any:
    """A storage unit that listens on exactly this port and keeps its values in ``data``, a :class:`StorageUnitData`.

    Args:
        name: the same after a restart, so that clients find it again.

    Raises:
        DataPlaneError: the port is busy.
    """

    class Unit(_GuardedUnit):
        def __init__(self) -> None:
            super().__init__({"total_storage_size": None, "num_data_storage_units": 1})

        def _init_zmq_socket(self) -> None:
            # Before the first request can come.
            self.storage_unit_id, self.storage_data = name, data
            super()._init_zmq_socket()

    with _planned(address, port):
        return Unit()


def storage_alive(unit: Any) -> bool:
    """Whether the storage unit still answers."""
    return bool(unit.worker_thread.is_alive() and unit.proxy_thread.is_alive())


def describe(unit: Any) -> dict[str, Any]:
    """Where a storage unit listens, JSON-like."""
    info = unit.get_zmq_server_info()
    return {"role": info.role.value, "id": info.id, "ip": info.ip, "ports": dict(info.ports)}


def _server_info(endpoint: Mapping[str, Any]) -> Any:
    ports = {name: int(port) for name, port in endpoint["ports"].items()}
    return zmq_module.ZMQServerInfo(role=ServerRole(endpoint["role"]), id=endpoint["id"], ip=endpoint["ip"], ports=ports)


def touch_points() -> dict[str, Callable[[], bool]]:
    """What of TransferQueue this package relies on beyond its public classes, each with a check that it is still there."""
    unit, manager = storage_module.SimpleStorageUnit, simple_module.AsyncSimpleStorageManager
    source = {name: unit.__init__.__globals__.get(name) for name in ("get_free_port", "create_zmq_socket")}
    return {
        "storage unit is a plain class": lambda: isinstance(unit, type) and not hasattr(unit, "remote"),
        "the module looks its ports up by name": lambda: all(callable(found) for found in source.values()),
        "the manager connects in a method of its own": lambda: callable(manager._connect_to_controller),
        "the manager notifies in a method of its own": lambda: callable(manager.notify_data_update),
        "the unit handles puts and checkpoints apart": lambda: (
            callable(unit._handle_put) and callable(unit._handle_save_checkpoint) and callable(unit._handle_load_checkpoint)
        ),
        "the unit opens its socket in a method of its own": lambda: callable(unit._init_zmq_socket),
        "the serialisation unpickles through its module": lambda: (
            serial_module.decode.__globals__["pickle"].loads is _plain_values
        ),
        "values are routed by index": lambda: callable(manager._group_by_hash),
        "the manager clears unit by unit": lambda: callable(manager._clear_single_storage_unit),
        "the manager puts and gets unit by unit": lambda: (
            callable(manager._put_to_single_storage_unit)
            and callable(manager._get_from_single_storage_unit)
            and callable(manager._request_with_retry)
        ),
        "the time-out is ours": lambda: simple_module.TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT == 3,
    }
