"""Inference: an engine behind HTTP, kept at the newest policy version.

The role starts an engine that speaks SGLang's routes (the embedded one, or SGLang itself), follows the trainer's announcements
on ``policy`` and, once the engine runs a version, announces that on ``served`` with the engine's address. A version that did
not load whole is never announced, so no request is routed to it. All engines of a node load from the node's memory, which one
of them fills.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from hpcrl.data.models import model_problems, resolve_model
from hpcrl.engines.sglang.settings import Sglang
from hpcrl.recipe import Recipe, Role
from hpcrl.roles.feedback import POLICY, SERVED
from hpcrl.roles.turns import Turns, token_ring
from hpcrl.run.errors import checked

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext


@dataclass(frozen=True, kw_only=True)
class Inference(Role):
    """Generates with the newest policy weights.

    Attributes:
        model: directory in Hugging Face layout, or a name that ``hpcrl.data.models.resolve_model`` knows.
        dtype: the engine computes in this type and holds the weights in it.
        max_context: longest prompt plus response [tokens].
        pause: what happens to requests under way while weights change: they end with what they have (abort), are computed
            again from their tokens (retract), or go on with their cache (in_place).
        chunk_tokens: tokens that the embedded engine generates between two looks at new requests, aborts and pauses.
        transport: how weights come: from the run's file system (disk), from the shared memory of a node that the whole trainer
            is on too (memory), by a broadcast of torch.distributed into the running engine (distributed), as published files
            over an encrypted connection (tcp), or by memory where it can be and else from the disk (auto). Whatever goes wrong
            on another way, the version is taken from the disk.
        sglang: serve by SGLang, so set up; None is the embedded engine. ``--set inference.sglang.python=…`` asks for it too.
    """

    service: ClassVar[bool] = True
    gives_way: ClassVar[bool] = True
    process_per_node: ClassVar[bool] = True

    model: str
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_context: int = 1024
    pause: Literal["abort", "retract", "in_place"] = "in_place"
    chunk_tokens: int = 8
    transport: Literal["auto", "disk", "memory", "distributed", "tcp"] = "disk"
    sglang: Sglang | None = None

    def listens(self) -> tuple[str, ...]:
        """The trainer's announcements."""
        return (POLICY,)

    def announces(self) -> tuple[str, ...]:
        """What this replica serves, and where."""
        return (SERVED,)

    def check(self, recipe: Recipe) -> list[str]:
        """The model is there and its vocabulary is the tokenizer's; SGLang is there where it is asked for."""
        problems = [*self._ring_problems(recipe), *self._span_problems(recipe)]
        for look in (self._model_problems, self._sglang_problems):
            problems += checked(look, problems) or []
        return problems

    def prepare(self, *, gpus: bool) -> None:
        """The engine, its server, and the model's own code."""
        from hpcrl.roles import fence  # noqa: F401

        if self.sglang is not None:
            from hpcrl.engines.sglang import server  # noqa: F401

            return
        from hpcrl.engines.embedded import server as embedded  # noqa: F401
        from hpcrl.engines.embedded.model import import_family

        import_family(resolve_model(self.model))

    def run(self, context: RoleContext) -> None:
        """Serve until stopped, switching to each newest version as it is announced."""
        from hpcrl.dataplane.shm.folders import kept_folder
        from hpcrl.roles.engine import computing, node_weights, serving
        from hpcrl.roles.fence import VersionFence
        from hpcrl.roles.receiving import Receiving
        from hpcrl.roles.spanning import Span

        turns = Turns(context)
        turns.take()
        context.phase("load")
        identity = context.identity
        span = Span(context, seconds=context.recipe.limits.start_s) if identity.parts > 1 else None
        with kept_folder(context.attempt) as folder:
            node = node_weights(context, folder, span)
            if span is not None and identity.part:
                with computing(self, context, folder, span) as watch:
                    span.follow(node, watch)
                return
            with (
                serving(self, context, folder, span) as engine,
                closing(Receiving(context, engine.client, folder, pause=self.pause)) as receiving,
            ):
                fence = VersionFence(context, engine.client, node, receiving, pause=self.pause, watch=engine.watch, turns=turns)
                fence.follow()

    def _span_problems(self, recipe: Recipe) -> list[str]:
        wrong: list[str] = []
        for name, group in recipe.groups.items():
            if group.role is not self or not group.resources.across_nodes:
                continue
            if self.sglang is None:
                wrong.append(
                    f"{name} may span nodes (across_nodes), and the embedded engine computes on one GPU: have SGLang serve, "
                    f"--set {name}.sglang.python=…"
                )
            if token_ring(recipe, name) is not None:
                wrong.append(
                    f"{name} may span nodes (across_nodes), and such an engine cannot share its GPUs: take it out of its ring"
                )
        return wrong

    def _ring_problems(self, recipe: Recipe) -> list[str]:
        wrong: list[str] = []
        for name, group in recipe.groups.items():
            ring = token_ring(recipe, name) if group.role is self else None
            if ring is None:
                continue
            senders = [one for one in ring.members if one in recipe.groups and POLICY in recipe.groups[one].role.announces()]
            if self.transport == "distributed" and senders:
                wrong.append(
                    f"in ring {ring.name}, {name} has no memory while {senders[0]} sends it weights by distributed; set its "
                    "transport to disk, memory or auto"
                )
            if self.sglang is None:
                continue
            if not group.resources.gpus:
                wrong.append(f"in ring {ring.name}, {name} must let go of its memory, which SGLang can on GPUs only")
            elif not self.sglang.memory_saver:
                wrong.append(f"in ring {ring.name}, {name} must let go of its memory: --set {name}.sglang.memory_saver=true")
        return wrong

    def _model_problems(self) -> list[str]:
        return model_problems(resolve_model(self.model))

    def _sglang_problems(self) -> list[str]:
        if self.sglang is None:
            return []
        from hpcrl.engines.sglang.interpreter import check_interpreter

        problems = self.sglang.problems()
        if not problems:
            check_interpreter(self.sglang, self.pause)
        return problems
