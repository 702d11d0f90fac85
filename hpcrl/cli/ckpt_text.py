"""What ``hpcrl ckpt`` shows, for people as lines and for programs as plain data. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from hpcrl.checkpoint.publish.versions import Version
from hpcrl.checkpoint.state.manifest import Manifest
from hpcrl.checkpoint.view.keeping import why_saves_stay, why_versions_stay
from hpcrl.checkpoint.view.saves import SaveInfo
from hpcrl.checkpoint.view.versions import VersionInfo
from hpcrl.cli.ckpt_look import Look
from hpcrl.tracking.view import duration

COLORS = {"committed": "green", "damaged": "red", "foreign": "red", "partial": "yellow"}
_HEADS = ("STEP", "ATTEMPT", "VERSION", "KIND", "STATE", "SIZE", "AGE")
_STATE = _HEADS.index("STATE")
_GOES = "may go at the next save"


def list_json(look: Look) -> dict[str, Any]:
    """Everything that there is."""
    saves = why_saves_stay(look.saves, look.keeping.saves)
    versions = why_versions_stay(look.versions, look.keeping, look.protected)
    return {
        "run_id": look.run.run_id,
        "path": str(look.run.path),
        "live": look.live,
        "resume": None if look.resume is None else {"save": str(look.resume.name), "step": look.resume.name.step},
        "why_not": look.why_not,
        "keeping": msgspec.to_builtins(look.keeping),
        "saves": [{**save_json(info), "kept": saves.get(info.name, [])} for info in look.saves],
        "versions": [{**version_json(info), "kept": versions.get(info.version, [])} for info in look.versions],
        "unfinished": [{"path": str(one.path), "bytes": one.bytes, "t": one.t} for one in look.unfinished],
    }


def save_json(info: SaveInfo) -> dict[str, Any]:
    """A save without its manifest."""
    return {
        "save": str(info.name),
        "step": info.name.step,
        "attempt": info.name.attempt,
        "number": info.name.number,
        "version": None if info.manifest is None else info.manifest.policy_version,
        "state": info.state,
        "problem": info.problem,
        "bytes": info.bytes,
        "t": info.t,
    }


def version_json(info: VersionInfo) -> dict[str, Any]:
    """A version without its tensors and files."""
    record = info.record
    return {
        "version": info.version,
        "step": info.version,
        "attempt": None if record is None else record.attempt,
        "kind": None if record is None else record.kind,
        "previous": None if record is None else record.previous,
        "hash": None if record is None else record.hash,
        "state": info.state,
        "problem": info.problem,
        "bytes": info.bytes,
        "t": info.t,
    }


def list_text(look: Look, now: float) -> str:
    """Two tables, and what a resume would do."""
    saves = [(*_HEADS, "SAVE", "KEPT"), *_save_rows(look, now)]
    versions = [(*_HEADS, "KEPT"), *_version_rows(look, now)]
    return "\n".join(
        [
            f"{click.style(look.run.path.name, bold=True)}  run {look.run.run_id}" + ("  (lives)" if look.live else ""),
            "",
            "saves of the trainer's state, state/",
            *(table(saves) if len(saves) > 1 else ["  none"]),
            "",
            "published policy versions, weights/",
            *(table(versions) if len(versions) > 1 else ["  none"]),
            "",
            resume_text(look),
        ]
    )


def resume_text(look: Look) -> str:
    """What a resume would go on from."""
    if look.resume is not None:
        return f"a resume goes on from step {look.resume.name.step}, save {look.resume.name}"
    return f"a resume is refused: {look.why_not}" if look.why_not else "there is no save: a resume begins at step 0"


def show_save(info: SaveInfo, manifest: Manifest) -> str:
    """A save's manifest in words."""
    cursor, trained, queue = manifest.cursor, manifest.trained, manifest.queue
    beyond = cursor.get("beyond", [])
    mesh = ", ".join(f"{name} {ranks}" for name, ranks in manifest.mesh.dims.items())
    rows = [
        ("state", info.state + (f": {info.problem}" if info.problem else "")),
        ("committed", f"{_when(manifest.t)}, by attempt {manifest.attempt}, its save {manifest.number}"),
        ("step", f"{manifest.step}, policy version {manifest.policy_version}"),
        (
            "cursor",
            f"{cursor.get('step', 0)} steps; every prompt below {cursor.get('prompts', 0)} is trained"
            + (f", and of later ones {', '.join(map(str, beyond))}" if beyond else ""),
        ),
        ("mesh", f"{manifest.mesh.world_size} rank{'s' * (manifest.mesh.world_size != 1)}" + (f" ({mesh})" if mesh else "")),
        ("random states", ", ".join(manifest.rng) or "none"),
        ("queue", "no snapshot" if queue is None else f"snapshot {queue.number} of attempt {queue.attempt}, {queue.digest}"),
        ("rows", f"{trained.count:,} rows are trained for good by this save ({trained.file or 'no file'})"),
        ("mlflow run", manifest.mlflow_run or "not known"),
    ]
    identity = msgspec.to_builtins(manifest.identity)
    rows += [
        (kind, f"{name}: {print_}") for kind in ("model", "tokenizer", "dataset") for name, print_ in identity[kind].items()
    ]
    rows += [("metrics", ", ".join(f"{name} {value:.6g}" for name, value in sorted(manifest.metrics.items())) or "none")]
    rows += [("files", f"{len(manifest.files)}, {size(sum(file.size for file in manifest.files))}")]
    rows += [("", f"{file.name}  {file.size:,} bytes  {file.digest}") for file in manifest.files]
    return "\n".join([click.style(f"save {info.name}", bold=True), *_named(rows)])


