"""Imports without the garbage collector, which finds nothing in what they make and takes a tenth of their time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import large libraries meanwhile, in a process whose other threads do not work yet.

    What is there at the end is not looked at by later collections either.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
