"""Feeds MLflow from the journal. The journal is the truth: every point carries the journal's time, so feeding it again
adds nothing (MLflow keeps one row for equal metric, step, time and value), and a feed that was down catches up.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from hpcrl.run.atomic import write_json
from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.figures import Figures
from hpcrl.tracking.journal import RunJournalReader
from hpcrl.tracking.metrics import Point, parameters, points_of, points_of_outcomes
from hpcrl.tracking.mlflow_store import default_uri, open_store
from hpcrl.tracking.state import ending, planned_steps

if TYPE_CHECKING:
    from mlflow import MlflowClient

STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "running": "RUNNING"}
ARTIFACTS = ("report.html", "curves.png")


@dataclass
class Cursor:
    """How far MLflow has the journal; kept in ``RUN/mlflow.json`` for each tracking URI.

    Attributes:
        mlflow_run: id of the run in MLflow.
        lines: lines of each journal that are in MLflow, by ``attempt/writer``.
        outcomes_t: time of the newest step whose outcomes are in MLflow.
    """

    mlflow_run: str
    lines: dict[str, int]
    outcomes_t: float = 0.0


class MlflowFeed:
    """One run's way into MLflow. Every method raises what MLflow, its database or the network raises; all can be
    called again after that and go on where they were.
    """

    def __init__(self, run: RunDirectory, tracking_uri: str | None = None) -> None:
        self._run = run
        self.uri = tracking_uri or default_uri(run)
        self._recipe = json.loads((run.path / "recipe.json").read_text())
        self._reader = RunJournalReader(run)
        self._figures = Figures()
        self._pending: deque[tuple[str, int, list[Point]]] = deque()
        self._read: dict[str, int] = {}
        self._client: MlflowClient | None = None
        self._cursor = Cursor("", {})
        self._attempt = 0

    @property
    def mlflow_run(self) -> str:
        """Id of the run in MLflow; empty before the first :meth:`sync`."""
        return self._cursor.mlflow_run

    @property
    def shown_uri(self) -> str:
        """The tracking URI without a password."""
        return without_password(self.uri)

    def sync(self, *, last: bool = False) -> int:
        """Log what is new in the journal, and return how many points that was.

        Outcomes of a step go out once a later step shows that no more will come, or with ``last``.
        """
        client = self._connect()
        self._collect()
        count = self._send(client)
        steps = self._figures.steps()
        ready = [step for step in (steps if last else steps[:-1]) if step.t > self._cursor.outcomes_t]
        points = [point for step in ready for point in points_of_outcomes(step)]
        for begin in range(0, len(points), self._limit):
            self._log(client, points[begin : begin + self._limit])
        if ready:
            self._cursor.outcomes_t = max(step.t for step in ready)
        if count or ready:
            self._save()
        return count + len(points)

    def finish(self) -> None:
        """Add the report and its curves, and close the MLflow run with the state in which the attempt ended."""
        client = self._connect()
        for name in ARTIFACTS:
            if (self._run.path / name).exists():
                client.log_artifact(self.mlflow_run, str(self._run.path / name))
        state = ending(self._run.latest(), self._figures, planned_steps(self._recipe))
        end = None if self._figures.last_t is None else round(self._figures.last_t * 1000)
        if state == "running":
            return
        client.set_terminated(self.mlflow_run, STATUS[state], end)

    @property
    def _limit(self) -> int:
        from mlflow.utils.validation import MAX_METRICS_PER_BATCH

        return int(MAX_METRICS_PER_BATCH)

    def _connect(self) -> MlflowClient:
        attempt = self._run.latest().number
        if self._client is None:
            held = self._load()
            client, run_id = open_store(
                self._run, self.uri, self._recipe.get("name", "hpcrl"), held.mlflow_run if held else None
            )
            self._cursor = held if held is not None and held.mlflow_run == run_id else Cursor(run_id, {})
            self._save()
            self._log_parameters(client)
            self._client = client
        if attempt != self._attempt:
            self._client.set_tag(self.mlflow_run, "attempt", str(attempt))
            self._client.update_run(self.mlflow_run, status="RUNNING")
            self._attempt = attempt
        return self._client

    def _collect(self) -> None:
        for attempt, writer, record in self._reader.read():
            self._figures.add(attempt, writer, record)
            source = f"{attempt}/{writer}"
            self._read[source] = self._read.get(source, 0) + 1
            if self._read[source] > self._cursor.lines.get(source, 0):
                self._pending.append((source, self._read[source], points_of(writer, record)))

    def _send(self, client: MlflowClient) -> int:
        count = 0
        while self._pending:
            # A batch is one transaction of the store, so the lines of a batch are in MLflow all or none.
            points: list[Point] = []
            taken = 0
            for _, _, more in self._pending:
                if points and len(points) + len(more) > self._limit:
                    break
                points += more
                taken += 1
            for begin in range(0, len(points), self._limit):
                self._log(client, points[begin : begin + self._limit])
            for _ in range(taken):
                source, line, _ = self._pending.popleft()
                self._cursor.lines[source] = line
            count += len(points)
        return count

    def _log(self, client: MlflowClient, points: list[Point]) -> None:
        from mlflow.entities import Metric

        if points:
            metrics = [Metric(point.name, point.value, point.millis, point.step) for point in points]
            client.log_batch(self.mlflow_run, metrics=metrics)

    def _log_parameters(self, client: MlflowClient) -> None:
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        wanted = parameters(self._recipe, longest_name=MAX_ENTITY_KEY_LENGTH, longest_value=MAX_PARAM_VAL_LENGTH)
        data = client.get_run(self.mlflow_run).data
        held = data.params
        # A parameter cannot be changed in MLflow: what a run goes on with otherwise than it began stands in tags.
        for name, text in wanted.items():
            if data.tags.get(f"changed.{name}", held.get(name, text)) != text:
                client.set_tag(self.mlflow_run, f"changed.{name}", text)
        new = [Param(name, text) for name, text in wanted.items() if name not in held]
        for begin in range(0, len(new), MAX_PARAMS_TAGS_PER_BATCH):
            client.log_batch(self.mlflow_run, params=new[begin : begin + MAX_PARAMS_TAGS_PER_BATCH])

    def _load(self) -> Cursor | None:
        held = self._cursors().get(self.shown_uri)
        return None if held is None else Cursor(**held)

    def _save(self) -> None:
        held = {**self._cursors(), self.shown_uri: self._cursor.__dict__}
        write_json(self._run.path / "mlflow.json", held)

    def _cursors(self) -> dict[str, Any]:
        try:
            held = json.loads((self._run.path / "mlflow.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return held if isinstance(held, dict) else {}


def without_password(uri: str) -> str:
    """A URI as it may stand in a log."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))


def quiet_mlflow() -> None:
    """Let MLflow neither phone home nor chatter nor hang; call before MLflow is imported in this process."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    }.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # It repeats for every retry what the feed says once.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
