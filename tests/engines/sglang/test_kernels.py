from __future__ import annotations

import os
from pathlib import Path

from hpcrl.engines.sglang.kernels import kernel_folder


def test_the_folder_is_this_users_own_and_found_again(tmp_path: Path):
    folder = kernel_folder(place=tmp_path)
    assert folder == tmp_path / f"hpcrl-{os.getuid()}" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert kernel_folder(place=tmp_path) == folder
    assert kernel_folder(str(tmp_path / "mine")) == tmp_path / "mine"


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, caplog):
    folder = kernel_folder(place=tmp_path)
    folder.chmod(0o770)
    other = kernel_folder(place=tmp_path)
    assert other != folder
    assert other.is_dir()
    assert f"others can write to {folder}" in caplog.text
    other.rmdir()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path):
    (tmp_path / "elsewhere" / "kernels").mkdir(parents=True)
    (tmp_path / f"hpcrl-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    other = kernel_folder(place=tmp_path)
    assert tmp_path not in other.parents
    other.rmdir()
