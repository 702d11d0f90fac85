"""This host as an allocation of one node, for a run without a scheduler."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from hpcrl.plan.allocation import EPHEMERAL, Allocation, Node
from hpcrl.run.errors import CheckFailed, host

_QUERY_S = 20.0


def local_allocation() -> Allocation:
    """One node at 127.0.0.1 with this host's GPUs, cores and memory; more threads than cores are fine on it.

    Raises:
        CheckFailed: the host has GPUs that cannot be asked for what they are.
    """
    gpus = _gpus()
    domains = tuple(numa for _, _, numa in gpus)
    node = Node(
        name=host(),
        address="127.0.0.1",
        gpus=tuple(index for index, _, _ in gpus),
        gpu_memory_gib=min((gib for _, gib, _ in gpus), default=0.0),
        cpus=len(os.sched_getaffinity(0)),
        memory_gib=_memory_gib(),
        numa=domains if gpus and min(domains) >= 0 else None,
        ephemeral=ephemeral_range(),
    )
    return Allocation(nodes=(node,), cpus_shared=True)


def ephemeral_range(file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> tuple[int, int]:
    """First and last port that this kernel hands out by itself; Linux's default where it cannot be read."""
    try:
        first, last = file.read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return EPHEMERAL


def parse_gpus(text: str, visible: str | None) -> list[tuple[int, float, str]]:
    """(index, memory [GiB], PCI address) of each GPU that may be used.

    Args:
        text: what ``nvidia-smi --query-gpu=index,memory.total,pci.bus_id,uuid --format=csv,noheader,nounits`` prints.
        visible: ``CUDA_VISIBLE_DEVICES``; indexes or UUIDs, up to the first that is neither; None = all.
    """
    found = []
    for line in text.splitlines():
        index, mib, bus, uuid = (part.strip() for part in line.split(","))
        found.append((int(index), int(mib) / 1024, bus, uuid))
    if visible is None:
        return [(index, gib, bus) for index, gib, bus, _ in found]
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        match = [(index, gib, bus) for index, gib, bus, uuid in found if name and (name == str(index) or uuid.startswith(name))]
        if not match:
            break
        chosen += match[:1]
    return sorted(set(chosen))


def _gpus() -> list[tuple[int, float, int]]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index,memory.total,pci.bus_id,uuid", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_S, check=True)
        found = parse_gpus(answer.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CheckFailed(
            [f"host {host()}: nvidia-smi is installed and cannot tell the GPUs ({error}); run `{' '.join(command)}` to see why"]
        ) from error
    return [(index, gib, _numa(bus)) for index, gib, bus in found]


def _numa(bus: str) -> int:
    # nvidia-smi writes an eight-digit PCI domain, sysfs one of four.
    domain, _, rest = bus.lower().partition(":")
    try:
        return int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
    except (OSError, ValueError):
        return -1


def _memory_gib() -> float:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # No limit is written as the word max.
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return round(total / 2**30, 3)
