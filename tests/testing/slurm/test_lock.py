from __future__ import annotations

import subprocess
import sys

import pytest

from hpcrl.run.errors import DeadlineExceeded
from hpcrl.testing.slurm.lock import host_lock

# Says that it holds the lock, then keeps it until it is killed.
HOLDER = "from hpcrl.testing.slurm.lock import host_lock\nwith host_lock(seconds=60): print('held', flush=True); input()"


def test_a_second_holder_waits_until_the_first_is_gone_however_it_goes():
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DeadlineExceeded, match="another start or stop of a test cluster"), host_lock(seconds=0.1):
            pass
        holder.kill()
        holder.wait()
        with host_lock(seconds=5):
            pass
