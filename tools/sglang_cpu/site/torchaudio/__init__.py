"""Stand-in for ``torchaudio``, which SGLang imports and text models do not use: every name is an empty class."""

from __future__ import annotations

from typing import Any

__version__ = "2.11.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
