"""The one place that touches what TransferQueue 0.1.11 keeps private.

Importing this module imports TransferQueue with a stand-in for Ray, which its modules name but which nothing used here
needs. What is private, and why it is touched:

- ``ray``: stands in only while TransferQueue is imported, so that other libraries never find a false Ray.
- ``get_free_port`` and ``get_node_ip_address`` of its server modules: ports and address are planned by the run.
- ``create_zmq_socket``, its only source of sockets: CURVE encryption with keys made from the run's secret. A peer without
  the secret does not know the server's public key either and never gets past the handshake, so its pickles are not read.
- the threads and sockets of a controller, which has no way to stop.
- time-outs read from the environment at import: ours come first.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq
from zmq.utils import z85

from hpcrl.dataplane.interface import DataPlaneError

VERSION = "0.1.11"
_RAY = ("ray", "ray.util", "ray.util.scheduling_strategies")
# The limit on torch threads would fight with the role's own; a lost acknowledgement must reach our deadline, not its own.
_ENVIRONMENT = {"TQ_NUM_THREADS": "1", "TQ_DATA_UPDATE_RESPONSE_TIMEOUT": "86400"}


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
    sys.modules.update(_make_ray())
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
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
    import transfer_queue.controller as controller_module
    import transfer_queue.storage.managers.base as manager_module
    import transfer_queue.storage.simple_storage as storage_module
    import transfer_queue.utils.zmq_utils as zmq_module
    from transfer_queue import BaseSampler, BatchMeta
    from transfer_queue.client import AsyncTransferQueueClient
    from transfer_queue.utils.enum_utils import Role as ServerRole

__all__ = ["AsyncTransferQueueClient", "BaseSampler", "BatchMeta"]

_create_zmq_socket = zmq_module.create_zmq_socket
_curve: tuple[bytes, bytes] | None = None
_planning = threading.Lock()


def use_key(key: str) -> None:
    """Encrypt every TransferQueue socket of this process from now on with keys made from the run's secret.

    Raises:
        DataPlaneError: the process already uses another run's secret.
    """
    global _curve
    # libsodium takes any 32 bytes as a Curve25519 secret key.
    secret = z85.encode(hashlib.sha256(b"hpcrl queue\0" + key.encode()).digest())
    pair = (zmq.curve_public(secret), secret)
    if _curve is not None and _curve != pair:
        raise DataPlaneError("this process already holds a connection to another run's queue; use one process for each run")
    _curve = pair


def _create_curve_socket(ctx: zmq.Context[Any], socket_type: Any, ip: str, identity: Any = None) -> Any:
    socket = _create_zmq_socket(ctx, socket_type, ip, identity)
    if _curve is None:
        socket.close(linger=0)
        raise DataPlaneError("a TransferQueue socket was asked for before use_key gave the run's secret")
    public, secret = _curve
    socket.curve_secretkey = secret
    if socket_type == zmq.ROUTER:
        socket.curve_server = True
    else:
        socket.curve_publickey, socket.curve_serverkey = public, public
    return socket


for _module in (zmq_module, controller_module, storage_module, manager_module):
    _module.create_zmq_socket = _create_curve_socket


@contextlib.contextmanager
def _planned(address: str, ports: Sequence[int]) -> Iterator[None]:
    """Servers made inside bind to these ports on this address, in order, or fail."""
    left = list(ports)
    taken: list[int] = []

    def next_port(ip: str) -> int:
        if not left:
            raise DataPlaneError(f"one of the planned ports {taken} on {ip} is busy; another program of this node uses it")
        taken.append(left.pop(0))
        return taken[-1]

    with _planning:
        saved = [(m, m.get_free_port, m.get_node_ip_address) for m in (controller_module, storage_module)]
        for module, _, _ in saved:
            module.get_free_port, module.get_node_ip_address = next_port, lambda: address
        try:
            yield
        finally:
            for module, get_free_port, get_node_ip_address in saved:
                module.get_free_port, module.get_node_ip_address = get_free_port, get_node_ip_address


def start_controller(address: str, ports: Sequence[int], sampler: BaseSampler) -> Any:
    """A controller that listens on exactly the first two ports.

    Raises:
        DataPlaneError: a port is busy or there are too few.
    """
    if len(ports) < 2:
        raise DataPlaneError(f"a controller needs two planned ports, got {list(ports)}")
    with _planned(address, ports[:2]):
        return controller_module.TransferQueueController(sampler=sampler, polling_mode=True)


def stop_controller(controller: Any) -> None:
    """Free the controller's ports and end its threads."""
    threads = (controller.wait_connection_thread, controller.process_request_thread)
    show = threading.excepthook

    def hide_end(details: threading.ExceptHookArgs) -> None:
        if details.exc_type is not zmq.ContextTerminated:
            show(details)

    threading.excepthook = hide_end
    # Terminating wakes both threads and then waits for the sockets, which only this thread may still close.
    terminate = threading.Thread(target=controller.zmq_context.term, daemon=True)
    terminate.start()
    try:
        for thread in threads:
            thread.join(timeout=5)
    finally:
        threading.excepthook = show
    for socket in (controller.handshake_socket, controller.request_handle_socket):
        socket.close(linger=0)
    terminate.join(timeout=5)


