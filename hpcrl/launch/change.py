"""A run that goes on otherwise than before: on other nodes, for another time, with other fields of its recipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hpcrl.checkpoint.cursor import read_cursor
from hpcrl.config.changes import changed_recipe
from hpcrl.config.codec import recipe_from_run, recipe_to_json
from hpcrl.launch.choose import make_layout
from hpcrl.launch.cluster_answers import ClusterAnswers
from hpcrl.launch.earlier import hardware, same_work
from hpcrl.launch.job_files import JobFiles
from hpcrl.launch.pace import pace_of
from hpcrl.launch.preflight import role_problems
from hpcrl.launch.slurm import Slurm
from hpcrl.launch.time_limit import TimeLimit, signal_s
from hpcrl.plan.plan import make_plan
from hpcrl.recipe import Recipe
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed, checked


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a person asks for that differs from the run's jobs so far.

    Attributes:
        sets: fields of the recipe, ``name=value`` each.
        asked: fields of :class:`~hpcrl.launch.layout.Asked` that were given; the others stay.
    """

    sets: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.sets or self.asked)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A change that nothing speaks against."""

    recipe: Recipe
    files: JobFiles
    estimate: str = ""

    def write(self, run: RunDirectory) -> None:
        """Have the run's next job be made from it.

        Raises:
            CheckFailed, OSError: a file cannot be written.
        """
        run.change_recipe(recipe_to_json(self.recipe))
        self.files.write(run.path)


def prepare_change(run: RunDirectory, change: Change, slurm: Slurm, after: int | None = None) -> Changed:
    """Check what is asked for, as at submission. Makes and queues nothing.

    Raises:
        CheckFailed: with everything that is wrong.
    """
    try:
        files = JobFiles.read(run.path)
        trained = read_cursor(run.state).step
    except OSError as error:
        raise CheckFailed([f"what run {run.path} was made from cannot be read: {error}"]) from error
    before = recipe_from_run(run)
    asked = dataclasses.replace(files.asked, **change.asked)
    problems: list[str] = []
    with ThreadPoolExecutor(max_workers=4) as pool:
        cluster = ClusterAnswers(slurm, pool, after)
        recipe = checked(lambda: changed_recipe(before, change.sets, trained=trained), problems)
        layout = checked(lambda: make_layout(recipe or before, asked, files.site), problems)
        if recipe is None or layout is None:
            raise CheckFailed([*problems, *cluster.problems(asked, None, None)])
        facts = dataclasses.replace(files.facts, signal_s=signal_s(recipe))
        made = JobFiles(layout=layout, site=files.site, facts=facts, asked=asked)
        scripts = checked(made.scripts, problems)
        cluster.test([] if scripts is None else list(scripts.values()))
        checked(lambda: make_plan(recipe, layout.allocation(), "resume", layout.mapping), problems)
        problems += role_problems(recipe)
        # On other hardware, or with other work in a step, its pace so far tells nothing.
        same = hardware(layout) == hardware(files.layout) and same_work(
            *(json.loads(recipe_to_json(r)) for r in (before, recipe))
        )
        pace = pace_of(run, recipe.groups) if same else None
        limit = TimeLimit(minutes=layout.minutes, signal_s=facts.signal_s, steps=recipe.schedule.steps - trained, pace=pace)
        problems += limit.problems
        problems += cluster.problems(asked, files.site, layout)
    if cluster.silent:
        problems.append(cluster.silent)
    if problems:
        raise CheckFailed(list(dict.fromkeys(problems)))
    return Changed(recipe=recipe, files=made, estimate=limit.estimate)
