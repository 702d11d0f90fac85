"""Python, and the packages that pyproject asks for."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hpcrl.cli.checks.finding import Finding

TRANSFER_QUEUE = "0.1.11"
TORCH_S = 180.0
# In a process of its own: a broken torch may end the interpreter instead of raising.
TORCH_PROBE = """
import json, torch
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(),
    "distributed": torch.distributed.is_available(),
    "gpus": [{"name": g.name, "gib": round(g.total_memory / 2**30, 1)} for g in gpus],
}))
"""

Versions = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """Version of an installed package, None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_python(asked: str | None, version: str) -> Finding:
    """Is this Python one that hpcrl supports."""
    if asked is not None and version not in SpecifierSet(asked):
        return Finding(
            "python", "fail", f"{version}, hpcrl needs {asked}", "make a virtual environment with Python 3.11 or 3.12"
        )
    return Finding("python", "ok", f"{version} at {sys.executable}")


def check_requirements(requirements: list[str], version_of: Versions = installed) -> list[Finding]:
    """One finding for each package that is asked for; those of extras only where they are installed."""
    findings = []
    for text in requirements:
        asked = Requirement(text)
        extra = _extra(asked)
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra or ""}):
            continue
        found = version_of(asked.name)
        if found is None and extra is not None:
            continue
        findings.append(_package(asked, found, extra))
    return findings


def check_transfer_queue(version_of: Versions = installed) -> Finding:
    """TransferQueue is installed beside the other packages, and hpcrl uses parts of it that only this version has."""
    found = version_of("TransferQueue")
    do = f"pip install --no-deps TransferQueue=={TRANSFER_QUEUE}"
    if found is None:
        return Finding("TransferQueue", "fail", "not installed", do)
    if found != TRANSFER_QUEUE:
        return Finding("TransferQueue", "fail", f"{found}, hpcrl needs exactly {TRANSFER_QUEUE}", do)
    return Finding("TransferQueue", "ok", found)


def check_torch(probe: str = TORCH_PROBE, seconds: float = TORCH_S) -> list[Finding]:
    """Whether torch can be imported, and the GPUs that it sees."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", probe],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [
            Finding(
                "import of torch",
                "fail",
                f"import did not end within {seconds:g} s",
                "the file system of the virtual environment is too slow; put the environment on a local disk",
            )
        ]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [
            Finding(
                "import of torch",
                "fail",
                f"import ended with code {done.returncode}: {last}",
                "reinstall torch for this machine's CUDA or CPU",
            )
        ]
    found = json.loads(done.stdout.splitlines()[-1])
    build = f"CUDA {found['cuda']}" if found["cuda"] else "CPU build"
    findings = [Finding("import of torch", "ok", f"{found['version']}, {build}, {found['threads']} threads")]
    if not found["distributed"]:
        findings.append(Finding("torch.distributed", "fail", "not in this build of torch", "install a build with distributed"))
    return [*findings, *_gpus(found["gpus"], found["cuda"])]


def all_packages() -> list[Finding]:
    """Python, every package, TransferQueue and torch of this environment."""
    try:
        held = metadata.metadata("hpcrl")
        requirements = metadata.requires("hpcrl") or []
    except metadata.PackageNotFoundError:
        missing = Finding(
            "hpcrl", "fail", "not installed in this Python", "pip install -e . in the checkout, or tools/install.sh"
        )
        return [check_python(None, platform.python_version()), missing, *check_torch()]
    return [
        check_python(held["Requires-Python"], platform.python_version()),
        *check_requirements(requirements),
        check_transfer_queue(),
        *check_torch(),
    ]


def _package(asked: Requirement, found: str | None, extra: str | None) -> Finding:
    wanted = f"{asked.name}{asked.specifier}"
    if found is None:
        return Finding(asked.name, "fail", f"not installed, hpcrl needs {wanted}", f"pip install '{wanted}'")
    if not asked.specifier.contains(found, prereleases=True):
        of = f" for extra {extra}" if extra else ""
        return Finding(asked.name, "warn" if extra else "fail", f"{found}, hpcrl needs {wanted}{of}", f"pip install '{wanted}'")
    return Finding(asked.name, "ok", found)


def _extra(asked: Requirement) -> str | None:
    if asked.marker is None or "extra" not in str(asked.marker):
        return None
    return str(asked.marker).partition("extra ==")[2].strip().split()[0].strip("\"'")


def _gpus(gpus: list[dict[str, object]], cuda: str | None) -> list[Finding]:
    if gpus:
        kinds = sorted({f"{gpu['name']} ({gpu['gib']} GiB)" for gpu in gpus})
        return [Finding("GPUs of torch", "ok", f"{len(gpus)} x {', '.join(kinds)}")]
    if cuda:
        return [
            Finding(
                "GPUs of torch",
                "warn",
                "this torch is built for CUDA and sees no GPU",
                "run this in a job with GPUs; there, look at nvidia-smi and CUDA_VISIBLE_DEVICES",
            )
        ]
    return [Finding("GPUs of torch", "ok", "none; roles run on the CPU")]
