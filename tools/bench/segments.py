"""Shared-memory segments against a plain copy of the same bytes, in the same run.

    python tools/bench/segments.py [--folder /dev/shm] [--rounds 7]

A round writes 64 MiB of blocks and reads them back. ``fresh``: every segment is a new file; ``reused``: the writer was told
that the segments of the round before are free. ``copy`` is one copy between two arrays of this process, ``read`` maps and
touches every page, ``read+copy`` maps and copies to an array that was there before. Rounds of all kinds take turns; every
figure is the best round.
"""

from __future__ import annotations

import argparse
import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.packing import Packing, prepare
from hpcrl.dataplane.shm.folders import attempt_folder, remove_attempt
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.shm.writer import SegmentWriter
from hpcrl.recipe import Column

TOTAL = 64 * 2**20
SIZES = {"6 KiB x 256 rows": (6 * 2**10, 256), "256 KiB": (256 * 2**10, 1), "16 MiB": (16 * 2**20, 1)}


@dataclass(frozen=True)
class Figures:
    """Best throughput of each step [MiB/s]."""

    copy: float
    write_fresh: float
    write_reused: float
    read: float
    read_copy: float


def measure(root: Path, row_bytes: int, rows: int, rounds: int) -> Figures:
    """Of blocks of so many rows."""
    column = Column(name="tokens", dtype="int32", ragged=True)
    data = [np.arange(row_bytes // 4, dtype=np.int32) for _ in range(rows)]
    packing = prepare("samples", column, np.arange(rows, dtype=np.int64), data)
    count = max(1, TOTAL // packing.size)
    source = np.ones((count, packing.size), np.uint8)
    target = np.zeros_like(source)
    folder, lives = attempt_folder(f"bench-{secrets.token_hex(4)}", 1, root), itertools.count()
    writer = SegmentWriter(folder, "reused.0", next(lives), "here", spare_bytes=4 * TOTAL)
    reader = SegmentReader(folder, "here")
    best: Counter[str] = Counter()

    def timed(name: str, step: Callable[[], object]) -> None:
        began = time.perf_counter()
        step()
        best[name] = max(best[name], int(count * packing.size / (time.perf_counter() - began)))

    def write(to: SegmentWriter, refs: list[Ref], packed: Packing = packing) -> None:
        refs.extend(to.place(packed.size, packed.into) for _ in range(count))

    def copy() -> None:
        for number in range(count):
            np.copyto(target[number], source[number])

    def read_copy(refs: list[Ref]) -> None:
        for number, ref in enumerate(refs):
            np.copyto(target[number], reader.read(ref))

    try:
        for number in range(rounds + 1):
            refs, fresh_refs = list[Ref](), list[Ref]()
            fresh = SegmentWriter(folder, "fresh.0", next(lives), "here", spare_bytes=0)
            timed("copy", copy)
            timed("fresh", lambda fresh=fresh, refs=fresh_refs: write(fresh, refs))  # type: ignore[misc]
            # The first round of this writer is fresh too.
            timed("reused" if number else "first", lambda refs=refs: write(writer, refs))  # type: ignore[misc]
            timed("read", lambda refs=refs: [reader.read(ref)[::4096].sum() for ref in refs])  # type: ignore[misc]
            reader.release()
            timed("read_copy", lambda refs=refs: read_copy(refs))  # type: ignore[misc]
            reader.release()
            for one, made in ((writer, refs), (fresh, fresh_refs)):
                one.freed(Counter(ref.where for ref in made))
            fresh.close()
    finally:
        writer.close()
        remove_attempt(folder)
    mib = {name: speed / 2**20 for name, speed in best.items()}
    return Figures(mib["copy"], mib["fresh"], mib["reused"], mib["read"], mib["read_copy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{'block':18} {'copy':>12} {'write fresh':>16} {'write reused':>16} {'read':>16} {'read+copy':>16}  MiB/s (ratio)")
    for name, (row_bytes, rows) in SIZES.items():
        found = measure(arguments.folder, row_bytes, rows, arguments.rounds)
        steps = (found.write_fresh, found.write_reused, found.read, found.read_copy)
        cells = " ".join(f"{f'{speed:.0f} ({speed / found.copy:.2f})':>16}" for speed in steps)
        print(f"{name:18} {found.copy:>12.0f} {cells}")


if __name__ == "__main__":
    main()
