import importlib.metadata
import subprocess
import sys

import pytest
import torch

from hpcrl.engines.titan import compat


def test_another_torchtitan_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.4.0")
    with pytest.raises(compat.UnsupportedVersion, match=r"torchtitan 0\.4\.0 is installed, but hpcrl needs 0\.3\.0"):
        compat.enable("cpu")


def test_enabling_leaves_no_stand_in_and_selects_the_cpu():
    compat.enable("cpu")
    compat.enable("cpu")
    from torchtitan.distributed import parallel_dims, utils

    assert parallel_dims.device_type == "cpu"
    assert utils.get_spmd_backend() == "partial_dtensor"
    assert isinstance(sys.modules.get("triton"), type(None)) or sys.modules["triton"].__file__


@pytest.mark.slow
def test_a_trainer_that_compiles_nothing_does_not_import_the_compiler():
    code = """
import sys
from hpcrl.engines.titan import compat
compat.enable("cpu")
import hpcrl.engines.titan.build, hpcrl.engines.titan.model
print("torch._inductor.compile_fx" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    assert done.stdout.split() == ["False"]


def test_what_torchtitan_compiles_at_import_is_compiled_when_it_is_called(monkeypatch):
    compiled = []

    def compiles(function, **settings):
        compiled.append(settings)
        return lambda x: function(x) + 1

    monkeypatch.setattr(torch, "compile", compiles)
    with compat.compiled_when_called():
        doubled = torch.compile(lambda x: 2 * x, dynamic=False)
    assert torch.compile is compiles
    assert compiled == []
    assert [doubled(1), doubled(2)] == [3, 5]
    assert compiled == [{"dynamic": False}], "once"


def test_another_device_in_the_same_process_is_refused():
    compat.enable("cpu")
    with pytest.raises(RuntimeError, match="already runs on 'cpu'"):
        compat.enable("cuda")


@pytest.mark.slow
def test_the_package_and_its_settings_import_no_torch():
    modules = "hpcrl.engines.titan.settings, hpcrl.engines.titan.schedule, hpcrl.engines.titan.shape"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_checkpointed_names_are_plain():
    wrapped = "layers.0._checkpoint_wrapped_module.attention.wo.weight"
    assert compat.plain_name(wrapped) == "layers.0.attention.wo.weight"
    assert compat.plain_name("norm.weight") == "norm.weight"


def test_rope_caches_are_shared_and_filled(tiny_model):
    compat.enable("cpu")
    from torchtitan.models.common.rope import RoPE

    from hpcrl.engines.titan.model import model_spec
    from hpcrl.engines.titan.shape import read_shape

    with torch.device("meta"):
        model = model_spec(read_shape(tiny_model, context=32), logits_chunk=8, temperature=1.0).config.build()
    model.to_empty(device="cpu")
    compat.fill_rope_caches(model, torch.device("cpu"))
    caches = [module.cache for module in model.modules() if isinstance(module, RoPE)]
    assert len({cache.data_ptr() for cache in caches}) == 1
    assert torch.allclose(caches[0].abs(), torch.ones(()))
    assert caches[0].shape[0] == 32
