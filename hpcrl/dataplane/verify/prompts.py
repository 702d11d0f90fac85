"""Which prompts' rows were trained, and how many of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcrl.dataplane.verify.intervals import IntervalSet

# Prompts of a block, each with its number of rows.
Pairs = Sequence[tuple[int, int]]


class PromptSum:
    """Tells sets of prompts apart without keeping them: how many, their sum, and the sum of their squares."""

    __slots__ = ("count", "squares", "total")

    def __init__(self, prompts: Iterable[int] = ()) -> None:
        self.count = self.total = self.squares = 0
        for prompt in prompts:
            self.add(prompt)

    def add(self, prompt: int) -> None:
        """One more."""
        self.count += 1
        self.total += prompt
        self.squares += prompt * prompt

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PromptSum):
            return NotImplemented
        return (self.count, self.total, self.squares) == (other.count, other.total, other.squares)

    __hash__ = None  # type: ignore[assignment]


class Prompt:
    """Rows of one prompt.

    Attributes:
        waiting: in the stream, and not trained.
        trained: trained, and not acknowledged yet.
        settled: trained and acknowledged.
        dropped: dropped with a reason.
    """

    __slots__ = ("dropped", "settled", "trained", "waiting")

    def __init__(self) -> None:
        self.waiting = self.trained = self.settled = self.dropped = 0


class PromptBook:
    """Prompts with rows under way one by one; all others as intervals.

    Args:
        samples: rows of each prompt; None if that is not known.

    Attributes:
        under_way: prompts that may change.
        done: trained for good.
        excused: dropped as a whole.
    """

    def __init__(self, samples: int | None) -> None:
        self._samples = samples
        self.under_way: dict[int, Prompt] = {}
        self.done, self.excused = IntervalSet(), IntervalSet()

    def waiting(self, pairs: Pairs) -> None:
        """Rows are in the stream."""
        for number, rows in pairs:
            self._open(number).waiting += rows

    def trained(self, pairs: Pairs) -> list[int]:
        """Rows were trained; gives the prompts of which more were than there should be."""
        wrong = []
        for number, rows in pairs:
            prompt = self._open(number)
            prompt.waiting -= rows
            prompt.trained += rows
            known = self._samples is not None
            if known and (number in self.done or prompt.settled + prompt.trained > (self._samples or 0)):
                wrong.append(number)
        return wrong

    def untrained(self, pairs: Pairs, *, waiting: bool) -> None:
        """Their training was rolled back; they are ``waiting`` in the stream again, or gone with an attempt."""
        for number, rows in pairs:
            prompt = self._open(number)
            prompt.trained -= rows
            prompt.waiting += rows * waiting
            self._retire(number, prompt)

    def settled(self, pairs: Pairs) -> None:
        """Their training is for good."""
        for number, rows in pairs:
            prompt = self._open(number)
            prompt.trained -= rows
            prompt.settled += rows
            self._retire(number, prompt)

    def gone(self, pairs: Pairs, *, dropped: bool) -> None:
        """Rows that waited have left the stream."""
        for number, rows in pairs:
            prompt = self._open(number)
            prompt.waiting -= rows
            prompt.dropped += rows * dropped
            self._retire(number, prompt)

    def leave(self) -> None:
        """An attempt has ended: no row is in the stream until it is seen again."""
        for number, prompt in list(self.under_way.items()):
            prompt.waiting = 0
            self._retire(number, prompt)

    def is_over(self, number: int) -> bool:
        """Whether nothing more can come of a prompt."""
        return number in self.done or number in self.excused

    def is_trained(self, number: int, *, also: int = 0) -> bool:
        """Whether enough rows of a prompt were trained or dropped; ``also`` so many that were not acknowledged."""
        if self.is_over(number):
            return True
        prompt = self.under_way.get(number)
        if prompt is None:
            return False
        had = prompt.settled + prompt.dropped + also
        return had >= (self._samples or 1)

    def incomplete(self) -> list[tuple[int, int]]:
        """Prompts of which some rows were trained and the others are not there: number, rows trained."""
        return [
            (number, prompt.settled + prompt.trained)
            for number, prompt in sorted(self.under_way.items())
            if prompt.waiting <= 0
            and prompt.settled + prompt.trained > 0
            and prompt.settled + prompt.trained + prompt.dropped < (self._samples or 0)
        ]

    def _open(self, number: int) -> Prompt:
        prompt = self.under_way.get(number)
        if prompt is None:
            prompt = self.under_way[number] = Prompt()
        return prompt

    def _retire(self, number: int, prompt: Prompt) -> None:
        if prompt.waiting > 0 or prompt.trained > 0:
            return
        if prompt.settled:
            if prompt.settled + prompt.dropped < (self._samples or 0):
                return
            self.done.add(number)
        elif prompt.dropped:
            self.excused.add(number)
        del self.under_way[number]
