"""How the trainer publishes policy versions. Imported only in a process that trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.checkpoint.publish.versions import Version, version_path
from hpcrl.roles.feedback import POLICY, SERVED
from hpcrl.roles.sending import Sending

if TYPE_CHECKING:
    from hpcrl.engines.titan.trainer import TitanTrainer
    from hpcrl.roles.context import RoleContext
    from hpcrl.roles.trainer import Trainer


class Publishing:
    """One rank of the trainer. To make one is a collective of all ranks, and so are its calls.

    Attributes:
        announced: on rank 0, what was said of the newest version; None before the first.
    """

    def __init__(self, settings: Trainer, context: RoleContext, engine: TitanTrainer) -> None:
        self._settings, self._context, self._engine = settings, context, engine
        self._folder = context.attempt.run.weights
        self.announced: dict[str, Any] | None = None
        specs = engine.hf_specs()
        self._publisher = Publisher(
            self._folder,
            Path(settings.model),
            specs,
            attempt=context.attempt.number,
            rank=context.identity.rank,
            ranks=context.identity.world_size,
            exchange=engine.exchange,
            base_every=settings.base_every,
            threads=max(1, context.identity.cpus),
        )
        self._sending = Sending(context, Path(settings.model), specs, engine.exchange)

    def publish(self, *, last: bool = False) -> Version:
        """Publish the weights of now; rank 0 announces them.

        Args:
            last: the run ends with this version: it outlives the run, and can be loaded by itself.

        Raises:
            WeightsError: it cannot be written.
        """
        engine = self._engine
        self._sending.settle()
        published = self._publisher.publish(engine.step, engine.hf_tensors(), whole=last, durable=last)
        announcement = self._sending.announcement(published)
        if self._context.identity.rank == 0:
            self._announce(published, announcement)
        self._sending.send(published, self._publisher.owned)
        return published

    def close(self) -> None:
        """Let go of what sending needs."""
        self._sending.close()

    def _announce(self, published: Version, announcement: Mapping[str, Any]) -> None:
        queue, number = self._context.queue, published.version
        path = str(version_path(self._folder, number))
        self.announced = {"version": number, "path": path, "hash": published.hash, **announcement}
        queue.announce(POLICY, self.announced)
        # An engine may be loading any version newer than the one it serves.
        oldest = min((item.value["version"] for item in queue.newest(SERVED).values()), default=0)
        in_use = [version for version in self._publisher.known if version >= oldest]
        self._publisher.retain(keep_last=self._settings.keep_weights, protect=in_use)
