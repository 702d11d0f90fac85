"""The process that feeds MLflow while a run goes on: ``python -m hpcrl.tracking.feed RUN [--tracking-uri U] [--once]``.

It follows the journal until SIGTERM, or until the process that started it is gone, then catches up and ends
within :data:`CATCH_UP_S`. Whatever goes wrong with the tracker is said once in its log and tried again; the run never
notices.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import click

from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import HpcrlError
from hpcrl.run.importing import uncollected
from hpcrl.run.stop import StopFlag
from hpcrl.tracking.mlflow_feed import MlflowFeed, quiet_mlflow

log = logging.getLogger(__name__)

POLL_S = 1.0
CATCH_UP_S = 10.0
RETRY_FIRST_S, RETRY_LAST_S = 1.0, 60.0


class Follower:
    """Keeps a feed going through outages, which it reports once each.

    Attributes:
        failing: the tracker is down at the moment.
    """

    def __init__(self, feed: MlflowFeed, run: RunDirectory) -> None:
        self._feed, self._run = feed, run
        self.failing = False
        self._pause = POLL_S

    def follow(self, stop: StopFlag) -> None:
        """Feed until ``stop``, backing off while the tracker is down. Never raises."""
        while not stop.is_set():
            self.once()
            stop.sleep(self._pause)

    def once(self, *, last: bool = False) -> bool:
        """One pass over what is new; with ``last`` also the report and the end of the MLflow run.

        Returns:
            Whether MLflow has everything now.
        """
        try:
            self._feed.sync(last=last)
            if last:
                self._feed.finish()
        except Exception as error:  # noqa: BLE001 - the feed's outer edge: databases, HTTP and plugins raise what they like
            self._report(error)
            return False
        if self.failing:
            log.info("MLflow at %s is back; everything is caught up", self._feed.shown_uri)
        self.failing, self._pause = False, POLL_S
        return True

    def _report(self, error: Exception) -> None:
        if self.failing:
            self._pause = min(RETRY_LAST_S, self._pause * 2)
            return
        self.failing, self._pause = True, RETRY_FIRST_S
        log.warning(
            "MLflow at %s cannot be fed (%s: %s). Training goes on and the journal under %s is complete; trying again up to "
            "every %g s. To catch up after the run: python -m hpcrl.tracking.feed %s --once",
            self._feed.shown_uri,
            type(error).__name__,
            " ".join(str(error).split())[:500],
            self._run.path,
            RETRY_LAST_S,
            self._run.path,
        )


def wait_for_roles(run: RunDirectory, stop: StopFlag) -> None:
    """Return once a role of any attempt has said something, or at the stop.

    Until then there is nothing to feed, and what MLflow takes to start would slow the start of the roles on this node.
    """
    while not any(path.stem != "supervisor" and path.stat().st_size for path in run.path.glob("attempt_*/journal/*.jsonl")):
        if stop.sleep(POLL_S):
            return


def catch_up(follower: Follower, seconds: float) -> bool:
    """Try to bring MLflow up to the end of the journal within a deadline; returns whether it is."""
    deadline = time.monotonic() + seconds
    while not follower.once(last=True):
        if time.monotonic() + 0.5 > deadline:
            return False
        time.sleep(0.5)
    return True


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--tracking-uri", default=None, help="MLflow server or database; the run's own database if left out.")
@click.option("--parent", type=int, default=None, help="End when this process is no longer the parent (default: whoever is).")
@click.option("--once", is_flag=True, help="Bring MLflow up to the end of the journal and end.")
def main(run: Path, tracking_uri: str | None, parent: int | None, once: bool) -> None:
    """Feed MLflow from the journal of RUN."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    quiet_mlflow()
    directory = RunDirectory.open(run)
    feed = MlflowFeed(directory, tracking_uri)
    follower = Follower(feed, directory)
    stop = StopFlag()
    if not once:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        # Ctrl-C reaches every process of a terminal; only the launcher acts on it, and ends this process last.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _stop_without_parent(stop, parent or os.getppid())
        _end_after(stop, CATCH_UP_S + 1.0)
        os.nice(10)
        wait_for_roles(directory, stop)
        with uncollected(), suppress(ImportError):
            # What is missing is said when it is used.
            import mlflow  # noqa: F401
        follower.follow(stop)
    if not catch_up(follower, CATCH_UP_S):
        log.error("MLflow at %s lacks the end of the run; run this again with --once", feed.shown_uri)
        sys.exit(1)


def _stop_without_parent(stop: StopFlag, parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent and not stop.sleep(1.0):
            pass
        stop.set()

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def _end_after(stop: StopFlag, seconds: float) -> None:
    # A server that hangs in the middle of a call must not hold up the end of the run.
    def end() -> None:
        while not stop.sleep(3600.0):
            pass
        time.sleep(seconds)
        log.error("not caught up %g s after being asked to end; run this again with --once", seconds)
        os._exit(1)

    threading.Thread(target=end, daemon=True, name="deadline").start()


if __name__ == "__main__":
    try:
        main()
    except HpcrlError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
