from __future__ import annotations

import subprocess
import sys

import pytest

# A process of its own, since the package stays imported once it is.
ALONE = """
import sys
from hpcrl.data.gym_tasks import registry_with
registry = registry_with("chain_sum")
item = registry.create_dataset("chain_sum", size=3, seed=1)[2]
assert registry.get_score_answer_fn("chain_sum")(item["answer"], item) == 1.0
heavy = sorted({"reasoning_gym", "matplotlib", "sympy", "numpy"} & set(sys.modules))
assert not heavy, heavy
import reasoning_gym
assert reasoning_gym.create_dataset("chain_sum", size=3, seed=1)[2] == item
assert "gcd" in registry_with("gcd").DATASETS
assert registry_with("gcd") is reasoning_gym.factory
"""

EVERY = """
import sys
from hpcrl.data import gym_tasks
alone = {}
names = sys.argv[1:]
for name in names:
    module = gym_tasks._module_of(name)
    assert module is not None, name
    registry = gym_tasks._import_alone(module)
    assert registry is not None and name in registry.DATASETS, name
    alone[name] = registry.create_dataset(name, size=2, seed=5)[1]
    assert not any(module.startswith("reasoning_gym") for module in sys.modules), name
import reasoning_gym
for name, item in alone.items():
    assert reasoning_gym.create_dataset(name, size=2, seed=5)[1] == item, name
"""


def python(code: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_task_is_imported_alone_and_the_whole_package_later():
    python(ALONE)


@pytest.mark.slow
def test_tasks_alone_make_the_items_that_they_make_in_the_whole_package():
    # One of each package, and those that import within a function or need other packages.
    names = "gcd simple_equations spell_backward countdown family_relationships knights_knaves coin_flip list_functions bf"
    python(EVERY, *names.split(), "gsm_symbolic", "simple_geometry", "needle_haystack")


@pytest.mark.slow
def test_a_task_that_is_not_found_leaves_the_whole_package():
    from hpcrl.data.gym_tasks import registry_with

    registry = registry_with("no_such_task")
    assert "no_such_task" not in registry.DATASETS
    assert len(registry.DATASETS) > 90
