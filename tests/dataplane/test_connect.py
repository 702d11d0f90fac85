from __future__ import annotations

import subprocess
import sys

from hpcrl.dataplane.memory import MemoryPlane


def test_a_hub_gives_a_memory_plane(make_bench):
    bench = make_bench("memory")
    assert isinstance(bench.plane("make"), MemoryPlane)


def test_importing_it_imports_nothing_heavy():
    code = "import sys, hpcrl.dataplane.connect; print([m for m in ('torch', 'transfer_queue', 'zmq') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_limits_of_the_recipe_are_the_deadlines(make_bench):
    bench = make_bench("memory")
    bench.limits(wait_s=7.0)
    assert bench.plane("make")._wait_s == 7.0
