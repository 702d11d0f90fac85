"""The ignitor: one for each slot, the same program on all. Derives the plan by itself, starts its slot's processes, watches.

``python -m hpcrl.supervise.ignitor RUN ATTEMPT FIRST SLOTS [COMPONENT]``. With a component, it is a task of that component's
Slurm step, and its slot is FIRST plus the number of the task; without one, it is a process of a run on this machine alone, on
slot FIRST, and lives on for a further attempt if its launcher says so over its standard input. No ignitor leads: each describes
its slot, gathers what all the others say, makes the plan from that, and goes on only if every other one made the same.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from hpcrl.config.codec import recipe_from_run
from hpcrl.plan.plan import Plan, make_plan
from hpcrl.recipe import Recipe
from hpcrl.run.atomic import write_text
from hpcrl.run.directory import Attempt, RunDirectory
from hpcrl.run.errors import HpcrlError, Stopped, host
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.claim import PortClaims
from hpcrl.supervise.drain import DrainFlag
from hpcrl.supervise.gather import agree, describe_slot, gather_allocation
from hpcrl.supervise.launcher import Launcher
from hpcrl.supervise.linux import die_with_parent
from hpcrl.supervise.place import Place, local_place, slurm_place
from hpcrl.supervise.queue import shared_memory
from hpcrl.supervise.signals import FROM_OUTSIDE, STOP
from hpcrl.supervise.spares import Spares
from hpcrl.supervise.spec import QUEUE_GROUP
from hpcrl.supervise.starting import start_processes, workers_of
from hpcrl.supervise.watch import watch

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
    # Only on this machine does one ignitor live through several attempts.
    launcher = Launcher(sys.stdin.fileno()) if component is None else None
    with ExitStack() as stack:
        spares = None
        if recipe.limits.spares:
            spares = stack.enter_context(closing(Spares(attempt.log(name), outlast=launcher is not None)))
        # Held until this process ends.
        claims = PortClaims(attempt.run.run_id)
        while True:
            code, goes_on = _live(recipe, attempt, component, slot, slots, stop, claims, spares)
            if launcher is None or not goes_on or (further := launcher.next(code)) is None:
                return code
            attempt = Attempt(attempt.run, further)
            stop.follow(attempt)
            _log_to(attempt.log(name))


def _live(
    recipe: Recipe,
    attempt: Attempt,
    component: str | None,
    slot: int,
    slots: int,
    stop: DrainFlag,
    claims: PortClaims,
    spares: Spares | None,
) -> tuple[int, bool]:
    """One attempt: its exit code, and whether another may follow it."""
    name = f"ignitor.{slot}"
    try:
        with shared_memory(attempt):
            place = local_place(slot) if component is None else slurm_place(attempt.run.path, component, os.environ)
            plan = derive_plan(recipe, attempt, place, slot, slots, stop, claims)
            failure = watch(
                start_processes(recipe, attempt, plan, slot, spares),
                workers_of(recipe, plan),
                attempt,
                stop=stop,
                drain_s=recipe.limits.drain_s,
                roles=frozenset(process.name for process in plan.processes if process.group != QUEUE_GROUP),
                who=name,
                spares=spares,
            )
    except Stopped:
        write_done(attempt, DoneRecord(process=name, status="stopped"))
        return 0, False
    except HpcrlError as error:
        log.error("%s on %s: %s", name, host(), error)
        write_done(attempt, DoneRecord(process=name, status="failed", code=1, error=str(error)))
        return 1, False
    if failure is None:
        return 0, False
    return failure.code, bool(failure.killed_by) and not stop.is_set()


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


def _log_to(path: Path) -> None:
    with open(path, "ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
