"""One save under way in the trainer's process: the copy to host memory, then the wait for the writer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from hpcrl.checkpoint.state.layout import SaveName
from hpcrl.checkpoint.state.memory import SharedMemory, copy
from hpcrl.checkpoint.state.part import leave_word
from hpcrl.checkpoint.state.plan import Planned
from hpcrl.checkpoint.state.process import WriterProcess
from hpcrl.checkpoint.state.request import Failed, Job, Reply
from hpcrl.run.errors import host
from hpcrl.run.failpoints import reach


class Saving(threading.Thread):
    """Copies at once and asks the writer when all is copied.

    Args:
        tensor: gives what an item of the plan is to hold.
        writer: None where it could not be started.

    Attributes:
        save: which one.
        copied: set once the tensors may change, whether they could be copied or not.
        reply: how it ended, once the thread has.
        seconds: from the begin to the end.
        stalled_s: how long the trainer has waited for it.
    """

    def __init__(
        self,
        save: SaveName,
        job: Job,
        planned: Planned,
        tensor: Callable[[Any], torch.Tensor],
        memory: SharedMemory,
        writer: WriterProcess | None,
    ) -> None:
        super().__init__(name="save", daemon=True)
        self.save, self.copied = save, threading.Event()
        self.reply: Reply = Failed("it was not begun")
        self.seconds = self.stalled_s = 0.0
        self._began = time.monotonic()
        self._job, self._writer = job, writer
        # Looked up here: the trainer's dictionaries are its own thread's.
        self._pairs = [(tensor(item), target) for item, target in zip(planned.plan.items, memory.tensors, strict=True)]
        self._gpu = next((source.device for source, _ in self._pairs if source.device.type == "cuda"), None)
        self._cuda: Any = torch.cuda
        self._ready: Any = None
        if self._gpu is not None:
            self._ready = self._cuda.Event()
            self._ready.record(self._cuda.current_stream(self._gpu))

    def run(self) -> None:
        """Copy, ask, wait."""
        job, folder = self._job, Path(self._job.folder)
        try:
            self._copy()
            reach("state.staged", folder)
        except (OSError, RuntimeError, ValueError) as error:
            self.reply = Failed(f"trainer rank {job.rank} on {host()}: the state of step {job.step} cannot be copied: {error}")
        else:
            self.copied.set()
            self.reply = self._write(folder)
        finally:
            self._pairs = []
            self.copied.set()
        if isinstance(self.reply, Failed) and job.commit is None:
            leave_word(folder / str(self.save), job.rank, self.reply.error)
        self.seconds = time.monotonic() - self._began

    def _write(self, folder: Path) -> Reply:
        if self._writer is None:
            return Failed(f"trainer rank {self._job.rank} on {host()}: the process that writes saves could not be started")
        self._writer.ask(self._job)
        reach("state.asked", folder)
        return self._writer.answer(self._job)

    def _copy(self) -> None:
        with ExitStack() as stack:
            stream: Any = None
            if self._gpu is not None:
                stream = self._cuda.Stream(self._gpu)
                stack.enter_context(self._cuda.stream(stream))
                stream.wait_event(self._ready)
            for source, target in self._pairs:
                reach("state.stage", self._job.folder)
                copy(source, target)
            if stream is not None:
                stream.synchronize()
