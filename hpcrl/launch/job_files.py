"""What a run's jobs were made from, as files of its directory: ``layout.json``, ``site.json``, ``job.json``, ``asked.json`` and
the scripts.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.launch.layout import Asked, Layout
from hpcrl.launch.render import LOGS, JobFacts, render_all
from hpcrl.launch.site import Site
from hpcrl.run.atomic import write_text
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True)
class JobFiles:
    """A job's layout, the site that it is for, what the scripts say of the run, and what was asked for."""

    layout: Layout
    site: Site
    facts: JobFacts
    asked: Asked = field(default_factory=Asked)

    def scripts(self) -> dict[str, str]:
        """Every batch script by its file name, the main job's last; errors as :func:`hpcrl.launch.render.render_all`."""
        return render_all(self.layout, self.site, self.facts)

    def write(self, run: Path) -> None:
        """Leave all of it in a run's directory, in place of what was there.

        Raises:
            CheckFailed: as :func:`hpcrl.launch.render.render_all`.
            OSError: a file cannot be written.
        """
        (run / LOGS).mkdir(exist_ok=True)
        write_text(run / "layout.json", self.layout.to_json())
        write_text(run / "site.json", self.site.to_json())
        write_text(run / "job.json", self.facts.to_json())
        write_text(run / "asked.json", json.dumps(dataclasses.asdict(self.asked), indent=2) + "\n")
        scripts = self.scripts()
        for old in (run / LOGS).glob("batch-*.sh"):
            if old.name not in scripts:
                old.unlink()
        # The main job's is the last: with it, the run can be submitted.
        for name, script in scripts.items():
            write_text(run / LOGS / name, script)

    @classmethod
    def read(cls, run: Path) -> JobFiles:
        """Back from :meth:`write`.

        Raises:
            CheckFailed: a file is not what it should be.
            OSError: a file cannot be read.
        """
        return cls(
            Layout.from_json((run / "layout.json").read_text()),
            Site.from_json((run / "site.json").read_text()),
            JobFacts.from_json((run / "job.json").read_text(), run),
            _asked((run / "asked.json").read_text()),
        )


def _asked(text: str) -> Asked:
    try:
        return Asked(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise CheckFailed([f"nothing that was asked of a job: {error!r}"]) from error
