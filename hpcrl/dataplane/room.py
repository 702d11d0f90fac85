"""Room for the data plane on a node's own file systems."""

from __future__ import annotations

import shutil
from pathlib import Path

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.run.errors import host

SHARED_MEMORY = Path("/dev/shm")
_MIB = 2**20


def choose_root(need: int, fallback: Path | None = None, *, shared_memory: Path = SHARED_MEMORY) -> Path:
    """The first of shared memory and the fallback that is as large as ``need`` bytes.

    By size and not by free space, so that every process of a node chooses the same.

    Raises:
        DataPlaneError: none is; names each one's size and free space.
    """
    seen = []
    for root in (shared_memory, *([fallback] if fallback is not None else [])):
        if not root.is_dir():
            seen.append(f"{root} is no directory")
            continue
        space = shutil.disk_usage(root)
        if space.total >= need:
            return root
        seen.append(f"{root} has {space.total / _MIB:.0f} MiB, {space.free / _MIB:.0f} MiB of them free")
    raise DataPlaneError(
        f"host {host()}: the data plane needs {need / _MIB:.0f} MiB of shared memory: {'; '.join(seen)}; mount a larger "
        f"{shared_memory} (in a container: --shm-size), name a larger folder local to the node, or lower the streams' capacity"
    )


def no_room(path: Path, size: int, error: OSError) -> DataPlaneError:
    """The error of a write of ``size`` bytes to a file that failed; nothing of it is left."""
    folder = next(parent for parent in path.parents if parent.exists())
    space = shutil.disk_usage(folder)
    return DataPlaneError(
        f"host {host()}: cannot write {size / _MIB:.3g} MiB to {path}: {error.strerror}; its file system has "
        f"{space.free / _MIB:.1f} of {space.total / _MIB:.0f} MiB free, see `df -h {folder}`; lower the streams' "
        "capacity, mount a larger one (in a container: --shm-size), or name a larger folder local to the node"
    )
