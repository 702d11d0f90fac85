"""Submit a run to Slurm: everything is checked first, then the run directory is made, then one job is queued."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.config.codec import recipe_to_json
from hpcrl.config.load import MODULE, sources
from hpcrl.config.override import build_recipe
from hpcrl.launch.choose import make_layout
from hpcrl.launch.cluster_answers import ClusterAnswers
from hpcrl.launch.earlier import earlier_pace
from hpcrl.launch.find import root_for_new
from hpcrl.launch.job_files import JobFiles
from hpcrl.launch.jobs import record_job
from hpcrl.launch.joined import queue_joined
from hpcrl.launch.layout import Asked, Layout
from hpcrl.launch.pace import Pace
from hpcrl.launch.preflight import needed_bytes, place_problems, role_problems
from hpcrl.launch.queue_once import NotKnown, queue_once
from hpcrl.launch.reasons import why_refused
from hpcrl.launch.render import LOGS, JobFacts
from hpcrl.launch.site import Site, find_site
from hpcrl.launch.slurm import Slurm, SlurmDown, SlurmMissing, SlurmRefused
from hpcrl.launch.snapshot import Code, code_of, freeze, paths_of, with_own_files, write_code
from hpcrl.launch.time_limit import TimeLimit, signal_s
from hpcrl.plan.plan import Plan, make_plan
from hpcrl.recipe import Recipe
from hpcrl.run.atomic import write_text
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed, checked, host

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_UNNAMED = "not-yet-named"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a person asks for.

    Attributes:
        asked: nodes, time and layout.
        site: name or file of a profile; None = the default one.
        run_dir: None = a new folder where runs are kept.
        name: of the run and its job; empty = the recipe's.
        after: start only once this job has ended.
        code: folders with further code to keep with the run.
    """

    recipe: Path
    sets: tuple[str, ...] = ()
    asked: Asked = field(default_factory=Asked)
    site: str | None = None
    run_dir: Path | None = None
    name: str = ""
    hold: bool = False
    after: int | None = None
    requeue: bool = True
    tracking_uri: str | None = None
    code: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An order that nothing speaks against.

    Attributes:
        said: what Slurm says of it, such as when it would start.
        estimate: how many jobs the run will take by the pace of an earlier one; empty if there is none.
        unchecked: why Slurm was not asked; empty if it was.
    """

    order: Order
    recipe: Recipe
    site: Site
    layout: Layout
    plan: Plan
    path: Path
    code: Code
    said: str = ""
    estimate: str = ""
    unchecked: str = ""

    @property
    def name(self) -> str:
        """Of the run and its job."""
        return self.order.name or self.recipe.name

    def facts(self, run_id: str = _UNNAMED) -> JobFacts:
        """What the script says of the run."""
        return _facts(self.order, self.recipe, self.path, paths_of(self.code, self.path), run_id)

    def script(self, run_id: str = _UNNAMED) -> str:
        """The main job's batch script."""
        return self.scripts(run_id)["batch.sh"]

    def scripts(self, run_id: str = _UNNAMED) -> dict[str, str]:
        """Every batch script by its file name, the main job's last."""
        return self.files(run_id).scripts()

    def files(self, run_id: str = _UNNAMED) -> JobFiles:
        """What is kept with the run of its jobs."""
        return JobFiles(self.layout, self.site, self.facts(run_id), self.order.asked)


