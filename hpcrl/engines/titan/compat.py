"""The only module that touches what torchtitan and torch do not promise. Call :func:`enable` before any torchtitan import.

Everything here was tried with torchtitan 0.3.0 and torch 2.11 to 2.13; another torchtitan is refused.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hpcrl.run.errors import HpcrlError

SUPPORTED = "0.3.0"
_lock = threading.Lock()


class UnsupportedVersion(HpcrlError):
    """The installed torchtitan is not the one that these touch points were written for."""


class _Decorator:
    """Stands for anything of triton at import time: decorators give the function back, attributes give itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def check_version() -> None:
    """Raise :class:`UnsupportedVersion` unless the installed torchtitan is the supported one."""
    try:
        found = importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedVersion(f"torchtitan is not installed; pip install torchtitan=={SUPPORTED}") from error
    if found != SUPPORTED:
        raise UnsupportedVersion(
            f"torchtitan {found} is installed, but hpcrl needs {SUPPORTED}; pip install torchtitan=={SUPPORTED}"
        )


def enable(device_type: str) -> None:
    """Make torchtitan importable and usable on this device. Safe to call again with the same device.

    Raises:
        UnsupportedVersion: see :func:`check_version`.
        RuntimeError: torchtitan is already in use in this process with another device type.
    """
    check_version()
    with _lock:
        _provide_mesh_dims()
        import torch._dynamo  # looks for the real triton, so before the stand-in
        import torchtitan.tools.utils as titan_utils

        loaded = sys.modules.get("torchtitan.distributed.parallel_dims")
        if loaded is not None and loaded.device_type != device_type:
            raise RuntimeError(f"torchtitan already runs on {loaded.device_type!r} in this process, not {device_type!r}")
        # Modules of torchtitan copy these names when they are imported, and fall back to "cuda" without a GPU.
        titan_utils.device_type = device_type
        titan_utils.device_module = torch.cpu if device_type == "cpu" else torch.get_device_module(device_type)
        with _TritonStandIn():
            import torchtitan.distributed.minimal_async_ep.kernels
        with compiled_when_called():
            import torchtitan.models.common.attention  # noqa: F401
        from torchtitan.distributed.utils import set_spmd_backend

        set_spmd_backend("partial_dtensor")


@contextmanager
def compiled_when_called() -> Iterator[None]:
    """Meanwhile ``torch.compile`` compiles a function when that is called first.

    torchtitan compiles its flex attention at import, which is not used here and takes the import of the whole compiler.
    """
    at_once = torch.compile

    def later(model: Any = None, **settings: Any) -> Any:
        if not inspect.isfunction(model):
            return at_once(model, **settings)
        compiled = functools.cache(lambda: at_once(model, **settings))

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            return compiled()(*args, **kwargs)

        return call

    setattr(torch, "compile", later)  # noqa: B010 - to a type checker it is a function with overloads
    try:
        yield
    finally:
        setattr(torch, "compile", at_once)  # noqa: B010


def sum_gradients_exactly(model: nn.Module) -> None:
    """Let FSDP add gradients over ranks without dividing; gloo lacks the premultiplied sum that it would use otherwise."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def fill_rope_caches(model: nn.Module, device: torch.device) -> None:
    """Compute the rotary cache, which is no parameter and so is lost on the meta device, once for all layers."""
    from torchtitan.models.common.rope import RoPE

    ropes = [module for module in model.modules() if isinstance(module, RoPE)]
    if ropes:
        ropes[0]._init_self_buffers(buffer_device=device)
    for rope in ropes[1:]:
        rope.cache = ropes[0].cache


def plain_name(name: str) -> str:
    """A parameter's name without what activation checkpointing adds to it."""
    return name.replace("_checkpoint_wrapped_module.", "")


def _provide_mesh_dims() -> None:
    """Torch 2.11 lacks a class that torchtitan imports and only uses with SPMD backends that hpcrl does not choose."""
    import torch.distributed.fsdp as fsdp

    if not hasattr(fsdp, "DataParallelMeshDims"):
        fsdp.__dict__["DataParallelMeshDims"] = type("DataParallelMeshDims", (), {})


class _TritonStandIn:
    """While it is open, ``import triton`` works without triton: kernels are defined then, but never called on a CPU."""

    def __enter__(self) -> None:
        self._installed = importlib.util.find_spec("triton") is not None if "triton" not in sys.modules else True
        if self._installed:
            return
        anything = _Decorator()
        triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
        for module in (triton, language):
            module.__dict__["__getattr__"] = anything.__getattr__
        language.__dict__["constexpr"] = int
        triton.__dict__.update(language=language, jit=anything, autotune=lambda *_, **__: lambda function: function)
        sys.modules["triton"], sys.modules["triton.language"] = triton, language

    def __exit__(self, *_: object) -> None:
        if not self._installed:
            del sys.modules["triton"], sys.modules["triton.language"]
