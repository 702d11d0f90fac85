import shutil

import pytest

from hpcrl.checkpoint.state.identity import (
    Identity,
    accept,
    check_identity,
    differences,
    model_fingerprint,
    tokenizer_fingerprint,
)
from hpcrl.checkpoint.state.layout import StateError


def of(folder):
    return Identity(model_fingerprint(folder), tokenizer_fingerprint(folder), {"of rollout, file 1": "7 bytes, x"})


@pytest.fixture
def moved(tmp_path, tiny_model):
    shutil.copytree(tiny_model, tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def test_where_the_files_lie_does_not_matter(tiny_model, moved):
    assert of(tiny_model) == of(moved)
    check_identity(moved, of(tiny_model), of(moved))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("config.json", "model config.json"),
        ("model.safetensors", "model model.safetensors"),
        ("tokenizer.json", "tokenizer tokenizer.json"),
        ("chat_template.jinja", "tokenizer chat_template.jinja"),
    ],
)
def test_another_file_is_shown(tiny_model, moved, name, kind):
    before = of(tiny_model)
    data = bytearray((moved / name).read_bytes())
    data[-1] ^= 1
    (moved / name).write_bytes(data)
    (text,) = differences(before, of(moved))
    assert text.startswith(f"{kind}: was {len(data)} bytes, xxh3_128:")
    assert f", now {len(data)} bytes, xxh3_128:" in text


def test_what_has_come_and_what_has_gone_is_shown(tmp_path):
    before, after = Identity(dataset={"a": "1", "b": "2"}), Identity(dataset={"b": "2", "c": "3"})
    assert differences(before, after) == ["dataset a: was 1, now there is none", "dataset c: there was none, now 3"]
    with pytest.raises(StateError, match=r"made with something else:\n  - dataset a: .*\n  - dataset c: .*\n.*--force"):
        check_identity(tmp_path, before, after)


def test_a_person_can_have_one_certain_other_thing_accepted(tmp_path):
    saved, other, third = (Identity(dataset={"a": text}) for text in "123")
    accept(tmp_path / "state", other)
    check_identity(tmp_path / "state", saved, other)
    check_identity(tmp_path / "state", saved, saved)
    with pytest.raises(StateError, match="was 1, now 3"):
        check_identity(tmp_path / "state", saved, third)
    (tmp_path / "state" / "accepted.json").write_text("{")
    with pytest.raises(StateError, match="was 1, now 2"):
        check_identity(tmp_path / "state", saved, other)
