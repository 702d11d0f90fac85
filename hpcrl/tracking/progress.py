"""The live view of a run: a panel on a terminal, one line a step without one. A view that breaks never breaks the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from hpcrl.tracking.figures import Figures
from hpcrl.tracking.journal import RunJournalReader
from hpcrl.tracking.view import Snapshot, panel, plain_line

if TYPE_CHECKING:
    from hpcrl.recipe import Recipe
    from hpcrl.run.directory import Attempt


class Progress:
    """Follows the journals of an attempt and shows where it is.

    Args:
        console: where to show it; standard output if left out. Rich takes width, colours (``NO_COLOR``) and whether it is
            a terminal from the environment.
    """

    def __init__(self, recipe: Recipe, attempt: Attempt, *, console: Console | None = None) -> None:
        self._recipe, self._attempt = recipe, attempt
        self._console = console or Console(highlight=False, soft_wrap=False)
        self._reader = RunJournalReader(attempt.run)
        self._figures = Figures()
        self._started = time.time()
        self._printed = -1
        self._live: Live | None = None
        self._broken = False
        unicode = self._console.encoding.lower().startswith("utf")
        if self._console.is_terminal and not self._console.is_dumb_terminal and unicode:
            # Refreshed by update(), so no thread draws while the caller prints.
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def update(self) -> None:
        """Show what is new; call it about twice a second. Never raises for what the terminal does."""
        self._collect()
        self._show()

    def close(self, summary: str = "") -> None:
        """Show the last state and leave it on the screen, with a closing line under it."""
        self._collect()
        self._show()
        try:
            if self._live is not None:
                self._live.stop()
            if summary and not self._broken:
                encoding = self._console.encoding
                print(summary.encode(encoding, "replace").decode(encoding), file=self._console.file, flush=True)
        except (OSError, ValueError):
            self._broken = True

    def _collect(self) -> None:
        for attempt, writer, record in self._reader.read():
            self._figures.add(attempt, writer, record)

    def _show(self) -> None:
        if self._broken:
            return
        try:
            if self._live is None:
                self._print_lines()
            else:
                if not self._live.is_started:
                    self._live.start()
                self._live.update(panel(self._snapshot(), self._console), refresh=True)
        except (OSError, ValueError):
            # The terminal or the pipe is gone (ValueError: the stream was closed). The journal has everything.
            self._broken = True

    def _print_lines(self) -> None:
        # What earlier attempts trained is history: it belongs in the curve, not in new lines.
        for step in self._figures.steps():
            if step.attempt != self._attempt.number or step.step <= self._printed:
                continue
            self._printed = step.step
            print(plain_line(step, self._recipe.schedule.steps), file=self._console.file, flush=True)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            name=self._recipe.name,
            attempt=self._attempt.number,
            total=self._recipe.schedule.steps,
            steps=self._figures.steps(),
            phases={name: phase for name, phase in self._figures.phases.items() if phase.attempt == self._attempt.number},
            groups=tuple(self._recipe.groups),
            started=self._started,
            now=time.time(),
        )
