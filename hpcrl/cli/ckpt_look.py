"""What the checkpoint service has in a run, gathered for the commands of ``hpcrl ckpt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcrl.checkpoint.state.layout import SaveName
from hpcrl.checkpoint.state.retain import Keep
from hpcrl.checkpoint.view.keeping import Keeping
from hpcrl.checkpoint.view.saves import SaveInfo, list_saves, resumes_from
from hpcrl.checkpoint.view.versions import Unfinished, VersionInfo, list_unfinished, list_versions
from hpcrl.config.diff import read_resolved
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.survey import survey
from hpcrl.roles.trainer import Trainer
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.tracking.journal import JournalReader


@dataclass(frozen=True)
class Look:
    """A run at a moment.

    Attributes:
        saves: oldest first.
        versions: rising.
        keeping: what its trainer keeps.
        live: nothing says that it has ended.
        served: by engine process, the policy version that it serves, -1 for none; of a run that lives.
        resume: the save that the next attempt goes on from.
        why_not: why there is none; empty where a run begins at step 0.
    """

    run: RunDirectory
    saves: list[SaveInfo]
    versions: list[VersionInfo]
    unfinished: list[Unfinished]
    keeping: Keeping
    live: bool
    served: Mapping[str, int]
    resume: SaveInfo | None
    why_not: str

    @property
    def protected(self) -> dict[int, str]:
        """By version, why it must stay while the run lives: an engine serves it, or may be loading it."""
        if not self.live:
            return {}
        oldest = min(self.served.values(), default=0)
        return {
            info.version: "it is served" if info.version in self.served.values() else "an engine may be loading it"
            for info in self.versions
            if info.version >= oldest
        }


def look_at(run: RunDirectory) -> Look:
    """Read manifests, records and the sizes of files."""
    live = lives(run)
    saves = list_saves(run.state, run.run_id)
    resume, why_not = resumes_from(saves, next_attempt(run))
    return Look(
        run=run,
        saves=saves,
        versions=list_versions(run.weights),
        unfinished=list_unfinished(run.weights),
        keeping=keeping_of(run),
        live=live,
        served=served(run) if live else {},
        resume=resume,
        why_not=why_not,
    )


def next_attempt(run: RunDirectory) -> int:
    """Number of the attempt that a resume would begin."""
    attempts = run.attempts()
    return attempts[-1].number + 1 if attempts else 1


def lives(run: RunDirectory) -> bool:
    """Whether a run may be going on: its processes left no word of their end, or Slurm knows an active job of it."""
    if not run.attempts():
        return False
    (seen,) = survey([run], Slurm())
    return not seen.standing.is_over


def served(run: RunDirectory) -> dict[str, int]:
    """By engine process, the version that it serves by its journal, -1 for none; those that never served are left out."""
    found: dict[str, int] = {}
    for writer, record in JournalReader(run.latest().journal).read():
        if record.get("kind") == "served" and isinstance(record.get("version"), int):
            found[writer] = record["version"]
        elif record.get("kind") == "unserved":
            found[writer] = -1
    return found


def keeping_of(run: RunDirectory) -> Keeping:
    """What the run's trainer keeps, by its resolved recipe; the defaults where it does not say."""
    settings = trainer_of(run)

    def told(name: str) -> Any:
        return settings.get(name, getattr(Trainer, name))

    saves = Keep(
        last=told("keep_states"), every=told("keep_states_every"), best=told("keep_best_states"), metric=told("best_by")
    )
    return Keeping(saves=saves, versions=told("keep_weights"))


def trainer_of(run: RunDirectory) -> Mapping[str, Any]:
    """Settings of the trainer in the run's resolved recipe, as JSON; empty where there is none."""
    try:
        groups = read_resolved(run.path)["groups"]
        roles = [group["role"] for group in groups.values()]
    except (CheckFailed, KeyError, TypeError, AttributeError):
        return {}
    found: list[dict[str, Any]] = [role for role in roles if isinstance(role, dict)]
    return next((role for role in found if "keep_states" in role or str(role.get("$type", "")).endswith(":Trainer")), {})


def find_save(look: Look, what: str) -> SaveInfo:
    """A save by its step, the newest of it, or by its name; committed ones come first.

    Raises:
        CheckFailed: there is none; names the nearest.
    """
    name = SaveName.parse(what)
    found = [info for info in look.saves if info.name == name or (what.isdecimal() and info.name.step == int(what))]
    if found:
        return max(found, key=lambda info: (info.state == "committed", info.name))
    raise CheckFailed([f"run {look.run.path} has no save {what}; {_nearest(what, [i.name.step for i in look.saves])}"])


def find_version(look: Look, what: str) -> VersionInfo:
    """A policy version by its number, with or without a ``v`` before it.

    Raises:
        CheckFailed: there is none; names the nearest.
    """
    number = what.removeprefix("v")
    for info in look.versions:
        if number.isdecimal() and info.version == int(number):
            return info
    raise CheckFailed(
        [f"run {look.run.path} has no policy version {number}; {_nearest(number, [i.version for i in look.versions])}"]
    )


def _nearest(what: str, there: list[int]) -> str:
    if not there:
        return "there are none"
    known = sorted(set(there))
    if not what.isdecimal():
        return f"there are: {', '.join(map(str, known[:12]))}" + (", …" if len(known) > 12 else "")
    near = sorted(sorted(known, key=lambda number: abs(number - int(what)))[:2])
    return f"nearest: {' and '.join(map(str, near))}"
