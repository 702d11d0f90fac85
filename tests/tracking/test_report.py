import base64
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.tracking.report import read_figures, write_report
from hpcrl.tracking.report_page import ReportFacts, page, thinned

VOID = {"meta", "img", "br", "rect", "i"} - {"i", "rect"}


class Page(HTMLParser):
    """Checks that tags are closed in order; gathers tables, sources and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "code") and self.rows and "tr" in self.open:
            self.rows[-1].append(data)


def written(run: RunDirectory) -> Page:
    write_report(run)
    return Page((run.path / "report.html").read_text())


@pytest.mark.slow
def test_a_report_has_everything_in_one_file(trained: RunDirectory) -> None:
    attempt = trained.latest()
    attempt.log("trainer.0").write_text("hello\n")
    for name in ("trainer.0", "rollout.0", "reward.0", "reward.1", "inference.0"):
        write_done(attempt, DoneRecord(process=name, status="done", host="node7"))
    report = written(trained)
    text = "".join(report.text)
    assert "finished" in text
    assert "of 6" in text
    assert trained.run_id in text
    assert ["trainer.0", "done", "0", "node7"] in [row[:4] for row in report.rows]
    assert "attempt_1/logs/trainer.0.log" in report.links
    assert [row for row in report.rows if row[:1] == ["schedule.steps"]] == [["schedule.steps", "6"]]
    steps = [row for row in report.rows if len(row) > 10]
    assert [row[0] for row in steps] == [str(n) for n in range(1, 7)]
    assert [row for row in report.rows if row[-1:] == [f"{3:016x}"]] == [["3", "3", "0.25", "1", "0.20", f"{3:016x}"]]
    [image] = [link for link in report.links if link.startswith("data:")]
    assert base64.b64decode(image.partition(",")[2]) == (trained.path / "curves.png").read_bytes()
    assert not any(link.startswith(("http", "//")) for link in report.links)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_short_run_has_a_report(run: RunDirectory, record_step: Callable[..., None], count: int) -> None:
    attempt = run.new_attempt()
    for step in range(1, count + 1):
        record_step(attempt, step)
    report = written(run)
    assert ("No step was trained." in report.text) == (count == 0)
    assert "running" in report.text


@pytest.mark.slow
def test_a_failure_stands_first_and_is_escaped(trained: RunDirectory) -> None:
    write_done(trained.latest(), DoneRecord(process="reward.1", status="failed", code=7, error="<b>bad</b> & worse", host="n1"))
    report = written(trained)
    text = "".join(report.text)
    assert "failed" in report.text
    assert "<b>bad</b> & worse" in report.text
    assert text.index("What failed first") < text.index("Curves")


@pytest.mark.slow
def test_attempts_are_told_apart(trained: RunDirectory, record_step: Callable[..., None]) -> None:
    record_step(trained.new_attempt(), 4)
    report = written(trained)
    steps = [row[:2] for row in report.rows if len(row) > 10]
    assert steps == [["1", "1"], ["2", "1"], ["3", "1"], ["4", "2"]]


def test_engines_that_serve_different_weights_are_shown(trained: RunDirectory, record: Callable[..., None]) -> None:
    record(trained.latest(), "inference.1", {"t": 1.0, "kind": "served", "version": 3, "load_s": 0.1, "hash": "beef"})
    assert "DIFFERENT" in page(facts(trained))


def test_a_long_run_is_thinned(run: RunDirectory, record_step: Callable[..., None]) -> None:
    attempt = run.new_attempt()
    for step in range(1, 501):
        record_step(attempt, step)
    text = page(facts(run))
    report = Page(text)
    assert len([row for row in report.rows if len(row) > 10]) == 200
    assert any("200 of 500 steps" in part for part in report.text)
    assert len(text) < 400_000


def test_thinned_keeps_both_ends() -> None:
    assert thinned(list(range(10)), 20) == list(range(10))
    assert thinned(list(range(1000)), 4) == [0, 333, 666, 999]


def test_a_run_that_was_never_started_is_an_error(run: RunDirectory) -> None:
    with pytest.raises(CheckFailed, match="no attempt yet"):
        write_report(run)


def facts(run: RunDirectory) -> ReportFacts:
    return ReportFacts(
        name="tiny",
        run_id=run.run_id,
        path=run.path,
        attempts=[1],
        state="running",
        created=None,
        total=None,
        figures=read_figures(run),
        records={},
        logs=[Path("/elsewhere/trainer.0.log")],
        recipe=json.loads((run.path / "recipe.json").read_text()),
        picture=b"png",
    )
