"""``hpcrl ckpt verify``: which saves and versions are read, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import click

from hpcrl.checkpoint.state.layout import SaveName
from hpcrl.checkpoint.view.saves import SaveInfo, resumes_from
from hpcrl.checkpoint.view.verify import Finding, verify_save, verify_versions
from hpcrl.cli.ckpt_look import Look, find_save, find_version, next_attempt
from hpcrl.cli.ckpt_text import size


@dataclass(frozen=True)
class Task:
    """What is to be read.

    Attributes:
        partial: saves and folders of versions that are not finished, in words.
        bytes: of the files.
    """

    saves: tuple[SaveInfo, ...]
    versions: tuple[int, ...]
    partial: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        resume: the save that a resume would use, going by what was found.
        why_not: see :class:`~hpcrl.cli.ckpt_look.Look`.
    """

    task: Task
    findings: tuple[Finding, ...]
    resume: SaveName | None
    why_not: str


def plan(look: Look, save: str | None, version: int | None) -> Task:
    """What to read: a save, a version, or everything where neither is named.

    Raises:
        CheckFailed: there is no such save or version.
    """
    every = save is None and version is None
    saves = look.saves if every else [find_save(look, save)] if save is not None else []
    versions = look.versions if every else [find_version(look, str(version))] if version is not None else []
    partial = [f"save {info.name} ({size(info.bytes)})" for info in saves if info.state == "partial"]
    if every:
        partial += [f"{one.path.relative_to(look.run.path)} ({size(one.bytes)})" for one in look.unfinished]
    whole = tuple(info for info in saves if info.state != "partial")
    total = sum(info.bytes for info in whole) + sum(info.bytes for info in versions)
    return Task(whole, tuple(info.version for info in versions), tuple(partial), total)


def verify(look: Look, task: Task, progress: Callable[[int], None]) -> Report:
    """Read it all."""
    findings: list[Finding] = []
    for info in task.saves:
        findings += verify_save(look.run.state, info, progress)
    findings += verify_versions(look.run.weights, look.versions, task.versions, progress)
    bad = {finding.of for finding in findings}
    saves = [
        replace(info, state="damaged") if info.state == "committed" and str(info.name) in bad else info for info in look.saves
    ]
    resume, why_not = resumes_from(saves, next_attempt(look.run))
    return Report(task, tuple(findings), None if resume is None else resume.name, why_not)


def to_json(look: Look, report: Report) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "run_id": look.run.run_id,
        "path": str(look.run.path),
        "clean": not report.findings,
        "saves": [str(info.name) for info in report.task.saves],
        "versions": list(report.task.versions),
        "bytes": report.task.bytes,
        "damaged": [
            {"of": one.of, "file": str(one.file), "written_by": one.by, "problem": one.text} for one in report.findings
        ],
        "partial": list(report.task.partial),
        "resume": None if report.resume is None else {"save": str(report.resume), "step": report.resume.step},
        "why_not": report.why_not,
    }


def to_text(look: Look, report: Report) -> str:
    """A line for each save, one for the versions, and every finding."""
    lines = [f"{click.style(look.run.path.name, bold=True)}  run {look.run.run_id}"]
    bad = {finding.of for finding in report.findings}
    for info in report.task.saves:
        files = 0 if info.manifest is None else len(info.manifest.files)
        lines.append(f"{_mark(str(info.name) not in bad)}  save {info.name}: {files} files, {size(info.bytes)}")
    checked = [info for info in look.versions if info.version in report.task.versions]
    if checked:
        wrong = sum(f"version {info.version}" in bad for info in checked)
        bases = sum(info.record is not None and info.record.kind == "base" for info in checked)
        what = "1 policy version" if len(checked) == 1 else f"{len(checked)} policy versions"
        amount = size(sum(info.bytes for info in checked))
        numbers = f"{checked[0].version}" if len(checked) == 1 else f"{checked[0].version} to {checked[-1].version}"
        tail = f", {wrong} damaged" if wrong else ""
        lines.append(f"{_mark(not wrong)}  {what}, {numbers}: {bases} whole, the others put together, {amount}{tail}")
    if not report.task.saves and not checked:
        lines.append("there is nothing to verify")
    lines += [f"{click.style('part', fg='yellow')}  {text}: unfinished, it is ignored" for text in report.task.partial]
    if report.findings:
        lines += ["", "damaged:"]
        for one in report.findings:
            lines += [f"  {one.of}: {one.text}", f"    file {one.file}, written by {one.by}"]
    return "\n".join([*lines, "", _resume(look, report)])


def _resume(look: Look, report: Report) -> str:
    if report.resume is None:
        return f"a resume is refused: {report.why_not}" if report.why_not else "there is no save: a resume begins at step 0"
    before = look.resume
    instead = f" instead of {before.name}" if before is not None and before.name != report.resume else ""
    return f"a resume goes on from step {report.resume.step}, save {report.resume}{instead}"


def _mark(good: bool) -> str:
    return click.style("ok  ", fg="green") if good else click.style("FAIL", fg="red")