def show_version(info: VersionInfo, record: Version) -> str:
    """A version's record in words."""
    rows = [
        ("state", info.state + (f": {info.problem}" if info.problem else "")),
        ("published", f"{_when(info.t)}, by attempt {record.attempt}"),
        ("kind", record.kind + ("" if record.previous is None else f" on version {record.previous}, {record.previous_hash}")),
        ("hash", record.hash),
        ("tensors", f"{len(record.tensors)}, {record.dtype}"),
        ("files", f"{len(record.files)}, {size(record.size)}"),
        *(("", f"{file.name}  {file.size:,} bytes  {file.digest}") for file in record.files),
    ]
    return "\n".join([click.style(f"policy version {info.version}", bold=True), *_named(rows)])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of equal columns; the state is coloured by :data:`COLORS`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[_STATE] = click.style(cells[_STATE], fg=COLORS.get(row[_STATE]))
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def size(count: float) -> str:
    """Bytes for a person."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def _save_rows(look: Look, now: float) -> Iterator[tuple[str, ...]]:
    kept = why_saves_stay(look.saves, look.keeping.saves)
    for info in look.saves:
        version = "" if info.manifest is None else str(info.manifest.policy_version)
        where = (str(info.name.step), str(info.name.attempt), version, "save", info.state)
        note = _save_note(look, info, kept.get(info.name, []))
        yield (*where, size(info.bytes), duration(now - info.t), str(info.name), note)


def _version_rows(look: Look, now: float) -> Iterator[tuple[str, ...]]:
    kept = why_versions_stay(look.versions, look.keeping, look.protected)
    for info in look.versions:
        attempt, kind = ("", "") if info.record is None else (str(info.record.attempt), info.record.kind)
        note = info.problem or "; ".join(kept.get(info.version, [_GOES]))
        yield (str(info.version), attempt, str(info.version), kind, info.state, size(info.bytes), duration(now - info.t), note)
    for one in look.unfinished:
        yield ("", "", "", "", "partial", size(one.bytes), duration(now - one.t), one.path.name)


def _save_note(look: Look, info: SaveInfo, kept: Sequence[str]) -> str:
    if info.state == "partial":
        return "no manifest: being written, or left by a process that ended"
    if info.problem:
        return info.problem
    resume = "; a resume goes on from it" if look.resume is not None and look.resume.name == info.name else ""
    return ("; ".join(kept) or _GOES) + resume


def _named(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    lines, before = [], None
    for name, text in rows:
        lines.append(f"  {('' if name == before else name).ljust(width)}  {text}")
        before = name or before
    return lines


def _when(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
