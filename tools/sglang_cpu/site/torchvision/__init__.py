"""Stand-in for ``torchvision``, which SGLang and transformers import and text models do not use.

Its submodules are there, and every name in them is an empty class.
"""

from __future__ import annotations

import enum
import importlib.machinery
import sys
import types
from typing import Any

__version__ = "0.28.0"
_SUBMODULES = (
    "io",
    "io.image",
    "transforms",
    "transforms.functional",
    "transforms.v2",
    "transforms.v2.functional",
    "ops",
    "ops.boxes",
    "models",
    "datasets",
    "utils",
    "tv_tensors",
)


class InterpolationMode(enum.Enum):
    """Read as a table at import time, so it has to have its values."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BOX = "box"
    BILINEAR = "bilinear"
    HAMMING = "hamming"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class _Submodule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return InterpolationMode if name == "InterpolationMode" else type(name, (), {})


for _name in _SUBMODULES:
    _parent, _, _last = f"{__name__}.{_name}".rpartition(".")
    sys.modules[f"{__name__}.{_name}"] = _Submodule(f"{__name__}.{_name}")
    setattr(sys.modules[_parent], _last, sys.modules[f"{__name__}.{_name}"])
