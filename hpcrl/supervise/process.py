"""Entry of every process that an ignitor starts: ``python -m hpcrl.supervise.process SPEC``.

A process of group ``queue`` serves the data plane, any other runs its group's role. Exit code 0 unless it failed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from hpcrl.config.codec import recipe_from_run
from hpcrl.recipe import Recipe
from hpcrl.roles.context import RoleContext
from hpcrl.run.directory import Attempt
from hpcrl.run.errors import RoleLost
from hpcrl.run.importing import uncollected
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag
from hpcrl.supervise.linux import die_with_parent
from hpcrl.supervise.queue import connect_queue, serve_queue
from hpcrl.supervise.running import run_to_record
from hpcrl.supervise.signals import STOP, hear
from hpcrl.supervise.spec import QUEUE_GROUP, ProcessSpec
from hpcrl.tracking.journal import Journal

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Run the process that ``argv[0]``, a :class:`ProcessSpec` in JSON, describes."""
    spec = ProcessSpec.from_json(argv[0])
    die_with_parent(STOP)
    stop = StopFlag()
    attempt = spec.open_attempt()
    recipe = recipe_from_run(attempt.run)
    group = spec.identity.group
    service = group == QUEUE_GROUP or recipe.groups[group].role.service
    hear(stop, service=service)
    # Ctrl-C reaches every process of a terminal; only the launcher acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    return run_to_record(
        attempt,
        spec.identity.name,
        lambda: _work(spec, attempt, recipe, stop),
        stop=stop,
        service=service,
    ).code


def _work(spec: ProcessSpec, attempt: Attempt, recipe: Recipe, stop: StopFlag) -> None:
    identity = spec.identity
    rendezvous = Rendezvous(attempt.path / "rendezvous", attempt.run.run_id, stop)
    if identity.group == QUEUE_GROUP:
        serve_queue(spec, recipe, attempt, rendezvous, stop)
        return
    journal = Journal(attempt.journal / f"{identity.name}.jsonl")
    queue = connect_queue(spec, recipe, attempt, rendezvous, stop)
    try:
        context = RoleContext(
            recipe=recipe,
            identity=identity,
            attempt=attempt,
            queue=queue,
            rendezvous=rendezvous,
            journal=journal,
            key=attempt.run.key,
            stop=stop,
            ways=spec.ways,
        )
        context.phase("start")
        role = recipe.groups[identity.group].role
        with uncollected():
            role.prepare(gpus=bool(identity.gpus))
        role.run(context)
        context.phase("end")
    except RoleLost as lost:
        log.error("%s ends by SIGKILL: %s", identity.name, lost)
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        queue.close()
        journal.close()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries leave threads that would keep the interpreter from ending; everything of ours is closed by now.
    os._exit(code)
