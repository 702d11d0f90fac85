"""The names in a folder that many processes write to and many look into, for the price of one open while it stays as it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

# The coarsest time of change that a file system gives: two changes within it look like one.
SETTLED_S = 2.0


class Listing:
    """Follows the names in a folder.

    It is listed again when its time of change is another one, and as long as that time is so new that a further change
    could have left it as it is. Opening the folder has network file systems ask their server, which a bare stat does not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = -1
        self._settled = 0.0
        self._listed = -1.0
        self._names: frozenset[str] = frozenset()

    def read(self) -> frozenset[str]:
        """Names of files and folders that are there; the same object as before while nothing has changed. Empty without the
        folder; names with a leading dot, which are files being written, are left out.
        """
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return self._names
        try:
            changed, now = os.fstat(folder).st_mtime_ns, time.monotonic()
            if changed != self._changed:
                self._changed, self._settled = changed, now + SETTLED_S
            elif self._listed >= self._settled:
                return self._names
            self._listed = now
            names = frozenset(name for name in os.listdir(folder) if not name.startswith("."))
        finally:
            os.close(folder)
        if names != self._names:
            self._names = names
        return self._names
