"""The run directory: what a run leaves on the file system, and where.

::

    RUN/run.json            id and name of the run
    RUN/recipe.json         the resolved recipe
    RUN/recipe.py           the module it was built from, and beside it the modules that it imported from its folder
    RUN/key                 the run's secret, mode 0600
    RUN/attempt_1/          one life of the run between requeues; RUN/latest points at the newest
      plan.json             what was placed where
      logs/GROUP.RANK.log   what each role printed; ignitor.SLOT.log
      journal/WRITER.jsonl  what each process reports
      done/GROUP.RANK.json  how each role ended
      history/              what happened to each row; see hpcrl.dataplane.history
      trajectories/         what was trained on, for people; see hpcrl.dataplane.trajectories
      snapshots/00000007/   rows in flight: node-NAME.h5 and, once they are whole, manifest.json
      rendezvous/           how processes find each other
      drain                 the request to save and end, if there was one
      recipe.json           what this attempt, and those before it, ran, where the run's recipe was changed after it
      began.json            the committed step at its start, slurm.json, where it ran, and joined.json, which jobs joined:
                            of attempts in Slurm jobs
    RUN/weights/v000007/    published policy weights: whole, in Hugging Face layout, or as what has changed
    RUN/state/              the trainer's saves
    RUN/report.html, RUN/curves.png, RUN/mlflow.db
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrl.run.atomic import link, write_json, write_text
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True)
class RunDirectory:
    """A run on disk.

    Attributes:
        run_id: unique; in every record of the run, so that no run reads another's data.
    """

    path: Path
    run_id: str

    @classmethod
    def create(cls, path: Path, *, name: str, recipe_json: str, sources: Mapping[str, Path] | None = None) -> RunDirectory:
        """Make the directory of a new run.

        Args:
            sources: files to keep a copy of, by their path in the run directory.

        Raises:
            CheckFailed: the path holds another run or other files, or cannot be written.
        """
        path = path.absolute()
        if (path / "run.json").exists():
            held = json.loads((path / "run.json").read_text())
            raise CheckFailed(
                [f"{path} is the directory of run {held['run_id']} ({held['name']}); choose another, or resume that run"]
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CheckFailed([f"{path} is not empty and not the directory of a run; choose another --run-dir"])
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_text(path / "key", secrets.token_hex(24), mode=0o600)
            write_text(path / "recipe.json", recipe_json)
            for target, source in (sources or {}).items():
                (path / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, path / target)
            for folder in ("weights", "state"):
                (path / folder).mkdir()
            write_json(path / "run.json", {"run_id": run_id, "name": name, "created": time.time()})
        except OSError as error:
            raise CheckFailed(
                [f"run directory {path} cannot be written: {error.strerror}; choose another --run-dir"]
            ) from error
        return cls(path, run_id)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run.

        Raises:
            CheckFailed: the path is no run directory.
        """
        try:
            held = json.loads((path / "run.json").read_text())
            return cls(path.absolute(), held["run_id"])
        except OSError as error:
            raise CheckFailed([f"{path} is not the directory of a run (its run.json: {error.strerror})"]) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckFailed([f"{path} is not the directory of a run: its run.json is damaged ({error!r})"]) from error

    def change_recipe(self, recipe_json: str) -> None:
        """Have the next attempt run another recipe. The newest attempt keeps its own.

        Raises:
            CheckFailed: a file cannot be read or written.
        """
        try:
            held = (self.path / "recipe.json").read_text()
            if held == recipe_json:
                return
            for attempt in self.attempts()[-1:]:
                if not (attempt.path / "recipe.json").exists():
                    write_text(attempt.path / "recipe.json", held)
            write_text(self.path / "recipe.json", recipe_json)
        except OSError as error:
            raise CheckFailed([f"the recipe of run {self.path} cannot be changed: {error}; ask again once it can"]) from error

    @property
    def weights(self) -> Path:
        """Where policy versions are published."""
        return self.path / "weights"

    @property
    def state(self) -> Path:
        """Where the trainer saves."""
        return self.path / "state"

    @property
    def key(self) -> str:
        """The run's secret."""
        return (self.path / "key").read_text()

    def attempts(self) -> list[Attempt]:
        """Every attempt, oldest first."""
        numbers = sorted(int(p.name.removeprefix("attempt_")) for p in self.path.glob("attempt_*"))
        return [Attempt(self, number) for number in numbers]

    def latest(self) -> Attempt:
        """The newest attempt.

        Raises:
            CheckFailed: the run was never started.
        """
        attempts = self.attempts()
        if not attempts:
            raise CheckFailed([f"run {self.path} has no attempt yet"])
        return attempts[-1]

    def new_attempt(self) -> Attempt:
        """Start a further life of the run and point ``latest`` at it."""
        attempts = self.attempts()
        attempt = Attempt(self, attempts[-1].number + 1 if attempts else 1)
        for folder in ("logs", "journal", "done", "rendezvous"):
            os.makedirs(attempt.path / folder)
        link(self.path / "latest", attempt.path.name)
        return attempt


@dataclass(frozen=True)
class Attempt:
    """One life of a run."""

    run: RunDirectory
    number: int

    @property
    def path(self) -> Path:
        """``RUN/attempt_N``."""
        return self.run.path / f"attempt_{self.number}"

    @property
    def journal(self) -> Path:
        """Folder of the journals, one file a writer."""
        return self.path / "journal"

    def log(self, process: str) -> Path:
        """Log file of a process, ``group.rank`` or ``ignitor.slot``."""
        return self.path / "logs" / f"{process}.log"
