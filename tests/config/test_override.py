from __future__ import annotations

from pathlib import Path

import pytest

from hpcrl.config.override import build_recipe
from hpcrl.run.errors import CheckFailed

RECIPE = """
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcrl.recipe import Column, Recipe, Resources, Role, RoleGroup, Schedule, Stream


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class Averaging:
    decay: float = 0.9
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class Trainer(Role):
    averaging: Averaging | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    kind: Literal["adamw", "sgd"] = "adamw"
    clip: float | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if self.clip is not None and self.clip <= 0:
            raise ValueError("clip must be above 0")


def recipe(steps: int = 10, model: str = "tiny", sizes: tuple[int, ...] = (1, 2), seed: int = 0) -> Recipe:
    if steps > 1000:
        raise RuntimeError("too long")
    return Recipe(
        name=model,
        groups={"trainer": RoleGroup(role=Trainer(options={"a": "1"}), resources=Resources(cpus=2))},
        streams=(Stream(name="samples", columns=(Column(name="tokens", dtype="int32", ragged=True),)),),
        schedule=Schedule(steps=steps, prompts_per_step=len(sizes), samples_per_prompt=4),
        seed=seed + 100,
    )
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(RECIPE)
    return file


def test_parameters_come_before_fields(path):
    recipe = build_recipe(path, ["steps=20", "sizes=1,2,3", "seed=3"])
    assert recipe.schedule.steps == 20
    assert recipe.schedule.prompts_per_step == 3
    assert recipe.seed == 103


@pytest.mark.parametrize(
    ("item", "get", "value"),
    [
        ("schedule.window=2", lambda r: r.schedule.window, 2),
        ("schedule.window=none", lambda r: r.schedule.window, None),
        ("limits.wait_s=60", lambda r: r.limits.wait_s, 60.0),
        ("name=other", lambda r: r.name, "other"),
        ("groups.trainer.replicas=2", lambda r: r.groups["trainer"].replicas, 2),
        ("groups.trainer.role.kind=sgd", lambda r: r.groups["trainer"].role.kind, "sgd"),
        ("trainer.kind=sgd", lambda r: r.groups["trainer"].role.kind, "sgd"),
        ("trainer.clip=0.5", lambda r: r.groups["trainer"].role.clip, 0.5),
        ("trainer.optimizer.lr=1e-6", lambda r: r.groups["trainer"].role.optimizer.lr, 1e-6),
        ("trainer.optimizer.betas=0.8,0.9", lambda r: r.groups["trainer"].role.optimizer.betas, (0.8, 0.9)),
        ("trainer.optimizer.betas.1=0.99", lambda r: r.groups["trainer"].role.optimizer.betas, (0.9, 0.99)),
        ("trainer.options.a=2", lambda r: r.groups["trainer"].role.options, {"a": "2"}),
        ("trainer.options.b=3", lambda r: r.groups["trainer"].role.options, {"a": "1", "b": "3"}),
        ("trainer.replicas=3", lambda r: r.groups["trainer"].replicas, 3),
        ("trainer.gpus=4", lambda r: r.groups["trainer"].resources.gpus, 4),
        ("trainer.after=", lambda r: r.groups["trainer"].after, ()),
        ("streams.samples.block_rows=64", lambda r: r.streams[0].block_rows, 64),
        ("streams.samples.columns.tokens.dtype=int64", lambda r: r.streams[0].columns[0].dtype, "int64"),
    ],
)
def test_any_field_can_be_set(path, item, get, value):
    assert get(build_recipe(path)) != value or item == "trainer.after="
    read = get(build_recipe(path, [item]))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["stepz=3"], ["--set stepz: there is no such parameter or field; nearest: steps"]),
        (["lr=1e-6"], ["trainer.optimizer.lr"]),
        (["trainer.cpuz=3"], ["trainer.cpus"]),
        (["schedule.windw=3"], ["nearest: schedule.window"]),
        (["trainr.replicas=3"], ["nearest: trainer.replicas"]),
        (["trainer=3"], ["no such parameter or field"]),
        (["streams.sample.block_rows=3"], ["streams.samples.block_rows"]),
        (["steps=ten"], ["--set steps=ten: expected int"]),
        (["schedule.window=two"], ["--set schedule.window=two: expected int | None"]),
        (["trainer.kind=lion"], ["expected one of adamw, sgd"]),
        (["limits=3"], ["a Limits cannot be given as text", "limits.version_lag"]),
        (["steps"], ["write it as name=value"]),
        (["steps=1", "steps=2"], ["--set steps is given twice ('1' and '2')"]),
        (["trainer.gpus=1", "groups.trainer.resources.gpus=2"], ["are the same field, given twice"]),
        (["trainer.clip=-1"], ["--set trainer.clip=-1: clip must be above 0"]),
        (["steps=2000"], ["RuntimeError: too long", "mine.py:38"]),
    ],
)
def test_a_bad_set_is_refused(path, sets, says):
    with pytest.raises(CheckFailed) as error:
        build_recipe(path, sets)
    assert len(error.value.problems) == 1
    for part in says:
        assert part in str(error.value)


def test_all_bad_sets_come_at_once(path):
    with pytest.raises(CheckFailed) as error:
        build_recipe(path, ["steps=x", "nothing", "trainer.kind=lion", "wind=2", "seed=1", "seed=2"])
    assert len(error.value.problems) == 5


def test_a_required_parameter_must_be_given(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RECIPE.replace("steps: int = 10, model: str", "steps: int, model: str"))
    with pytest.raises(CheckFailed, match="give --set steps=int"):
        build_recipe(path)
    assert build_recipe(path, ["steps=5"]).schedule.steps == 5


def test_a_recipe_that_returns_something_else_is_refused(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def recipe():\n    return 3\n")
    with pytest.raises(CheckFailed, match="returned a int; it must return"):
        build_recipe(path)


def test_settings_that_may_be_none_are_asked_for_by_a_field_of_theirs(path):
    def averaging(*sets):
        found = build_recipe(path, sets).groups["trainer"].role.averaging
        return None if found is None else (found.decay, found.every)

    assert averaging() is None
    assert averaging("trainer.averaging.every=4") == (0.9, 4)
    assert averaging("trainer.averaging.every=4", "trainer.averaging.decay=0.5") == (0.5, 4)
    assert averaging("trainer.averaging=none") is None
    with pytest.raises(CheckFailed, match="there is no such parameter or field"):
        averaging("trainer.averaging.evry=4")
    with pytest.raises(CheckFailed, match=r"expected Averaging \| None"):
        averaging("trainer.averaging=4")
