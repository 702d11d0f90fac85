"""The process that writes a rank's saves, as the trainer sees it."""

from __future__ import annotations

import pickle

import msgspec

from hpcrl.checkpoint.state.plan import Planned
from hpcrl.checkpoint.state.request import Failed, Job, Reply, decode_reply, encode
from hpcrl.run.beside import Beside
from hpcrl.run.errors import host

_MODULE = "hpcrl.checkpoint.state.writer"


class WriterProcess:
    """Started once, for all saves.

    Args:
        memory: descriptor of the shared memory.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, planned: Planned, memory: int) -> None:
        self._process = Beside(_MODULE, (memory,))
        self._setup: bytes | None = pickle.dumps(planned)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.alive

    def ask(self, job: Job) -> None:
        """Ask for a job; one that has ended shows by its answer."""
        if self._setup is not None:
            self._process.send(self._setup)
            self._setup = None
        self._process.send(encode(job))

    def answer(self, job: Job) -> Reply:
        """Wait for the answer to a job; :class:`Failed` also where the process ends instead."""
        said = self._process.receive()
        if said is None:
            return Failed(self._told(job, self._process.how_it_ended()))
        try:
            return decode_reply(said)
        except msgspec.MsgspecError as error:
            return Failed(self._told(job, f"has said what makes no sense ({error})"))

    def close(self) -> None:
        """End it, whatever it is doing. Safe to call twice."""
        self._process.close()

    def _told(self, job: Job, how: str) -> str:
        return (
            f"trainer rank {job.rank} on {host()}: the state of step {job.step} cannot be saved: the process that writes it "
            f"({self.pid}) {how}; read this rank's log"
        )
