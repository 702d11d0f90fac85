"""One of the processes that ``submit.py`` starts by plain ``srun``: imports what a role's process does, says that it is ready.

usage: python tools/bench/ready_plain.py FOLDER [MODULE,…]
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from ready_recipe import be_ready

# What every role process has imported when it is connected to its queue.
MODULES = ("hpcrl.supervise.process", "hpcrl.dataplane.transferqueue.client")

if __name__ == "__main__":
    # Linux shares a processor among sessions, and a run's processes have one each.
    with contextlib.suppress(PermissionError):
        os.setsid()
    further = tuple(filter(None, sys.argv[2].split(","))) if len(sys.argv) > 2 else ()
    be_ready(Path(sys.argv[1]), f"plain.{os.environ.get('SLURM_PROCID', 0)}", (*MODULES, *further))
