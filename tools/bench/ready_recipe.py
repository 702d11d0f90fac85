"""A recipe whose roles say when they are ready and then wait: what ``submit.py`` times. No model, no data."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.recipe import Column, Limits, Reads, Recipe, Resources, Role, RoleGroup, Schedule, Stream, Writes
from hpcrl.run.stop import wait_for

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

WAIT_S = 300.0


def be_ready(folder: Path, name: str, modules: tuple[str, ...]) -> None:
    """Import what a role of that kind imports, leave the time under ``ready``, and wait for the file ``go``."""
    for module in modules:
        importlib.import_module(module)
    (folder / "ready" / f".{name}").write_text(repr(time.time()))
    (folder / "ready" / f".{name}").rename(folder / "ready" / name)
    wait_for(f"{folder / 'go'}", lambda: (folder / "go").exists() or None, seconds=WAIT_S)


@dataclass(frozen=True, kw_only=True)
class Maker(Role):
    modules: tuple[str, ...] = ()

    def writes(self) -> tuple[Writes, ...]:
        return (Writes(stream="rows", columns=("n",), creates=True),)

    def run(self, context: RoleContext) -> None:
        be_ready(context.attempt.run.path, context.identity.name, self.modules)


@dataclass(frozen=True, kw_only=True)
class Taker(Role):
    modules: tuple[str, ...] = ()

    def reads(self) -> tuple[Reads, ...]:
        return (Reads(stream="rows", columns=("n",), final=True),)

    def run(self, context: RoleContext) -> None:
        be_ready(context.attempt.run.path, context.identity.name, self.modules)


def recipe(each: int = 2, modules: str = "", cpus: int = 4) -> Recipe:
    """So many processes of either role, each with so many CPUs and with modules to import, written with commas between."""
    names = tuple(filter(None, modules.split(",")))
    resources = Resources(cpus=cpus)
    return Recipe(
        name="ready",
        groups={
            "maker": RoleGroup(role=Maker(modules=names), replicas=each, resources=resources),
            "taker": RoleGroup(role=Taker(modules=names), replicas=each, resources=resources),
        },
        streams=(Stream(name="rows", columns=(Column(name="n", dtype="int64"),), block_rows=1, capacity_rows=64),),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
        limits=Limits(start_s=240, wait_s=WAIT_S, drain_s=20),
    )