def controller_alive(controller: Any) -> bool:
    """Whether the controller still answers."""
    return bool(controller.wait_connection_thread.is_alive() and controller.process_request_thread.is_alive())


def start_storage(address: str, ports: Sequence[int], capacity_blocks: int) -> Any:
    """A storage unit that listens on exactly the first port and holds up to so many blocks.

    Raises:
        DataPlaneError: the port is busy or there is none.
    """
    if not ports:
        raise DataPlaneError("a storage unit needs a planned port, got none")
    with _planned(address, ports[:1]):
        return storage_module.SimpleStorageUnit({"total_storage_size": capacity_blocks, "num_data_storage_units": 1})


def storage_alive(unit: Any) -> bool:
    """Whether the storage unit still answers."""
    return bool(unit.worker_thread.is_alive() and unit.proxy_thread.is_alive())


def describe(server: Any) -> dict[str, Any]:
    """Where a server listens, JSON-like."""
    info = server.get_zmq_server_info()
    return {"role": info.role.value, "id": info.id, "ip": info.ip, "ports": dict(info.ports)}


def server_info(endpoint: dict[str, Any]) -> Any:
    """The inverse of :func:`describe`."""
    ports = {name: int(port) for name, port in endpoint["ports"].items()}
    return zmq_module.ZMQServerInfo(role=ServerRole(endpoint["role"]), id=endpoint["id"], ip=endpoint["ip"], ports=ports)


def touch_points() -> dict[str, Callable[[], bool]]:
    """What of TransferQueue this package relies on beyond its public classes, each with a check that it is still there."""
    controller, partition = controller_module.TransferQueueController, controller_module.DataPartitionStatus
    fields = partition.__dataclass_fields__
    source = {name: controller.__init__.__globals__.get(name) for name in ("get_free_port", "create_zmq_socket")}
    return {
        "controller is a plain class": lambda: isinstance(controller, type) and not hasattr(controller, "remote"),
        "storage unit is a plain class": lambda: isinstance(storage_module.SimpleStorageUnit, type),
        "modules look their ports up by name": lambda: all(callable(found) for found in source.values()),
        "partition keeps keys by insertion": lambda: {"keys_mapping", "revert_keys_mapping", "custom_meta"} <= set(fields),
        "partition takes tags": lambda: callable(partition.set_custom_meta),
        "sampler may answer from its cache": lambda: callable(BaseSampler.has_cached_result),
        "lost acknowledgements wait for us": lambda: manager_module.TQ_DATA_UPDATE_RESPONSE_TIMEOUT == 86400,
    }
