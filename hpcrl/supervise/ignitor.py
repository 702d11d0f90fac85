"""The ignitor: one for each slot, the same program on all. Derives the plan by itself, starts its slot's processes, watches.

``python -m hpcrl.supervise.ignitor RUN ATTEMPT FIRST SLOTS [COMPONENT]``. With a component, it is a task of that component's
Slurm step, and its slot is FIRST plus the number of the task; without one, it is a process of a run on this machine alone, on
slot FIRST. No ignitor leads: each describes its slot, gathers what all the others say, makes the plan from that, and goes on
only if every other one made the same.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcrl.config.codec import recipe_from_run
from hpcrl.plan.plan import Plan, PlannedProcess, make_plan
from hpcrl.recipe import Recipe
from hpcrl.run.atomic import write_text
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import HpcrlError, Stopped, host
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.children import Child
from hpcrl.supervise.claim import PortClaims
from hpcrl.supervise.drain import DrainFlag
from hpcrl.supervise.gather import agree, describe_slot, gather_allocation
from hpcrl.supervise.linux import die_with_parent
from hpcrl.supervise.place import Place, local_place, slurm_place
from hpcrl.supervise.queue import nearest_units, plan_edges, shared_memory
from hpcrl.supervise.restarts import QUEUE_LIMIT, Restarts
from hpcrl.supervise.signals import FROM_OUTSIDE, STOP
from hpcrl.supervise.spec import QUEUE_GROUP, ProcessSpec, identity_of
from hpcrl.supervise.watch import watch
from hpcrl.supervise.ways import log_ways

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Ignite one slot; returns 0, or the exit code of the role that failed first."""
    path, number, first, slots = Path(argv[0]), int(argv[1]), int(argv[2]), int(argv[3])
    component = argv[4] if len(argv) > 4 else None
    die_with_parent(signal.SIGTERM)
    slot = first if component is None else first + int(os.environ["SLURM_PROCID"])
    name = f"ignitor.{slot}"
    attempt = Attempt(RunDirectory.open(path), number)
    if component is not None:
        # A step has one log; each ignitor has its own.
        _log_to(attempt.log(name))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    recipe = recipe_from_run(attempt.run)
    stop = DrainFlag(attempt, name, recipe.limits.drain_s)
    stop.hear((*FROM_OUTSIDE, STOP))
    # Held until this process ends.
    claims = PortClaims(attempt.run.run_id)
    try:
        with shared_memory(attempt):
            place = local_place(slot) if component is None else slurm_place(path, component, os.environ)
            plan = derive_plan(recipe, attempt, place, slot, slots, stop, claims)
            failure = watch(
                start_processes(recipe, attempt, plan, slot),
                workers_of(recipe, plan),
                attempt,
                stop=stop,
                drain_s=recipe.limits.drain_s,
                roles=frozenset(process.name for process in plan.processes if process.group != QUEUE_GROUP),
                who=name,
            )
    except Stopped:
        write_done(attempt, DoneRecord(process=name, status="stopped"))
        return 0
    except HpcrlError as error:
        log.error("%s on %s: %s", name, host(), error)
        write_done(attempt, DoneRecord(process=name, status="failed", code=1, error=str(error)))
        return 1
    return failure.code if failure else 0


def derive_plan(
    recipe: Recipe, attempt: Attempt, place: Place, slot: int, slots: int, stop: StopFlag, claims: PortClaims
) -> Plan:
    """The plan that all ignitors of the attempt agree on; the first slot's leaves it in the attempt's directory.

    Args:
        claims: keep the plan's ports on this host.

    Raises:
        CheckFailed: the recipe cannot be placed on what was gathered.
        PlanMismatch: another ignitor made another plan.
        DeadlineExceeded: another ignitor did not come.
    """
    rendezvous = Rendezvous(attempt.path / "rendezvous", attempt.run.run_id, stop)
    report = describe_slot(place.here, attempt.run.run_id, place.rank, claims)
    allocation = gather_allocation(rendezvous, report, slot=slot, slots=slots, seconds=recipe.limits.start_s)
    plan = make_plan(recipe, allocation, attempt.run.run_id, place.components)
    agree(rendezvous, plan, slot=slot, slots=slots, seconds=recipe.limits.start_s)
    if slot == 0:
        write_text(attempt.path / "plan.json", plan.to_json())
    claims.keep(plan.ports)
    log.info("plan %s, ports %d to %d", plan.hash[:12], plan.ports[0], plan.ports[1] - 1)
    return plan


def workers_of(recipe: Recipe, plan: Plan) -> frozenset[str]:
    """Every process of the run that ends by itself."""
    return frozenset(
        process.name
        for process in plan.processes
        if process.group != QUEUE_GROUP and not recipe.groups[process.group].role.service
    )


def start_processes(recipe: Recipe, attempt: Attempt, plan: Plan, slot: int) -> list[Child]:
    """Start what the plan puts on a slot."""
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
        children.append(
            Child.start(
                process.name,
                "hpcrl.supervise.process",
                partial(_argument, spec),
                env=environment(os.environ, process),
                log=attempt.log(process.name),
                service=service,
                restarts=restarts_of(recipe, process.group),
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


def _argument(spec: ProcessSpec, incarnation: int) -> str:
    return replace(spec, incarnation=incarnation).to_json()


def _log_to(path: Path) -> None:
    with open(path, "ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
