from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hpcrl.supervise.claim import PortClaims

BLOCKS = ((10_240, 10_496), (10_496, 10_752))
HOLDER = """
import sys
from hpcrl.supervise.claim import PortClaims
claims = PortClaims("another")
print(claims.claim([(10_400, 10_600)]), flush=True)
sys.stdin.read()
"""


def test_another_run_in_another_process_is_seen_until_it_ends():
    mine = PortClaims("test-claims")
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "()\n"
        assert mine.claim(BLOCKS) == BLOCKS, "they overlap"
        holder.stdin.close()
        holder.wait(20)
    assert mine.claim(BLOCKS) == ()
    mine.close()


def test_processes_of_one_run_share_a_block_and_what_is_not_kept_is_free():
    one, two, other = PortClaims("test-a"), PortClaims("test-b"), PortClaims("test-b")
    assert one.claim(BLOCKS) == ()
    assert two.claim(BLOCKS[:1]) == BLOCKS[:1]
    one.keep(BLOCKS[1])
    two.keep(BLOCKS[0])
    assert other.claim(BLOCKS) == BLOCKS[1:]
    for claims in (one, two, other):
        claims.close()
    assert PortClaims("test-c").claim(BLOCKS) == ()
