"""What is left of a run for a person: ``RUN/report.html``, one file with everything in it, and ``RUN/curves.png``."""

from __future__ import annotations

import json

from hpcrl.run.atomic import write_bytes, write_text
from hpcrl.run.directory import RunDirectory
from hpcrl.run.records import DoneRecords
from hpcrl.tracking.curves import draw
from hpcrl.tracking.figures import Figures
from hpcrl.tracking.journal import RunJournalReader
from hpcrl.tracking.report_page import ReportFacts, page
from hpcrl.tracking.state import ending, planned_steps


def write_report(run: RunDirectory) -> None:
    """Write or replace the report and the curves, from the journals of every attempt.

    Raises:
        OSError: the run directory cannot be written.
        CheckFailed: the run was never started.
    """
    figures = read_figures(run)
    recipe = json.loads((run.path / "recipe.json").read_text())
    held = json.loads((run.path / "run.json").read_text())
    attempt = run.latest()
    total = planned_steps(recipe)
    steps = figures.steps()
    picture = draw(steps, f"{held['name']}  ·  {run.run_id}")
    facts = ReportFacts(
        name=held["name"],
        run_id=run.run_id,
        path=run.path,
        attempts=[item.number for item in run.attempts()],
        state=ending(attempt, figures, total),
        created=held.get("created"),
        total=total,
        figures=figures,
        records=dict(DoneRecords(attempt).read()),
        logs=sorted((attempt.path / "logs").glob("*.log")),
        recipe=recipe,
        picture=picture,
    )
    write_bytes(run.path / "curves.png", picture)
    write_text(run.path / "report.html", page(facts))


def read_figures(run: RunDirectory) -> Figures:
    """The figures of a run from the journals of all its attempts."""
    figures = Figures()
    for attempt, writer, record in RunJournalReader(run).read():
        figures.add(attempt, writer, record)
    return figures
