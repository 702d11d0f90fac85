import pytest

from hpcrl.run.digest import CHUNK, Digest, digest_bytes, digest_file, method_of


@pytest.mark.parametrize("method", [None, "xxh3_128", "blake2b"])
def test_a_file_in_pieces_has_the_checksum_of_its_bytes(tmp_path, method):
    data = bytes(range(256)) * (CHUNK // 256 + 1)
    (tmp_path / "f").write_bytes(data)
    pieces = Digest(method)
    pieces.update(data[:7])
    pieces.update(memoryview(data)[7:])
    assert pieces.text() == digest_bytes(data, method) == digest_file(tmp_path / "f", method)
    assert method_of(pieces.text()) == (method or "xxh3_128")


def test_one_bit_changes_it():
    assert digest_bytes(b"\x00" * 100) != digest_bytes(b"\x00" * 99 + b"\x01")


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="'md5' are not known"):
        digest_bytes(b"", "md5")
