"""Opening MLflow: the database made once under a lock, the experiment, and this run's run in it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.run.atomic import write_bytes
from hpcrl.run.directory import RunDirectory
from hpcrl.tracking.mlflow_empty import empty_database

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK_WAIT_S = 60.0


def default_uri(run: RunDirectory) -> str:
    """The run's own database, ``RUN/mlflow.db``."""
    return f"sqlite:///{run.path / 'mlflow.db'}"


def open_store(run: RunDirectory, uri: str, experiment: str, held: str | None) -> tuple[MlflowClient, str]:
    """A client of the tracking store, and the id of this run in it, made if it is not there.

    Processes that create an SQLite database at the same time crash each other, so all of this happens under a file lock
    beside the database (in the run directory for a server).

    Args:
        experiment: name of the experiment that a new run goes into.
        held: id of the run in MLflow from an earlier attempt, if known.

    Raises:
        MlflowException, SQLAlchemyError, OSError: the store cannot be opened; an :class:`OSError` includes the lock not
            being free within a minute.
    """
    from filelock import FileLock
    from mlflow import MlflowClient

    database = database_file(uri)
    folder = database.parent if database else run.path
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{database.name if database else 'mlflow'}.lock", timeout=LOCK_WAIT_S):
        if database is not None and not database.exists():
            write_bytes(database, empty_database())
        client = MlflowClient(tracking_uri=uri)
        experiment_id = _experiment(client, experiment, (folder / "mlflow-artifacts").as_uri() if database else None)
        return client, _run(client, run, experiment_id, experiment, held)


def database_file(uri: str) -> Path | None:
    """The file of an SQLite tracking URI; None for a server or another database."""
    scheme, _, rest = uri.partition(":///")
    if scheme.partition("+")[0] != "sqlite" or not rest:
        return None
    return Path(rest.partition("?")[0]).absolute()


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    held = client.get_experiment_by_name(name)
    if held is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:
            # On a server another run's feed may have made it in between.
            held = client.get_experiment_by_name(name)
            if held is None:
                raise
    return str(held.experiment_id)


def _run(client: MlflowClient, run: RunDirectory, experiment_id: str, name: str, held: str | None) -> str:
    found = client.search_runs([experiment_id], f"tags.run_id = '{run.run_id}'", max_results=10)
    ids = [str(item.info.run_id) for item in found]
    if ids:
        return held if held in ids else ids[0]
    tags = {"run_id": run.run_id, "host": socket.gethostname(), "mlflow.note.content": f"Run directory: `{run.path}`"}
    return str(client.create_run(experiment_id, tags=tags, run_name=f"{name} {run.run_id}").info.run_id)
