"""The weights in a save come out under Hugging Face names as the trainer publishes them."""

import json

import numpy as np
import pytest

from hpcrl.checkpoint.hashing import digest_tensor, digest_tensors
from hpcrl.checkpoint.state.manifest import newest
from hpcrl.checkpoint.state.saver import About, Saved
from hpcrl.engines.titan.samples import Sample
from hpcrl.engines.titan.saved import SavedModel
from hpcrl.engines.titan.settings import TrainerSettings, World
from hpcrl.engines.titan.shape import ModelError
from hpcrl.engines.titan.trainer import TitanTrainer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["tiny_model", "tiny_qwen2", "tiny_qwen3"])
def test_each_tensor_is_the_one_published(family, request, tmp_path):
    model = request.getfixturevalue(family)
    trainer = TitanTrainer(TrainerSettings(model=str(model), compute_dtype="float32", lr=1e-3), World())
    ids = np.arange(3, 9, dtype=np.int32)
    batch = [
        Sample(prompt_ids=ids, response_ids=ids, behaviour_logprobs=np.full(6, -1, np.float32), advantage=a, group=0)
        for a in (1.0, -1.0)
    ]
    trainer.train_batch(batch)
    trainer.begin_save(tmp_path, About(run_id="r"))
    assert isinstance(trainer.finish_save(seconds=120), Saved)
    published = digest_tensors(dict(trainer.hf_tensors()))
    wide = {name: tensor.numel() for name, tensor in trainer.hf_tensors()}
    trainer.close()
    saved = SavedModel(tmp_path, newest(tmp_path), model, "bfloat16")
    digests = {
        name: digest_tensor(name, spec.dtype, spec.shape, saved.read(name).view("u1").data)
        for name, spec in saved.specs.items()
    }
    assert digests == published
    saved = SavedModel(tmp_path, newest(tmp_path), model, "float32")
    assert {name: saved.read(name).size for name in saved.specs} == wide
    assert all(np.isfinite(saved.read(name).view(np.float32)).all() for name in saved.specs)


def test_a_configuration_of_another_model_is_refused(tiny_model, tiny_qwen3, tmp_path):
    trainer = TitanTrainer(TrainerSettings(model=str(tiny_model), compute_dtype="float32"), World())
    trainer.begin_save(tmp_path, About(run_id="r"))
    assert isinstance(trainer.finish_save(seconds=120), Saved)
    trainer.close()
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((tiny_model / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(ModelError, match=r"other/config.json is not of the model in .*step-00000000\.a1\.1"):
        SavedModel(tmp_path, newest(tmp_path), other, "bfloat16")
    with pytest.raises(ModelError, match="is not of the model in"):
        SavedModel(tmp_path, newest(tmp_path), tiny_qwen3, "bfloat16")
