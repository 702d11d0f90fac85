from __future__ import annotations

import errno
import shutil

import pytest

from hpcrl.dataplane.interface import DataPlaneError
from hpcrl.dataplane.room import choose_root, no_room


def test_shared_memory_is_chosen_if_it_is_large_enough(tmp_path):
    size = shutil.disk_usage(tmp_path).total
    fallback = tmp_path / "local"
    fallback.mkdir()
    assert choose_root(size, fallback, shared_memory=tmp_path) == tmp_path


def test_else_the_folder_local_to_the_node(tmp_path):
    assert choose_root(1, tmp_path, shared_memory=tmp_path / "missing") == tmp_path


def test_too_small_everywhere_names_each_with_size_and_free_space(tmp_path):
    need = shutil.disk_usage(tmp_path).total + 1
    with pytest.raises(DataPlaneError, match=rf"{tmp_path} has \d+ MiB, \d+ MiB of them free; .*/missing is no directory"):
        choose_root(need, tmp_path / "missing", shared_memory=tmp_path)


def test_a_failed_write_says_size_space_and_what_to_do(tmp_path):
    error = no_room(tmp_path / "f", 3 * 2**20, OSError(errno.ENOSPC, "No space left on device"))
    for part in ("cannot write 3 MiB", str(tmp_path / "f"), "No space left on device", "MiB free", "--shm-size"):
        assert part in str(error)
