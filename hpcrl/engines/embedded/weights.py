"""New weights into the tensors of a running model: checked first, then copied in place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from hpcrl.checkpoint.hashing import digest_tensors, hash_digests, tensor_bytes
from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.versions import read_record
from hpcrl.engines.embedded.errors import WeightUpdateError

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies, and what its header says of it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | str

    def read(self, name: str) -> torch.Tensor:
        """The tensor itself."""
        with safe_open(self.file, framework="pt") as reader:
            tensor: torch.Tensor = reader.get_tensor(name)
        return tensor


def named_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's own tensors by name; one that is tied to another appears once, under its first name."""
    seen: set[int] = set()
    weights = {}
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            weights[name] = tensor
    return weights


def digest_weights(module: torch.nn.Module, folder: Path) -> dict[str, str]:
    """Digests of what is loaded, by name, comparable with those that ``folder`` was published under.

    Tensors that the engine holds in a wider type than the folder are digested in the folder's.
    """
    stored = stored_tensors(folder)
    return digest_tensors({name: _as_stored(tensor, stored.get(name)) for name, tensor in named_weights(module).items()})


def load_in_place(
    module: torch.nn.Module, folder: Path, expect_hash: str | None = None, held: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Replace the weights of the model by those of a folder of safetensors, without a second model in memory.

    Names, shapes and dtypes are compared before the first byte is written. A narrower type than the engine's is taken, as
    nothing is lost; a wider one is not.

    Args:
        held: digests of what is loaded. Tensors of which the folder's own record gives the same digest are left as they are.

    Returns:
        Digests of what is now loaded, by name.

    Raises:
        WeightUpdateError: ``touched`` is False if nothing was changed, True if the weights are now a mixture or not those
            that were expected.
    """
    weights = named_weights(module)
    stored = stored_tensors(folder)
    problems = _misfits(weights, stored, set(module.state_dict()) - set(weights))
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise WeightUpdateError(
            f"the weights in {folder} do not fit the loaded model: {shown}; nothing was changed", touched=False
        )
    held, published = held or {}, _published_digests(folder)
    renewed = {name for name in weights if name not in held or published.get(name) != held[name]}
    try:
        digests = {**held, **_renew(weights, stored, renewed)}
    except (OSError, SafetensorError, RuntimeError) as error:
        raise WeightUpdateError(
            f"reading {folder} failed half way ({error}); the loaded weights are a mixture, load a whole version", touched=True
        ) from error
    digest = hash_digests(digests)
    if expect_hash is not None and digest != expect_hash:
        raise WeightUpdateError(
            f"weights loaded from {folder} hash to {digest}, expected {expect_hash}: they are not those that were published; "
            "load a whole version",
            touched=True,
        )
    return digests


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """What the headers of a folder's safetensors say, by name.

    Raises:
        WeightUpdateError: there are none, or a header cannot be read.
    """
    found: dict[str, StoredTensor] = {}
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118 - safe_open is no mapping
                    part = reader.get_slice(name)
                    dtype = part.get_dtype()
                    found[name] = StoredTensor(file, tuple(part.get_shape()), _DTYPES.get(dtype, dtype))
        except (OSError, SafetensorError) as error:
            raise WeightUpdateError(f"{file} cannot be read: {error}; nothing was changed", touched=False) from error
    return found


def _renew(weights: Mapping[str, torch.Tensor], stored: Mapping[str, StoredTensor], names: set[str]) -> dict[str, str]:
    """Copy tensors in place; returns digests of what is then there, each made while it is still in a core's cache."""

    def take(name: str, reader: Any) -> str:
        tensor = weights[name]
        _copy(tensor, reader.get_tensor(name))
        return digest_tensors({name: _as_stored(tensor, stored[name])})[name]

    digests: dict[str, str] = {}
    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="weights") as pool:
        for file in sorted({stored[name].file for name in names}):
            here = sorted((name for name in names if stored[name].file == file), key=lambda name: -weights[name].nbytes)
            with safe_open(file, framework="pt") as reader:
                digests |= dict(zip(here, pool.map(partial(take, reader=reader), here), strict=True))
    return digests


def _copy(into: torch.Tensor, of: torch.Tensor) -> None:
    """Within this thread, where nothing is to be converted or sent to a device: torch would begin threads for each of ours."""
    if into.dtype == of.dtype and into.device.type == of.device.type == "cpu" and into.is_contiguous() and of.is_contiguous():
        np.copyto(np.frombuffer(tensor_bytes(into), np.uint8), np.frombuffer(tensor_bytes(of), np.uint8))
        return
    with torch.no_grad():
        into.copy_(of)


def _published_digests(folder: Path) -> dict[str, str]:
    """By name, where the folder has a record of them."""
    try:
        return read_record(folder).tensors
    except WeightsError:
        return {}


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            names: set[str] = set(json.loads(index.read_text())["weight_map"].values())
            return sorted(folder / name for name in names)
    except (OSError, ValueError, KeyError) as error:
        raise WeightUpdateError(f"{index} is not a safetensors index: {error}; nothing was changed", touched=False) from error
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightUpdateError(f"{folder} holds no *.safetensors; nothing was changed", touched=False)
    return files


def _misfits(weights: Mapping[str, torch.Tensor], stored: Mapping[str, StoredTensor], tied: set[str]) -> list[str]:
    problems = [f"{name} is missing" for name in weights if name not in stored]
    problems += [f"{name} is not in the model" for name in stored if name not in weights and name not in tied]
    for name, tensor in weights.items():
        part = stored.get(name)
        if part is not None and (part.shape != tuple(tensor.shape) or not _fits(part.dtype, tensor.dtype)):
            problems.append(f"{name} is {part.shape} {part.dtype}, the model has {tuple(tensor.shape)} {tensor.dtype}")
    if not problems and "lm_head.weight" in tied & stored.keys():
        embedding = next((name for name in weights if name.endswith("embed_tokens.weight")), None)
        head = stored["lm_head.weight"].read("lm_head.weight")
        if embedding is not None and not torch.equal(head, stored[embedding].read(embedding)):
            problems.append(f"lm_head.weight differs from {embedding}, to which the model ties it")
    return problems


def _fits(stored: torch.dtype | str, loaded: torch.dtype) -> bool:
    return stored == loaded or (stored in (torch.bfloat16, torch.float16) and loaded == torch.float32)


def _as_stored(tensor: torch.Tensor, part: StoredTensor | None) -> torch.Tensor:
    if part is None or not isinstance(part.dtype, torch.dtype) or not _fits(part.dtype, tensor.dtype):
        return tensor
    return tensor.to(part.dtype)
