"""An empty MLflow database, kept for every later run: MLflow makes one by some fifty changes, which takes seconds of work."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hpcrl.data.models import cache_folder
from hpcrl.run.atomic import write_bytes
from hpcrl.run.digest import digest_bytes

log = logging.getLogger(__name__)


def empty_database() -> bytes:
    """The tables of the installed MLflow, without a row that says where or when they were made.

    Raises:
        MlflowException, SQLAlchemyError, OSError: there is none yet, and it cannot be made.
    """
    import mlflow

    prefix = f"mlflow-{mlflow.__version__}-"
    for path in sorted(cache_folder().glob(f"{prefix}*.db")):
        with suppress(OSError):
            data = path.read_bytes()
            if path.name == _name(prefix, data):
                return data
    data = _make()
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        # Named by its content, so that a damaged one is none.
        write_bytes(cache_folder() / _name(prefix, data), data)
    except OSError as error:
        log.info("the empty database of MLflow cannot be kept for later runs: %s", error)
    return data


def _name(prefix: str, data: bytes) -> str:
    return f"{prefix}{digest_bytes(data).rpartition(':')[2]}.db"


def _make() -> bytes:
    """On the local disk: MLflow makes one in dozens of transactions, each of them durable."""
    from mlflow import MlflowClient
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def hurry(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", hurry)
    try:
        with tempfile.TemporaryDirectory(prefix="hpcrl-mlflow-") as folder:
            new = Path(folder) / "new.db"
            MlflowClient(tracking_uri=f"sqlite:///{new}").search_experiments(max_results=1)
            with closing(sqlite3.connect(new, isolation_level=None)) as database:
                # MLflow makes its default experiment anew where there is none.
                database.execute("delete from experiments")
                database.execute("vacuum")
            return new.read_bytes()
    finally:
        event.remove(Engine, "connect", hurry)