def _size(asked: Asked) -> dict[str, int | None]:
    return {"nodes": asked.nodes, "gpus_per_node": asked.gpus_per_node}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A run whose job is queued; ``joined`` holds the jobs of components that join it."""

    run: RunDirectory
    job: int
    said: str = ""
    joined: Mapping[str, int] = field(default_factory=dict)


def prepare(order: Order, slurm: Slurm, *, dry: bool = False) -> Prepared:
    """Check an order. Makes and queues nothing.

    Args:
        dry: a Slurm that is missing or silent is no problem, and is told in ``unchecked``.

    Raises:
        CheckFailed: with everything that is wrong.
    """
    with ThreadPoolExecutor(max_workers=6) as pool:
        cluster = ClusterAnswers(slurm, pool, order.after)
        problems = _order_problems(order)
        site = checked(lambda: find_site(order.site), problems)
        recipe = checked(lambda: build_recipe(order.recipe, order.sets, size=_size(order.asked)), problems)
        path = order.run_dir or root_for_new(site) / _folder(order, recipe)
        path = path.absolute()
        layout: Layout | None = None
        plan: Plan | None = None
        pace: Future[Pace | None] | None = None
        limit: TimeLimit | None = None
        if recipe is not None and site is not None:
            layout = checked(lambda: make_layout(recipe, order.asked, site), problems)
        if recipe is not None and site is not None and layout is not None:
            names = (order.name or recipe.name, recipe.name)
            resolved = json.loads(recipe_to_json(recipe))
            pace = pool.submit(earlier_pace, path.parent, names, resolved, layout, site.name)
            facts = _facts(order, recipe, path, (path / "code",), _UNNAMED)
            scripts = checked(JobFiles(layout, site, facts, order.asked).scripts, problems)
            cluster.test([] if scripts is None else list(scripts.values()))
            plan = checked(lambda: make_plan(recipe, layout.allocation(), "submit", layout.mapping), problems)
        if recipe is not None:
            problems += role_problems(recipe)
        problems += place_problems(path, needed_bytes(recipe) if recipe is not None else 0)
        code, wrong = code_of(order.recipe.absolute().parent, order.code)
        problems += wrong
        limit = (
            _limit(recipe, layout, pace.result()) if recipe is not None and layout is not None and pace is not None else None
        )
        problems += limit.problems if limit is not None else []
        problems += cluster.problems(order.asked, site, layout)
    if not dry and cluster.silent:
        problems.append(cluster.silent)
    problems = list(dict.fromkeys(problems))
    if problems or recipe is None or site is None or layout is None or plan is None:
        raise CheckFailed(problems)
    return Prepared(
        order=order, recipe=recipe, site=site, layout=layout, plan=plan, path=path, code=code,
        said=cluster.said, estimate=limit.estimate if limit is not None else "", unchecked=cluster.silent,
    )  # fmt: skip


def submit(prepared: Prepared, slurm: Slurm) -> Submission:
    """Make the run directory and queue its job, and those that join it.

    Raises:
        CheckFailed: nothing is queued, and nothing is left.
        NotKnown: the job may be queued; the run directory stays.
    """
    run, order = _create(prepared), prepared.order
    options = [f"--chdir={os.getcwd()}"]
    options += ["--hold"] if order.hold else []
    options += [f"--dependency=afterany:{order.after}"] if order.after is not None else []
    facts = prepared.facts(run.run_id)
    try:
        job = queue_once(slurm, run.path / LOGS / "batch.sh", options, tag=facts.tag, name=facts.name, user=os.getuid())
    except (SlurmMissing, SlurmRefused) as error:
        shutil.rmtree(run.path, ignore_errors=True)
        raise CheckFailed([why_refused(error.said) if isinstance(error, SlurmRefused) else str(error)]) from error
    except NotKnown as error:
        raise NotKnown(f"{error}; the run is kept in {run.path}") from error
    record_job(run, job, "submit")
    joined: dict[str, int] = {}
    for component in prepared.layout.joined:
        # One that is refused or not known is submitted by the main job when it starts.
        with suppress(SlurmRefused, SlurmDown, NotKnown):
            joined[component.name] = queue_joined(slurm, run, component, facts, "submit", leader=job)
    return Submission(run=run, job=job, said=prepared.said, joined=joined)


def _create(prepared: Prepared) -> RunDirectory:
    recipe, code = with_own_files(prepared.recipe, prepared.code, prepared.path)
    run = RunDirectory.create(
        prepared.path, name=prepared.name, recipe_json=recipe_to_json(recipe), sources=sources(sys.modules[MODULE])
    )
    try:
        write_code(code, run.path)
        (run.path / LOGS).mkdir()
        write_text(run.path / "requirements.txt", freeze())
        origin = {"cwd": os.getcwd(), "host": host(), "user": getpass.getuser(), "command": sys.argv}
        write_text(run.path / LOGS / "submit.json", json.dumps(origin, indent=2) + "\n")
        prepared.files(run.run_id).write(run.path)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(run.path, ignore_errors=True)
        raise CheckFailed([f"run directory {run.path} cannot be filled: {error}; choose another --run-dir"]) from error
    return run


def _order_problems(order: Order) -> list[str]:
    if order.name and not _NAME.fullmatch(order.name):
        return [f"--name {order.name!r}: a name is letters, digits and _ . + - and begins with a letter or digit"]
    return []


def _folder(order: Order, recipe: Recipe | None) -> str:
    if order.name and _NAME.fullmatch(order.name):
        return order.name
    return f"{recipe.name if recipe is not None else order.recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _facts(order: Order, recipe: Recipe, path: Path, code: tuple[Path, ...], run_id: str) -> JobFacts:
    return JobFacts(
        run=path,
        run_id=run_id,
        name=order.name or recipe.name,
        code=code,
        python=Path(sys.prefix),
        signal_s=signal_s(recipe),
        requeue=order.requeue,
        tracking_uri=order.tracking_uri,
    )


def _limit(recipe: Recipe, layout: Layout, pace: Pace | None) -> TimeLimit:
    return TimeLimit(minutes=layout.minutes, signal_s=signal_s(recipe), steps=recipe.schedule.steps, pace=pace)
