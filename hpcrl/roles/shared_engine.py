"""An engine on GPUs that it shares with other groups of a ring: lets go when they are asked for, and comes back with the newest
weights. Imported only in a process that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from hpcrl.engines.client import EngineClient, EngineError, EngineUnavailable
from hpcrl.engines.device_memory import Released
from hpcrl.roles.feedback import POLICY
from hpcrl.roles.turns import Turns
from hpcrl.run.errors import RoleFailed, RoleLost, host
from hpcrl.run.stop import wait_for

if TYPE_CHECKING:
    from hpcrl.roles.context import RoleContext

# From the newest values by writer, and a version, to a newer policy than that.
Newer = Callable[..., Mapping[str, Any] | None]
_CALLED: Literal["called"] = "called"
# The call to let go is heard at once, a policy version from outside of the ring within so long.
_LOOK_S = 0.1


class SharedEngine:
    """One engine's part in its group's ring; of a group that takes no turns it only waits for policies.

    Args:
        watch: see :class:`~hpcrl.roles.fence.VersionFence`.

    Attributes:
        blank: the engine has no weights: whatever version it says it has must be loaded whole.
    """

    def __init__(self, context: RoleContext, engine: EngineClient, turns: Turns, watch: Callable[[], None]) -> None:
        self._context, self._turns, self._watch = context, turns, watch
        self.blank = False
        turns.memory = EngineMemory(engine)

    def next_policy(self, version: int, newer: Newer) -> Mapping[str, Any]:
        """The next policy that the engine is to load: a newer one than ``version``, or, where it has let go meanwhile, the
        newest.

        Raises:
            RoleFailed: the engine did not let go of its memory, or did not get it again.
            Stopped, DeadlineExceeded: as the context's waits.
        """
        context, what = self._context, f"a policy version after {version}"
        if not self._turns.active:
            return context.wait_feedback(POLICY, partial(newer, than=version), what)
        while True:
            look = partial(self._look, newer, -1 if self.blank else version)
            found = wait_for(what, look, seconds=context.recipe.limits.wait_s, stop=context.stop, pauses=repeat(0.0))
            policy = found if isinstance(found, Mapping) else self._give_way(newer, version)
            if policy is not None:
                return policy

    def loaded(self, seconds: float) -> None:
        """A whole version was loaded in so long [s]."""
        self.blank = False
        self._turns.ready(load_s=seconds)

    def _look(self, newer: Newer, than: int) -> Mapping[str, Any] | Literal["called"] | None:
        return _CALLED if self._turns.is_called(_LOOK_S) else self._newest(newer, than)

    def _newest(self, newer: Newer, than: int) -> Mapping[str, Any] | None:
        return newer({name: item.value for name, item in self._context.queue.newest(POLICY).items()}, than=than)

    def _give_way(self, newer: Newer, version: int) -> Mapping[str, Any] | None:
        """Let go, wait for the next turn, and say what is to be loaded, if there is anything yet."""
        context, step = self._context, max(version, 0)
        context.phase("yield", step=step)
        try:
            self.blank = True
            self._turns.hand_on()
            found = self._turns.take(step).found
        except EngineError as error:
            self._watch()
            name = context.identity.name
            # One that does not answer any more may do so once it is started again.
            raise (RoleLost if isinstance(error, EngineUnavailable) else RoleFailed)(
                f"{name} on {host()}: its engine did not let go of its memory, or did not get it again: {error}",
                read=context.attempt.log(name),
                do="see there what the engine says; the run can be resumed",
            ) from error
        newest = self._newest(newer, -1)
        policies = [policy for policy in (found, newest) if policy is not None and "version" in policy]
        return max(policies, key=lambda policy: int(policy["version"]), default=None)


class EngineMemory:
    """What an engine has on its device. Requests under way end with what they have when it is let go of."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def release(self) -> Released | None:
        """See :class:`~hpcrl.engines.device_memory.DeviceMemory`."""
        before = self._held()
        self._engine.pause("abort")
        self._engine.release()
        after = self._held()
        return None if before is None or after is None else Released(before - after, after)

    def resume(self) -> int | None:
        """See :class:`~hpcrl.engines.device_memory.DeviceMemory`."""
        self._engine.resume()
        return self._held()

    def _held(self) -> int | None:
        """By the engine's own count, which SGLang does not keep."""
        states = self._engine.ask("GET", "/server_info", None).get("internal_states") or [{}]
        held = states[0].get("memory_bytes")
        return None if held is None else sum(held.values())
