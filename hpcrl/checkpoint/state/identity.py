"""What a run was started with, so that it does not go on with something else by mistake: model, tokenizer, dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpcrl.checkpoint.state.layout import StateError
from hpcrl.run.atomic import write_bytes
from hpcrl.run.digest import fingerprint

_ACCEPTED = "accepted.json"
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)


class Identity(msgspec.Struct, frozen=True):
    """Fingerprints, by what they are of, such as a file's name; where something lies is not part of it.

    Attributes:
        dataset: of every role that has one, ``ROLE: what``.
    """

    model: dict[str, str] = {}
    tokenizer: dict[str, str] = {}
    dataset: dict[str, str] = {}


def model_fingerprint(folder: Path) -> dict[str, str]:
    """Of the configuration and weights in a folder in Hugging Face layout. Large files are sampled: seconds, not minutes.

    Raises:
        OSError: a file cannot be read.
    """
    files = [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]
    return {path.name: fingerprint(path) for path in (folder / "config.json", *files) if path.exists()}


def tokenizer_fingerprint(folder: Path) -> dict[str, str]:
    """Of the tokenizer's files, the chat template included.

    Raises:
        OSError: a file cannot be read.
    """
    return {name: fingerprint(folder / name) for name in _TOKENIZER if (folder / name).is_file()}


def differences(saved: Identity, now: Identity) -> list[str]:
    """What is not as it was, a sentence each."""
    return [
        f"{kind} {name}: {_change(before.get(name), after.get(name))}"
        for kind in ("model", "tokenizer", "dataset")
        for before, after in [(_of(saved, kind), _of(now, kind))]
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def accept(folder: Path, identity: Identity) -> None:
    """Let the run whose saves lie in a folder go on with this, whatever they were made with.

    Raises:
        OSError: that cannot be written down.
    """
    os.makedirs(folder, exist_ok=True)
    write_bytes(folder / _ACCEPTED, msgspec.json.format(msgspec.json.encode(identity)))


def check_identity(folder: Path, saved: Identity, now: Identity) -> None:
    """Refuse another model, tokenizer or dataset than the save's, unless :func:`accept` was told of just this one.

    Raises:
        StateError: shows the difference.
    """
    found = differences(saved, now)
    if not found:
        return
    try:
        accepted = msgspec.json.decode((folder / _ACCEPTED).read_bytes(), type=Identity)
    except (OSError, msgspec.MsgspecError):
        accepted = None
    if accepted is None or differences(accepted, now):
        raise StateError(
            f"the saves in {folder} were made with something else:\n"
            + "\n".join(f"  - {one}" for one in found)
            + "\nput it back as it was, or go on all the same: hpcrl resume --force (hpcrl run --resume … --force)"
        )


def _of(identity: Identity, kind: str) -> Mapping[str, str]:
    values: Mapping[str, str] = getattr(identity, kind)
    return values


def _change(before: str | None, after: str | None) -> str:
    if before is None:
        return f"there was none, now {after}"
    return f"was {before}, now " + (after if after is not None else "there is none")
