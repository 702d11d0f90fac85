"""Writes this node's part of a snapshot: ``python -m hpcrl.dataplane.snapshot.part WANTED FOLDER``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.shm.reader import SegmentReader
from hpcrl.dataplane.snapshot.collect import Collector
from hpcrl.dataplane.snapshot.manifest import write_node
from hpcrl.dataplane.snapshot.parts import Part, read_wanted, write_part
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import HpcrlError, host


def main(argv: list[str]) -> int:
    """Write the part; exit code 0 if it is there."""
    wanted, folder = Path(argv[0]), Path(argv[1])
    request, blocks = read_wanted(wanted, folder)
    os.nice(request.nice)
    try:
        attempt = Attempt(RunDirectory.open(Path(request.run)), request.attempt)
        version = max((max(block.labels.last_versions, default=0) for block in blocks), default=0)
        collector = Collector(SegmentReader(folder, request.node), request.node, _no_units, patience_s=request.call_s)
        rows = collector.read(blocks)
        file = write_node(attempt, int(wanted.parent.name), request.node, request.streams, rows, policy_version=version)
        part = Part(**msgspec.structs.asdict(file), left_out=collector.left_out, why=collector.why)
    except (HpcrlError, OSError) as error:
        part = Part(error=f"node {request.node}: {error}")
    write_part(wanted.parent, request.node, part)
    return 1 if part.error else 0


def _no_units(refs: Sequence[Ref]) -> list[np.ndarray]:
    raise DataPlaneError(f"host {host()}: a node's part holds what lies in its shared memory only, not {refs[0].where}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
