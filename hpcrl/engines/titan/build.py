"""A sharded torchtitan model with the weights of a Hugging Face folder in it.

Import only after :func:`hpcrl.engines.titan.compat.enable`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.compile import apply_compile
from torchtitan.tools.utils import set_default_dtype

from hpcrl.checkpoint.distributed import load_tensors
from hpcrl.engines.making import MAKING
from hpcrl.engines.titan.compat import fill_rope_caches, sum_gradients_exactly
from hpcrl.engines.titan.model import ModelSpec
from hpcrl.engines.titan.settings import TrainerSettings
from hpcrl.engines.titan.shape import ModelError
from hpcrl.run.errors import CheckFailed

_CHECKPOINTING = {"selective": SelectiveAC, "full": FullAC}


def build_model(spec: ModelSpec, settings: TrainerSettings, *, world_size: int, device: torch.device) -> nn.Module:
    """The model with float32 weights, not yet filled; sharded over all ranks (FSDP2) if there are several. A collective."""
    with MAKING, torch.device("meta"), set_default_dtype(torch.float32):
        model: Any = spec.config.build()
    if settings.activation_checkpointing != "none":
        _CHECKPOINTING[settings.activation_checkpointing].Config().build(dump_folder="").apply(model)
    parallelism = ParallelismConfig(spmd_backend="partial_dtensor")
    dims = ParallelDims.from_config(parallelism, world_size)
    if settings.compile:
        _require_compiler(device)
        apply_compile(model, compile_config=CompileConfig(enable=True), parallel_dims=dims)
    if world_size > 1:
        model = spec.parallelize(
            model,
            parallel_dims=dims,
            training=TrainingConfig(mixed_precision_param=settings.compute_dtype, mixed_precision_reduce="float32"),
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
        )
        sum_gradients_exactly(model)
    model.to_empty(device=device)
    if spec.config.enable_weight_tying:
        model.tok_embeddings.weight = model.lm_head.weight
    with MAKING:
        fill_rope_caches(model, device)
    model.train()
    return model  # type: ignore[no-any-return]


def _require_compiler(device: torch.device) -> None:
    """Refuse torch.compile where it would fail later: it needs a C++ compiler for a CPU, and triton for a GPU."""
    if device.type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        raise CheckFailed(["compile needs a C++ compiler on a CPU, and there is neither g++ nor clang++; set compile to false"])
    if device.type != "cpu" and importlib.util.find_spec("triton") is None:
        raise CheckFailed(["compile needs triton on a GPU, and it is not installed; install it or set compile to false"])


def load_weights(model: nn.Module, spec: ModelSpec, folder: Path, *, world_size: int) -> None:
    """Fill the model from the folder's safetensors files, each rank reading its own shards. A collective.

    Raises:
        ModelError: no safetensors files, an unreadable one, or tensors missing or of another shape than ``config.json`` says.
    """
    held = _held_shapes(folder)
    wanted: dict[str, Any] = spec.adapter.to_hf(model.state_dict())
    wrong = [
        f"{name}: {'missing' if name not in held else f'shape {held[name]}, expected {tuple(tensor.shape)}'}"
        for name, tensor in wanted.items()
        if held.get(name) != tuple(tensor.shape)
    ]
    if wrong:
        raise ModelError(f"{folder}: {len(wrong)} tensors do not fit config.json, such as {'; '.join(wrong[:3])}")
    load_tensors(wanted, HuggingFaceStorageReader(str(folder)), world_size=world_size)
    model.load_state_dict(spec.adapter.from_hf(wanted), strict=True)


def _held_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"model folder {folder} has no *.safetensors file; convert the model to safetensors first")
    shapes = {}
    for file in files:
        try:
            with safe_open(file, "pt") as tensors:
                shapes.update({name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()})  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read: {error}; copy the model again") from error
    return shapes
