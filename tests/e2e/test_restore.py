"""An interrupted run goes on with the rows that it had: each prompt is trained once, and the history proves it."""

from __future__ import annotations

import itertools
import re
import signal
from typing import Any

import pytest

from hpcrl.run.stop import wait_for

pytestmark = pytest.mark.slow


# Where nothing paces them, the first steps find their rows waiting and take hundredths of a second.
@pytest.mark.parametrize(("window", "last"), [(1, 12), (None, 60)])
def test_what_was_in_the_queue_is_trained_by_the_next_attempt(
    launcher: Any, tmp_path_factory: pytest.TempPathFactory, window: int | None, last: int, nothing_left: Any
):
    run = tmp_path_factory.mktemp("stopped") / "run"
    process = launcher.start(*launcher.arguments(run, steps=last, window=window, version_lag=8))
    journal = run / "attempt_1" / "journal" / "trainer.0.jsonl"

    def trained() -> bool | None:
        return True if process.poll() is not None or (journal.exists() and '"step":2,' in journal.read_text()) else None

    wait_for("two steps to be trained", trained, seconds=120)
    process.send_signal(signal.SIGINT)
    stopped = launcher.finish(process, run, 90)
    assert stopped.code == 130, stopped.output
    assert len(stopped.steps()) < last
    again = launcher.finish(launcher.start("run", "--resume", str(run)), run)
    assert again.code == 0, again.output
    prompts = [sorted(set(step["prompts"])) for step in again.steps()]
    assert [step["step"] for step in again.steps()] == list(range(1, last + 1))
    assert sorted(itertools.chain.from_iterable(prompts)) == list(range(4 * last)), "each prompt once"
    if window == 1:
        assert prompts == [list(range(4 * step, 4 * step + 4)) for step in range(last)]
    else:
        log = (run / "attempt_2" / "logs" / "queue.0.log").read_text()
        assert re.search(r"[1-9]\d* rows in \d+ blocks of snapshot .* are in the queue again", log), log
    code, output = launcher.call("verify", str(run))
    assert code == 0, output
    nothing_left(again)
