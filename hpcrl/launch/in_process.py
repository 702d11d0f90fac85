"""A whole run in this process: every role in a thread, rows in memory. For tests, debuggers and notebooks.

Roles, contexts, records and journals are those of a run in processes; only the data plane and the launch differ.
"""

from __future__ import annotations

import threading
from collections import Counter

from hpcrl.dataplane.connect import connect
from hpcrl.dataplane.history import FOLDER
from hpcrl.dataplane.memory import MemoryHub
from hpcrl.plan.plan import Plan
from hpcrl.recipe import Recipe
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecord, DoneRecords
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag, back_off
from hpcrl.supervise.running import run_to_record
from hpcrl.supervise.spec import QUEUE_GROUP, identity_of
from hpcrl.supervise.ways import log_ways
from hpcrl.tracking.journal import Journal


class InProcessRun:
    """The threads of an attempt.

    Raises:
        CheckFailed: a role forms a world of several processes, which one process cannot hold.
    """

    def __init__(self, recipe: Recipe, plan: Plan, attempt: Attempt) -> None:
        identities = [identity_of(process) for process in plan.processes if process.group != QUEUE_GROUP]
        worlds = sorted({i.group for i in identities if recipe.groups[i.group].role.world and i.world_size > 1})
        if worlds:
            raise CheckFailed([f"group {name} forms a world of several processes; --in-process holds one" for name in worlds])
        self._recipe, self._attempt = recipe, attempt
        self._ways = log_ways(recipe, plan)
        self._hub = MemoryHub(attempt.path / FOLDER)
        self._processes = Counter(process.group for process in plan.processes)
        self._stops = {identity.name: StopFlag() for identity in identities}
        self._services = {i.name for i in identities if recipe.groups[i.group].role.service}
        self._threads = {i.name: threading.Thread(target=self._run, args=(i,), name=i.name, daemon=True) for i in identities}
        for thread in self._threads.values():
            thread.start()

    def poll(self) -> bool:
        """Pass on ends and failures as an ignitor does; returns whether the run has ended."""
        records = DoneRecords(self._attempt)
        workers = self._threads.keys() - self._services
        if records.first_failure() is not None:
            self.drain()
        if workers <= records.read().keys():
            for name in self._services:
                self._stops[name].set()
        ended = not any(thread.is_alive() for thread in self._threads.values())
        if ended:
            self._hub.close()
        return ended

    def drain(self) -> None:
        """Ask the workers to save and end."""
        for name in self._threads.keys() - self._services:
            self._stops[name].set()

    def wait(self) -> DoneRecord | None:
        """Until everything has ended; returns the first failure or None."""
        flag, pauses = StopFlag(), back_off(0.02, 0.2)
        while not self.poll():
            flag.sleep(next(pauses))
        return DoneRecords(self._attempt).first_failure()

    def _run(self, identity: Identity) -> None:
        stop = self._stops[identity.name]
        role = self._recipe.groups[identity.group].role
        journal = Journal(self._attempt.journal / f"{identity.name}.jsonl")
        queue = connect(
            self._hub,
            self._recipe,
            group=identity.group,
            rank=identity.rank,
            processes=self._processes,
            attempt=self._attempt.number,
            stop=stop,
        )
        context = RoleContext(
            recipe=self._recipe,
            identity=identity,
            attempt=self._attempt,
            queue=queue,
            rendezvous=Rendezvous(self._attempt.path / "rendezvous", self._attempt.run.run_id, stop),
            journal=journal,
            key=self._attempt.run.key,
            stop=stop,
            ways=self._ways,
        )

        def work() -> None:
            context.phase("start")
            role.run(context)
            context.phase("end")

        run_to_record(self._attempt, identity.name, work, stop=stop, service=role.service)
        queue.close()
        journal.close()
