"""The weights in a save of the trainer, under Hugging Face names. Import only where torch may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpcrl.checkpoint.hashing import dtype_name, tensor_bytes
from hpcrl.checkpoint.publish.codec import Bits, bits_of
from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.reshard.layout import TensorLayout
from hpcrl.checkpoint.reshard.restore import SaveReader
from hpcrl.checkpoint.state.manifest import Manifest
from hpcrl.engines.titan import compat
from hpcrl.engines.titan.shape import ModelError, read_shape

_MODEL = "model."
_TIED = "lm_head.weight"


class SavedModel:
    """A :class:`~hpcrl.checkpoint.export.source.TensorSource`.

    Args:
        folder: ``RUN/state``.
        companions: folder with the model's configuration and tokenizer.
        dtype: of the tensors that come out, "bfloat16" or "float32".

    Raises:
        ReshardError: there is no save in the folder.
        ModelError: the configuration is of no model that the trainer knows, or of another one than the save.
    """

    def __init__(self, folder: Path, manifest: Manifest, companions: Path, dtype: str) -> None:
        shape = read_shape(companions)
        # Its import of torchtitan needs it.
        compat.enable("cpu")
        from hpcrl.engines.titan.model import model_spec

        spec = model_spec(shape, logits_chunk=1, temperature=1.0)
        self._adapter: Any = spec.adapter
        with torch.device("meta"):
            self._model: Any = spec.config.build()
        self._reader = SaveReader(folder / str(manifest.name))
        self._dtype: torch.dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
        self.companions, self.dtype = companions, dtype
        self.digests: dict[str, str] = {}
        self.about: dict[str, Any] = {
            "run_id": manifest.run_id,
            "step": manifest.step,
            "version": manifest.policy_version,
            "attempt": manifest.attempt,
            "save": str(manifest.name),
            "dtype": dtype,
        }
        self.specs: dict[str, TensorSpec] = {}
        # By tensor, what of the model it is made from: a parameter, or a module that lays out its own in another way.
        self._unit: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        self._check(folder / str(manifest.name))
        self._find_tensors(tied=shape.tied)
        self._now: tuple[str, dict[str, torch.Tensor]] = ("", {})

    def read(self, name: str) -> Bits:
        """See :meth:`~hpcrl.checkpoint.export.source.TensorSource.read`."""
        unit = self._unit[name]
        if self._now[0] != unit:
            held = {one: self._reader.read_slice(_MODEL + one).to(self._dtype) for one in self._names[unit]}
            self._now = (unit, self._to_hf(unit, held))
        tensor = self._now[1][name].contiguous()
        return bits_of(tensor_bytes(tensor), tensor.element_size())

    def _check(self, save: Path) -> None:
        held = {name: layout.shape for name, layout in self._saved().items() if name != _TIED}
        wanted = {name: tuple(p.shape) for name, p in self._model.named_parameters() if name != _TIED}
        if wrong := sorted(name for name in {*held, *wanted} if held.get(name) != wanted.get(name)):
            name = wrong[0]
            raise ModelError(
                f"{self.companions / 'config.json'} is not of the model in {save}: {len(wrong)} tensors differ, such as {name}:"
                f" {held.get(name, 'none')} in the save, {wanted.get(name, 'none')} by the configuration"
            )

    def _saved(self) -> dict[str, TensorLayout]:
        """Weights in the save by the trainer's names."""
        every = self._reader.layout.tensors
        return {name.removeprefix(_MODEL): layout for name, layout in every.items() if name.startswith(_MODEL)}

    def _find_tensors(self, *, tied: bool) -> None:
        layouts, plain = self._saved(), self._model.state_dict().keys()
        for held in layouts:
            if tied and held == _TIED:
                continue
            unit = held if held in plain else held.rpartition(".")[0].rpartition(".")[0]
            self._names.setdefault(unit, []).append(held)
        for unit, names in self._names.items():
            empty = {name: torch.empty(layouts[name].shape, dtype=self._dtype, device="meta") for name in names}
            for name, tensor in self._to_hf(unit, empty).items():
                self.specs[name] = TensorSpec(name, dtype_name(tensor), tuple(tensor.shape))
                self._unit[name] = unit

    def _to_hf(self, unit: str, held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if unit in held:
            found: dict[str, torch.Tensor] = self._adapter.to_hf(held)
            return found
        for name, tensor in held.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))
        # The module's own hook takes them apart.
        found = self._adapter.to_hf(self._model.get_submodule(unit).state_dict(prefix=f"{unit}."))
        for name, tensor in held.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(owner), leaf, nn.Parameter(tensor.to("meta"), requires_grad=False))
        return found
