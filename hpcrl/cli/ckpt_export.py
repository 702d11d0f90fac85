"""``hpcrl ckpt export``: from a published version, or from a save of the trainer."""

from __future__ import annotations

from pathlib import Path

from hpcrl.checkpoint.export.source import PublishedVersion, TensorSource
from hpcrl.checkpoint.publish.versions import version_path
from hpcrl.checkpoint.view.verify import verify_save
from hpcrl.cli.ckpt_look import Look, find_save, find_version, trainer_of
from hpcrl.cli.ckpt_text import size
from hpcrl.data.models import resolve_model
from hpcrl.roles.trainer import Trainer
from hpcrl.run.errors import CheckFailed


def version_source(look: Look, version: int | None) -> TensorSource:
    """A published version, the newest whole one where none is named.

    Raises:
        CheckFailed: there is no such version, or none at all.
        WeightsError: it is damaged.
    """
    if version is None:
        whole = [info.version for info in look.versions if info.state == "committed"]
        if not whole:
            raise CheckFailed([f"run {look.run.path} has no whole policy version; see hpcrl ckpt list {look.run.path}"])
        version = whole[-1]
    info = find_version(look, str(version))
    if info.state != "committed":
        raise CheckFailed([f"policy version {version} of run {look.run.path} is damaged: {info.problem}"])
    return PublishedVersion(look.run.weights, version, look.run.run_id)


def save_source(look: Look, step: str, dtype: str | None) -> TensorSource:
    """The weights in a save, once all its files were read and are as they were written.

    Raises:
        CheckFailed: there is no such save, it is damaged or unfinished, or no configuration of the model is to be had.
    """
    info = find_save(look, step)
    if info.manifest is None or info.state != "committed":
        raise CheckFailed([f"save {info.name} of run {look.run.path} is {info.state}{': ' * bool(info.problem)}{info.problem}"])
    if wrong := [finding.text for finding in verify_save(look.run.state, info)]:
        raise CheckFailed(wrong)
    published = trainer_of(look.run).get("publish_dtype", Trainer.publish_dtype)
    companions = _companions(look)
    # Brings torch.
    from hpcrl.engines.titan.saved import SavedModel

    return SavedModel(look.run.state, info.manifest, companions, dtype or published)


def done_text(look: Look, source: TensorSource, target: Path, found: str) -> str:
    """What was written, and which version has the same weights."""
    total = size(sum(spec.nbytes for spec in source.specs.values()))
    of = f"save {source.about['save']}" if "save" in source.about else f"policy version {source.about['version']}"
    same = next((info.version for info in look.versions if info.record is not None and info.record.hash == found), None)
    tail = f", the same as policy version {same}" if same is not None and "save" in source.about else ""
    return (
        f"{target}: {len(source.specs)} tensors, {source.dtype}, {total}, of {of} of run {look.run.run_id}; hash {found}{tail}"
    )


def _companions(look: Look) -> Path:
    """A folder with the model's configuration and tokenizer: a published base, or the model that the run began with."""
    for info in reversed(look.versions):
        if info.state == "committed" and info.record is not None and info.record.kind == "base":
            return version_path(look.run.weights, info.version)
    model = trainer_of(look.run).get("model")
    if not isinstance(model, str):
        raise CheckFailed([f"run {look.run.path} has no published base and no trainer in its recipe: its model is not known"])
    return resolve_model(model)
