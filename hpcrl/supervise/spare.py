"""A spare: a process that has imported what others need to import, so that they can begin as forks of it.

``python -m hpcrl.supervise.spare DESCRIPTOR WARM`` is started by :class:`hpcrl.supervise.spares.Spares` and talks to it
over the socket ``DESCRIPTOR``, message by message::

    spare     → Ready, once everything is imported
    ignitor   → FORK, with two descriptors: a socket and the log
    new child → its pid, over that socket, once it is the ignitor's child
    ignitor   → Job; the child then is what ``python -m MODULE ARGUMENT`` would be

A socket that closes early ends who reads from it: nothing is begun that the ignitor does not know of. The spare itself never
does anything but import: no thread, no CUDA, no connection, since none of these outlives a fork.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcrl.supervise.linux import die_with_parent, show_command

log = logging.getLogger(__name__)

FORK = b"fork"
# Messages are whole or not there; none is longer.
MESSAGE_BYTES = 1 << 20
# While it imports: the run's own processes come first.
_NICE = 5
# Every process of a run.
ENTRY = "hpcrl.supervise.process"
_THREAD_ENDS_S = 1.0
# Opened by a process that uses a GPU. What was set up there does not work in a fork.
_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/render")


@dataclass(frozen=True)
class Warm:
    """What a spare imports.

    Attributes:
        groups: whose roles say what they need.
        gpus: their processes use some.
        modules: further ones.
        room: characters that the command line of a fork may take.
    """

    run_directory: str = ""
    groups: Sequence[str] = ()
    gpus: bool = False
    modules: Sequence[str] = ()
    room: int = 0

    def to_json(self) -> str:
        """One argument, as long as ``room`` asks for."""
        return json.dumps(asdict(self)).ljust(self.room)


@dataclass(frozen=True)
class Ready:
    """What it took.

    Attributes:
        unfit: why nothing may be forked from it; empty if all is well.
        cpu_s: processor time [s].
        memory_mib: that it takes, apart from what it shares with others on the node [MiB].
    """

    unfit: str
    cpu_s: float
    memory_mib: float


@dataclass(frozen=True)
class Job:
    """What a fork becomes: ``python -m module argument``."""

    module: str
    argument: str


def main(argv: list[str]) -> None:
    """Import, then fork when asked to; in a fork, run what it is to be."""
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    control = socket.socket(fileno=int(argv[0]))
    warm = Warm(**json.loads(argv[1]))
    # In a thread, because only a thread can be of low priority without those that are forked later being so too.
    importing = threading.Thread(target=_import, args=(warm,))
    importing.start()
    importing.join()
    _send(control, asdict(Ready(_unfit(), time.process_time(), _memory_mib())))
    # What is there now is used by all forks and garbage in none: looking at it would copy it.
    gc.collect()
    gc.freeze()
    job = _serve(control)
    if job is not None:
        show_command([sys.executable, "-m", job.module, job.argument])
        sys.argv = [job.module, job.argument]
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)


def _import(warm: Warm) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    for module in warm.modules:
        importlib.import_module(module)
    # A fork runs it, so that it must not be there yet.
    sys.modules.pop(ENTRY, None)
    if warm.groups:
        from hpcrl.config.codec import recipe_from_run
        from hpcrl.run.directory import RunDirectory

        recipe = recipe_from_run(RunDirectory.open(Path(warm.run_directory)))
        for group in warm.groups:
            recipe.groups[group].role.prepare(gpus=warm.gpus)


def _serve(control: socket.socket) -> Job | None:
    """Fork whenever the ignitor asks for it: the job, in a fork; None once the ignitor needs this spare no longer."""
    while True:
        said, descriptors, *_ = socket.recv_fds(control, len(FORK), 2)
        if said != FORK:
            return None
        if not _fork():
            control.close()
            return _await_job(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork() -> bool:
    """Whether this is still the spare. The fork is not its child, but that of whoever adopts its orphans: the ignitor."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return True
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)
    return False


def _await_job(answer: int, output: int) -> Job:
    os.setsid()
    with socket.socket(fileno=answer) as ignitor:
        _send(ignitor, os.getpid())
        said = ignitor.recv(MESSAGE_BYTES)
    if not said:
        # The ignitor waits no longer.
        os._exit(0)
    for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(output, descriptor)
    os.close(output)
    # It logs as it would by itself.
    logging.getLogger().handlers.clear()
    if (numpy := sys.modules.get("numpy")) is not None:
        # Or all forks would draw the same.
        numpy.random.seed()
    return Job(**json.loads(said))


def _unfit() -> str:
    """Why forks of this process would not work; empty if they do."""
    # The threads of a library that knows of forks, as OpenBLAS, end at one, and come again where they are needed.
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    until = time.monotonic() + _THREAD_ENDS_S
    while (threads := len(os.listdir("/proc/self/task")) - 1) and time.monotonic() < until:
        # A thread that was joined is there for a moment longer.
        time.sleep(0.001)
    if threads:
        return f"what it imported has started {threads} threads"
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith(_DEVICES):
            return f"what it imported has opened {target}"
    return ""


def _memory_mib() -> float:
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _send(to: socket.socket, value: object) -> None:
    try:
        to.send(json.dumps(value).encode())
    except OSError:
        # The other side waits no longer.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
