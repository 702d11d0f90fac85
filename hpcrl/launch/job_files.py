"""What a run's jobs were made from, as files of its directory: ``layout.json``, ``site.json``, ``job.json`` and the scripts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcrl.launch.layout import Layout
from hpcrl.launch.render import LOGS, JobFacts, render_all
from hpcrl.launch.site import Site
from hpcrl.run.atomic import write_text


@dataclass(frozen=True)
class JobFiles:
    """A job's layout, the site that it is for, and what the scripts say of the run."""

    layout: Layout
    site: Site
    facts: JobFacts

    def write(self, run: Path) -> None:
        """Leave all of it in a run's directory.

        Raises:
            CheckFailed: as :func:`hpcrl.launch.render.render_all`.
            OSError: a file cannot be written.
        """
        (run / LOGS).mkdir(exist_ok=True)
        write_text(run / "layout.json", self.layout.to_json())
        write_text(run / "site.json", self.site.to_json())
        write_text(run / "job.json", self.facts.to_json())
        # The main job's is the last: with it, the run can be submitted.
        for name, script in render_all(self.layout, self.site, self.facts).items():
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
        )
