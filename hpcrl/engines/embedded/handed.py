"""Tensors that another process of this node hands over: a pickle of handles to its memory, of which little is believed.

Only who has the run's key gets this far; all the same, no name is looked up but those of torch's own handles.
"""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import torch
from torch.multiprocessing import reductions

from hpcrl.engines.embedded.errors import RequestError

_REDUCTIONS = (
    "rebuild_tensor",
    "rebuild_typed_storage",
    "rebuild_typed_storage_child",
    "rebuild_storage_filename",
    "rebuild_storage_empty",
    "rebuild_cuda_tensor",
)
_ALLOWED = {
    **{("torch.multiprocessing.reductions", name): getattr(reductions, name) for name in _REDUCTIONS},
    ("torch", "Tensor"): torch.Tensor,
    ("torch", "Size"): torch.Size,
    ("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    ("torch.storage", "TypedStorage"): torch.storage.TypedStorage,
}

# What a pickle that is cut or bent raises, and what torch says to handles of memory that is not there any more.
_DAMAGED = (
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    EOFError,
    RuntimeError,
    OSError,
    MemoryError,
)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        # Types of numbers are pickled as attributes of torch.
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no handle of a tensor")


def handed_tensors(payload: Any) -> list[tuple[str, torch.Tensor]]:
    """Names and tensors out of SGLang's base64 of a pickled list.

    Raises:
        RequestError: it is something else, or the memory is not there any more.
    """
    try:
        listed = _Reader(io.BytesIO(base64.b64decode(payload, validate=True))).load()
    except _DAMAGED as error:
        raise RequestError(f"serialized_named_tensors: {error}") from error
    if not isinstance(listed, list):
        raise RequestError(f"serialized_named_tensors: a list of names and tensors is wanted, not a {type(listed).__name__}")
    for item in listed:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], torch.Tensor)):
            raise RequestError("serialized_named_tensors: a list of names and tensors is wanted")
    return listed
