from __future__ import annotations

from hpcrl.config.nearest import nearest


def test_close_names_and_names_with_the_same_end_come_first():
    assert nearest("schedul", ["schedule", "seed", "name"]) == "nearest: schedule"
    assert nearest("x.lr", ["trainer.optimizer.lr", "seed"]) == "nearest: trainer.optimizer.lr"


def test_without_a_close_one_all_are_listed_up_to_twelve():
    assert nearest("zzz", ["b", "a"]) == "there are: a, b"
    assert nearest("zzz", []) == "there are none"
    assert nearest("zzz", [f"a{index:02}" for index in range(20)]).endswith("a11, …")
