"""Stand-in for ``sgl_kernel`` on a CPU: SGLang imports names from it, and computes with torch where it is told to.

The package has builds for GPUs only. Every name is a function that says so when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def _missing(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is a stand-in here: serve with --attention-backend torch_native")

    call.__name__ = name
    return call


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(name)
