"""Which prompts a training step takes, out of what is ready. Pure: no queue, no clock."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class StepCollector(Generic[T]):
    """Holds ready prompt groups until those of a step are complete.

    Prompt ``k`` belongs to batch ``k // prompts_per_step``. Step ``s`` takes ``prompts_per_step`` groups, lowest prompt number
    first, but only once every prompt of the batches up to ``s - lateness`` is among them or was taken before. With lateness 0
    a step trains exactly its own batch; a larger lateness lets ready prompts of later batches stand in for late ones by so
    many steps, which bounds how old a late one can get.

    Args:
        first_prompt: prompts below were trained before this attempt.
        taken: further prompts that were.
    """

    def __init__(
        self, prompts_per_step: int, *, first_prompt: int = 0, taken: frozenset[int] = frozenset(), lateness: int = 0
    ) -> None:
        self._size, self._lateness = prompts_per_step, lateness
        self._ready: dict[int, T] = {}
        # Every prompt below is taken; taken ones above are kept apart.
        self._taken_below = first_prompt
        self._taken: set[int] = set(taken)

    @property
    def ready(self) -> int:
        """Groups held now."""
        return len(self._ready)

    @property
    def taken_below(self) -> int:
        """Every prompt below this number was trained."""
        return self._taken_below

    @property
    def taken_beyond(self) -> frozenset[int]:
        """Prompts above :attr:`taken_below` that were trained."""
        return frozenset(self._taken)

    def add(self, prompt: int, group: T) -> None:
        """Hold a group.

        Raises:
            ValueError: the prompt was trained or added before: a row came twice.
        """
        if prompt in self._ready or prompt in self._taken or prompt < self._taken_below:
            raise ValueError(f"prompt {prompt} came twice")
        self._ready[prompt] = group

    def take(self, step: int, *, ended: bool = False, part: int = 0, parts: int = 1) -> list[T] | None:
        """The groups of a step in prompt order, or None while some must be waited for.

        A step may be taken in parts of about equal size, 0 first: each once it has its number of groups, and once those that
        the step must not end without and that are not here yet fit into its later parts.

        Args:
            ended: nothing more will come, so the last step takes what there is; an empty list when nothing is left.
        """
        due = (step - self._lateness + 1) * self._size
        size = self._size * (part + 1) // parts - self._size * part // parts
        late = sum(k not in self._ready and k not in self._taken for k in range(self._taken_below, due))
        chosen = sorted(self._ready)[:size]
        behind = sum(k < due for k in self._ready) - sum(k < due for k in chosen)
        room = self._size - self._size * (part + 1) // parts
        if not ended and (len(chosen) < size or late + behind > room):
            return None
        self._taken.update(chosen)
        while self._taken_below in self._taken:
            self._taken.remove(self._taken_below)
            self._taken_below += 1
        return [self._ready.pop(k) for k in chosen]
