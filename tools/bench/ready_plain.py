"""One of the processes that ``submit.py`` starts by plain ``srun``: imports what a run's process does, says that it is ready.

usage: python tools/bench/ready_plain.py FOLDER QUEUE [MODULE,…]; of the step's tasks, the first QUEUE do as the queue's own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from ready_recipe import be_ready

# What each has imported when it listens or is connected. The rows of this run travel between nodes.
EVERY = ("hpcrl.supervise.process",)
DESK = ("hpcrl.dataplane.desk.process",)
STORAGE = ("hpcrl.dataplane.transferqueue.storage",)
ROLE = ("hpcrl.dataplane.desk.client", "hpcrl.dataplane.transferqueue.mover")

if __name__ == "__main__":
    # Linux shares a processor among sessions, and a run's processes have one each.
    with contextlib.suppress(PermissionError):
        os.setsid()
    rank, queue = int(os.environ["SLURM_PROCID"]), int(sys.argv[2])
    further = tuple(filter(None, sys.argv[3].split(","))) if len(sys.argv) > 3 else ()
    own = DESK if rank == 0 else STORAGE if rank < queue else (*ROLE, *further)
    be_ready(Path(sys.argv[1]), f"plain.{rank}", (*EVERY, *own))
