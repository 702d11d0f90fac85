"""Whether an interpreter has an SGLang that will do, asked without importing it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from hpcrl.engines.sglang.command import environment_of
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.run.errors import CheckFailed

FIRST, LAST = "0.5.17", "0.5.23"
_ASK = "import importlib.metadata as m; print(m.version('sglang'))"
_ASK_S = 60.0
# From here on the cache can be flushed while requests wait.
_FLUSHES_HELD = "0.5.21"
_NO_PREFIXES = "--disable-radix-cache"


def interpreter(sglang: Sglang) -> str:
    """The interpreter that serves."""
    return sglang.python or sys.executable


def check_interpreter(sglang: Sglang, pause: str) -> None:
    """Whether the interpreter of these settings can serve.

    Args:
        pause: what happens to requests under way while weights change; see :class:`hpcrl.roles.inference.Inference`.

    Raises:
        CheckFailed: it cannot; says why.
    """
    python = interpreter(sglang)
    problems = version_problems(installed_version(sglang), python, pause, sglang.arguments)
    if problems:
        raise CheckFailed(problems)


def installed_version(sglang: Sglang) -> str:
    """Version of SGLang by what its installation says.

    Raises:
        CheckFailed: the interpreter is not there, or has none.
    """
    python = interpreter(sglang)
    found = shutil.which(python)
    if found is None:
        raise CheckFailed(
            [f"sglang.python: there is no program {python} here; name the interpreter that SGLang is installed for"]
        )
    environment = environment_of(os.environ, sglang)
    try:
        done = subprocess.run([found, "-c", _ASK], env=environment, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckFailed([f"sglang.python: {python} does not run: {error}"]) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CheckFailed(
            [
                f"sglang.python: {python} has no SGLang ({last}); install sglang from {FIRST} to {LAST} for it, or name an "
                "interpreter that has it (for a CPU: bash tools/sglang_cpu.sh)"
            ]
        )
    return done.stdout.strip()


def version_problems(version: str, python: str, pause: str, arguments: Sequence[str] = ()) -> list[str]:
    """What is wrong with a version of SGLang, a sentence each. Pure."""
    from packaging.version import InvalidVersion, Version

    try:
        found = Version(Version(version).base_version)
    except InvalidVersion:
        return [f"sglang.python: {python} has SGLang {version!r}, which is no version; hpcrl knows {FIRST} to {LAST}"]
    if not Version(FIRST) <= found <= Version(LAST):
        return [f"sglang.python: {python} has SGLang {version}; hpcrl knows {FIRST} to {LAST}"]
    if pause == "retract" and found < Version(_FLUSHES_HELD) and _NO_PREFIXES not in arguments:
        return [
            f"pause is retract, and SGLang {version} keeps what the old weights made of the prompts that it holds back: use "
            f"SGLang {_FLUSHES_HELD} or later, add {_NO_PREFIXES} to sglang.arguments, or pause in_place"
        ]
    return []
