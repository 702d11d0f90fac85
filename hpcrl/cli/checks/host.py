"""This host: Slurm, GPU driver, shared memory, ports, limits and clock."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from pathlib import Path

from hpcrl.cli.checks.finding import Finding

COMMAND_S = 20.0
OPEN_FILES = 4096
SHARED_MEMORY_GIB = 1.0
BLOCKS_PROBED = 16
# Before hpcrl existed: a clock that says so was never set.
EARLIEST = 1_735_689_600.0


def check_slurm(path: str | None = None) -> Finding:
    """Whether Slurm's commands are here and answer. Absent is fine: a laptop has none.

    Args:
        path: where to look instead of ``PATH``.
    """
    found = {name: shutil.which(name, path=path) for name in ("sinfo", "sbatch", "srun", "scancel")}
    if not any(found.values()):
        return Finding("Slurm", "ok", "none here (needed on a cluster only; hpcrl run works without)")
    lacking = [name for name, at in found.items() if at is None]
    if lacking:
        return Finding("Slurm", "warn", f"no {', '.join(lacking)} in PATH", "load the site's Slurm module")
    done = _output([str(found["sinfo"]), "--version"])
    nodes = _output([str(found["sinfo"]), "--noheader", "--format=%P %D %G"])
    if done is None or nodes is None:
        return Finding(
            "Slurm",
            "warn",
            "sinfo does not answer",
            "run `sinfo` by hand; the controller may be down or out of reach from here",
        )
    return Finding("Slurm", "ok", f"{done.strip()}; partitions: {'; '.join(nodes.split(chr(10))[:6]).strip('; ')}")


def check_driver(path: str | None = None) -> Finding:
    """What the GPU driver says, apart from torch. Absent is fine."""
    command = shutil.which("nvidia-smi", path=path)
    if command is None:
        return Finding("GPU driver", "ok", "no nvidia-smi here; roles run on the CPU")
    text = _output([command, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if text is None or not lines:
        return Finding("GPU driver", "warn", "nvidia-smi does not answer", "run `nvidia-smi` by hand; ask the site's admins")
    return Finding("GPU driver", "ok", f"{len(lines)} GPUs: {'; '.join(sorted(set(lines))[:4])}")


def check_ports(ephemeral: tuple[int, int] | None = None) -> Finding:
    """Whether port blocks as the plan picks them can be bound."""
    from hpcrl.plan.local import ephemeral_range
    from hpcrl.plan.ports import END, FIRST, candidates, probe_busy

    low, high = ephemeral_range() if ephemeral is None else ephemeral
    blocks = candidates("doctor", BLOCKS_PROBED, [(low, high)])
    if not blocks:
        return Finding(
            "ports",
            "fail",
            f"the ephemeral range {low}-{high} leaves no block between {FIRST} and {END}",
            "ask the admins to narrow net.ipv4.ip_local_port_range",
        )
    free = len(blocks) - len(probe_busy("127.0.0.1", blocks))
    what = f"{free} of {len(blocks)} blocks outside the ephemeral range {low}-{high} are free"
    if free == 0:
        return Finding("ports", "fail", what, "see what listens (`ss -ltnp`) and end left-over runs")
    return Finding(
        "ports", "ok" if free * 2 >= len(blocks) else "warn", what, "" if free * 2 >= len(blocks) else "see `ss -ltnp`"
    )


def check_open_files(limit: int | None = None) -> Finding:
    """Whether a process may open as many files and sockets as a data plane of hundreds of peers needs."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    if soft < OPEN_FILES:
        return Finding(
            "open files",
            "warn",
            f"ulimit -n is {soft}, large runs need {OPEN_FILES}",
            f"ulimit -n {OPEN_FILES} before the start",
        )
    return Finding("open files", "ok", f"ulimit -n is {soft}")


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Whether there is shared memory enough for torch and the data plane."""
    do = "mount a larger /dev/shm (in a container: --shm-size)"
    if not folder.is_dir():
        return Finding("shared memory", "warn", f"there is no {folder}", do)
    usage = shutil.disk_usage(folder)
    total, free = usage.total / 2**30, usage.free / 2**30
    what = f"{folder} has {free:.1f} of {total:.1f} GiB free"
    return Finding("shared memory", "ok", what) if free >= SHARED_MEMORY_GIB else Finding("shared memory", "warn", what, do)


def check_clock(now: float | None = None) -> Finding:
    """Whether the clock was ever set, and goes forward at the pace of the monotonic one."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.05)
    drift = abs((time.time() - wall) - (time.monotonic() - steady))
    now = wall if now is None else now
    do = "let chrony or NTP set the clock; records of several nodes are ordered by time"
    if now < EARLIEST:
        return Finding("clock", "fail", f"says {time.strftime('%Y-%m-%d', time.gmtime(now))}", do)
    if drift > 0.02:
        return Finding("clock", "warn", f"moved {drift * 1000:.0f} ms against the monotonic clock in 50 ms", do)
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))


def all_host() -> list[Finding]:
    """Every check of this host."""
    return [
        check_driver(),
        check_slurm(),
        check_ports(),
        check_open_files(),
        check_shared_memory(),
        check_clock(),
    ]


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
