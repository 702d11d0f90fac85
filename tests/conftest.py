"""Fixtures shared by all tests: tiny models with a real tokenizer, made in a second and used read-only."""

from __future__ import annotations

from pathlib import Path

import pytest

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
VOCAB_SIZE = 128


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|im_start|>", "<|im_end|>", "<unk>"]
    characters = [chr(c) for c in range(32, 127)]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(special + characters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="<unk>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _write_model(folder: Path, family: str) -> Path:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape)) if family == "llama" else Qwen3ForCausalLM(Qwen3Config(**shape))
    torch.random.set_rng_state(generator_state)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=1, bos_token_id=0)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers, 64 wide, with a character tokenizer; float32."""
    return _write_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of two layers, 64 wide, with a character tokenizer; float32."""
    return _write_model(tmp_path_factory.mktemp("qwen3"), "qwen3")
