"""The tracker beside a run, in a process of its own: its failures are never the run's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpcrl.run.directory import Attempt, RunDirectory

FEED_GRACE_S = 30.0

# Asks the tracker to catch up and end, without waiting for it.
AskToEnd = Callable[[], None]


@contextmanager
def tracker(run: RunDirectory, attempt: Attempt, tracking_uri: str | None) -> Iterator[AskToEnd]:
    """Feed MLflow from the journals of all the run's attempts meanwhile, and wait until it has caught up.

    Args:
        attempt: whose folder takes the tracker's log.
        tracking_uri: MLflow server, or None for a database in the run directory.
    """
    if importlib.util.find_spec("mlflow") is None:
        print(
            "MLflow is not installed, so it is not fed; the run's own journal, report and curves are kept all the same. "
            "To feed it afterwards: pip install 'mlflow-skinny>=3.17,<3.18' sqlalchemy alembic; "
            f"python -m hpcrl.tracking.feed {run.path} --once",
            file=sys.stderr,
        )
        yield lambda: None
        return
    arguments = [sys.executable, "-m", "hpcrl.tracking.feed", str(run.path), "--parent", str(os.getpid())]
    if tracking_uri:
        arguments += ["--tracking-uri", tracking_uri]
    with open(attempt.log("tracker"), "ab") as output:
        feed = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        yield feed.terminate
    finally:
        feed.terminate()
        try:
            feed.wait(FEED_GRACE_S)
        except subprocess.TimeoutExpired:
            feed.kill()
            feed.wait()
