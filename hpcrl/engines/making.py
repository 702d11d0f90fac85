"""Models are made one at a time in a process.

The type that torch gives numbers of which none is named belongs to the whole process, and who makes a model sets it meanwhile:
two threads that did so at once, as in a run in one process, would give each other layers of a wrong type.
"""

from __future__ import annotations

import threading

MAKING = threading.Lock()
