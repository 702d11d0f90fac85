import json

import pytest

from hpcrl.run.disk import FileDamaged
from hpcrl.run.failpoints import armed
from hpcrl.run.sealed import read_sealed, write_sealed

RECORD = {"b": [1, 2.5, None], "a": {"Zürich": "東京"}}


def test_it_comes_back_with_its_checksum_whatever_the_order(tmp_path):
    digest = write_sealed(tmp_path / "f", RECORD)
    assert read_sealed(tmp_path / "f") == RECORD | {"digest": digest}
    turned = dict(reversed((RECORD | {"digest": digest}).items()))
    (tmp_path / "f").write_text(json.dumps(turned))
    assert read_sealed(tmp_path / "f") == turned


def test_every_byte_that_flips_is_found(tmp_path):
    write_sealed(tmp_path / "f", RECORD)
    data = (tmp_path / "f").read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 2
        (tmp_path / "f").write_bytes(changed)
        try:
            # Between the tokens, another white space is the same object.
            assert read_sealed(tmp_path / "f") == json.loads(data)
        except FileDamaged as error:
            assert str(tmp_path / "f") in str(error)  # noqa: PT017


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"digest": 3}', '{"digest": "md5:0"}'])
def test_what_is_no_sealed_file_is_damaged(tmp_path, text):
    (tmp_path / "f").write_text(text)
    with pytest.raises(FileDamaged, match=str(tmp_path / "f")):
        read_sealed(tmp_path / "f")


def test_a_missing_file_is_waited_for_as_long_as_asked(tmp_path):
    with pytest.raises(FileDamaged, match="No such file"):
        read_sealed(tmp_path / "f")
    write_sealed(tmp_path / "f", RECORD)
    with armed("disk.open=late:0.05"):
        assert read_sealed(tmp_path / "f", seconds=30)["b"] == [1, 2.5, None]
