"""The errors that a person sees. Each says who, what happened, which file to read and what to do next."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class HpcrlError(Exception):
    """Base of every error that hpcrl raises on purpose."""


class CheckFailed(HpcrlError):
    """What was asked for would not work, found before it was begun. Holds every reason found, not only the first.

    Attributes:
        problems: one sentence each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(f"{head}:\n" + "\n".join(f"  - {problem}" for problem in self.problems))


class DeadlineExceeded(HpcrlError):
    """A named wait took longer than its deadline."""


class Stopped(HpcrlError):
    """The role was asked to stop while it waited. Not a failure: the role saves what it has and returns."""


class RoleFailed(HpcrlError):
    """A role cannot go on.

    Args:
        what: what happened.
        read: the file that tells more, if there is one.
        do: what a person can do next.
        code: exit code of the role's process, 1 to 255.
    """

    def __init__(self, what: str, *, read: str | os.PathLike[str] | None = None, do: str = "", code: int = 1) -> None:
        self.what, self.read, self.do, self.code = what, read, do, code
        super().__init__(what + (f"; read {os.fspath(read)}" if read else "") + (f"; {do}" if do else ""))


def checked(work: Callable[[], T], problems: list[str]) -> T | None:
    """Its result; None, and what is wrong added to ``problems``, where it raises :class:`CheckFailed`."""
    try:
        return work()
    except CheckFailed as failed:
        problems += failed.problems
        return None


class RoleLost(RoleFailed):
    """What a role's process stands on was killed under it, such as a server that it started. Where the role has a process of
    its own, that is taken as killed too, and may be started again in place.
    """


def host() -> str:
    """Name of this host as errors and records give it; a Slurm node name where there is one."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
