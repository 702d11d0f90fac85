"""Writes a rank's saves, in a process of its own: ``python -m hpcrl.checkpoint.state.writer CONNECTION MEMORY``.

The arguments are inherited descriptors. See :mod:`hpcrl.checkpoint.state.request` for what is said.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn

from hpcrl.run.failpoints import reach
from hpcrl.run.importing import uncollected

_NICE = 10


def main(arguments: list[str]) -> NoReturn:
    """Write one save after the other until the trainer is gone."""
    reach("writer.start")
    connection, memory = Connection(int(arguments[0])), int(arguments[1])
    with suppress(OSError):
        os.nice(_NICE)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # A save that is committed after its trainer has ended would come as a surprise to whoever has taken over.
    threading.Thread(target=_hear, args=(connection, messages), daemon=True).start()
    # Only now, as it takes seconds: the trainer may have ended meanwhile.
    with uncollected():
        from hpcrl.checkpoint.state.writing import Writer

    writer = Writer(messages.get(), memory)
    while True:
        connection.send_bytes(writer.answer(messages.get()))


def _hear(connection: Connection, messages: queue.SimpleQueue[bytes]) -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv_bytes())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
