import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hpcrl.tracking import mlflow_empty
from hpcrl.tracking.mlflow_empty import empty_database
from hpcrl.tracking.mlflow_feed import quiet_mlflow

pytestmark = pytest.mark.slow

quiet_mlflow()


@pytest.fixture(scope="module")
def made() -> bytes:
    return mlflow_empty._make()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def makes(made: bytes, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each database that is made anew."""
    makes: list[int] = []
    monkeypatch.setattr(mlflow_empty, "_make", lambda: makes.append(1) or made)
    return makes


def test_mlflow_takes_it_as_its_own(made: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mlflow.db"
    path.write_bytes(made)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("select count(*) from experiments").fetchone() == (0,)
    assert b"file:" not in made, "nothing of the place where it was made"
    client = MlflowClient(tracking_uri=f"sqlite:///{path}")
    (default,) = client.search_experiments()
    assert (default.experiment_id, default.name) == ("0", "Default")
    assert client.create_experiment("mine") == "1"


def test_it_is_made_once(made: bytes, makes: list[int], cache: Path):
    assert empty_database() == empty_database() == made
    assert len(makes) == 1
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_one_is_not_taken(made: bytes, makes: list[int], cache: Path):
    empty_database()
    (kept,) = cache.iterdir()
    kept.write_bytes(made[:-1])
    assert empty_database() == made
    assert empty_database() == made
    assert len(makes) == 2, "and it is replaced"


def test_another_mlflow_makes_its_own(makes: list[int], monkeypatch: pytest.MonkeyPatch):
    import mlflow

    empty_database()
    monkeypatch.setattr(mlflow, "__version__", "9.0")
    empty_database()
    assert len(makes) == 2


def test_where_nothing_can_be_kept_it_is_made_each_time(
    made: bytes, makes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HPCRL_CACHE", str(tmp_path / "file" / "cache"))
    assert empty_database() == empty_database() == made
    assert len(makes) == 2
