"""The processes that a plan puts on a slot: how each is started, and what a spare for it imports."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hpcrl.plan.plan import Plan, PlannedProcess
from hpcrl.recipe import Recipe
from hpcrl.run.directory import Attempt
from hpcrl.supervise.children import Child
from hpcrl.supervise.queue import modules_of, nearest_units, plan_edges
from hpcrl.supervise.restarts import QUEUE_LIMIT, Restarts
from hpcrl.supervise.spare import ENTRY, Warm
from hpcrl.supervise.spares import Spares
from hpcrl.supervise.spec import QUEUE_GROUP, ProcessSpec, identity_of
from hpcrl.supervise.ways import log_ways

log = logging.getLogger(__name__)

# By so many characters the argument of a further incarnation, or attempt, may be longer.
_LONGER = 32


def workers_of(recipe: Recipe, plan: Plan) -> frozenset[str]:
    """Every process of the run that ends by itself."""
    return frozenset(
        process.name
        for process in plan.processes
        if process.group != QUEUE_GROUP and not recipe.groups[process.group].role.service
    )


def start_processes(recipe: Recipe, attempt: Attempt, plan: Plan, slot: int, spares: Spares | None = None) -> list[Child]:
    """Start what the plan puts on a slot.

    Args:
        spares: are told what they will be needed for; those that an earlier attempt left are used already.
    """
    processes = dict(Counter(process.group for process in plan.processes))
    across, units = tuple(sorted(plan_edges(recipe, plan))), nearest_units(plan)
    children, ways = [], log_ways(recipe, plan)
    for process in plan.on_slot(slot):
        # A process sees its own GPUs only, and CUDA numbers those from 0.
        identity = replace(identity_of(process), gpus=tuple(range(len(process.gpus))))
        spec = ProcessSpec(
            str(attempt.run.path),
            attempt.number,
            identity,
            processes,
            node=process.node,
            across=across,
            unit=units.get(process.node, 0),
            ways=ways,
        )
        service = process.group == QUEUE_GROUP or recipe.groups[process.group].role.service
        env, restarts = environment(os.environ, process), restarts_of(recipe, process.group)
        if spares is not None and (restarts.limit or spares.outlast):
            spares.expect(env, warm_for(recipe, spec))
        children.append(
            Child.start(
                process.name,
                ENTRY,
                partial(_argument, spec),
                env=env,
                log=attempt.log(process.name),
                service=service,
                restarts=restarts,
                spares=spares,
            )
        )
        log.info("started %s, pid %d", process.name, children[-1].popen.pid)
    return children


def restarts_of(recipe: Recipe, group: str) -> Restarts:
    """How often a process of a group may be started again in place."""
    if group == QUEUE_GROUP:
        return Restarts(QUEUE_LIMIT, fatal=True)
    # The others of a world cannot go on with a new one.
    return Restarts(0 if recipe.groups[group].role.world else recipe.limits.restarts)


def warm_for(recipe: Recipe, spec: ProcessSpec) -> Warm:
    """What a spare imports for a process."""
    group, rank = spec.identity.group, spec.identity.rank
    return Warm(
        run_directory=spec.run_directory,
        groups=() if group == QUEUE_GROUP else (group,),
        gpus=bool(spec.identity.gpus),
        modules=(ENTRY, *modules_of(recipe, group, rank, frozenset(spec.across))),
        room=len(ENTRY) + len(spec.to_json()) + _LONGER,
    )


def _argument(spec: ProcessSpec, incarnation: int) -> str:
    return replace(spec, incarnation=incarnation).to_json()


def environment(base: Mapping[str, str], process: PlannedProcess) -> dict[str, str]:
    """Environment of a process: its own cores and GPUs, and no library that reaches outside or draws progress bars."""
    threads = str(max(1, process.cpus))
    return {
        **base,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # In the order of nvidia-smi, which the plan counts in.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, process.gpus)),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": base.get("HF_HUB_OFFLINE", "1"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONUNBUFFERED": "1",
    }
