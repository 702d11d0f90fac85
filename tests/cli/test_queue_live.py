"""Looking into the queue of a run that lives."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hpcrl.cli.main import cli
from hpcrl.cli.observe import Observer
from hpcrl.cli.queue_figures import prometheus, rates
from hpcrl.cli.queue_serve import make_server
from hpcrl.dataplane.connect import connect
from hpcrl.recipe import Column, Limits, Reads, Recipe, RoleGroup, Schedule, Stream, Writes
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import CheckFailed
from hpcrl.run.records import DoneRecord, write_done
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.testing.queue_processes import Contract, QueueProcesses

RECIPE = Recipe(
    name="test",
    groups={
        "make": RoleGroup(role=Contract(write=(Writes(stream="s", columns=("n",), creates=True),))),
        "score": RoleGroup(
            role=Contract(read=(Reads(stream="s", columns=("n",)),), write=(Writes(stream="s", columns=("reward",)),))
        ),
        "train": RoleGroup(role=Contract(read=(Reads(stream="s", columns=("n", "reward"), final=True),))),
    },
    streams=(
        Stream(name="s", columns=(Column(name="n", dtype="int64"), Column(name="reward", dtype="float32")), block_rows=2),
    ),
    schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=2),
    limits=Limits(call_s=20, wait_s=20),
)
PROCESSES = {"make": 1, "score": 1, "train": 1}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A desk with ten rows, of which six are scored, two held by score.0 and two dropped."""
    run = RunDirectory.create(tmp_path_factory.mktemp("live") / "tiny", name="tiny", recipe_json="{}")
    attempt = run.new_attempt()
    with QueueProcesses(attempt.path / "history", key=run.key) as queue:
        queue.start_desk(RECIPE, PROCESSES)
        Rendezvous(attempt.path / "rendezvous", run.run_id).publish("queue.0", queue.endpoints["queue.0"])
        make, score, train = (
            connect(queue.address(), RECIPE, group=group, rank=0, processes=PROCESSES, key=run.key) for group in PROCESSES
        )
        rows = [make.put("s", {"n": np.arange(2)}) for _ in range(6)]
        for number in range(5):
            batch = score.read("s", ["n"], max_rows=2, wait_s=20)
            assert batch is not None
            if number < 4:
                score.fill(batch, {"reward": np.ones(2, np.float32)})
        batch = train.read("s", ["n", "reward"], max_rows=2, wait_s=20)
        assert batch is not None
        train.drop(batch, "dull")
        yield SimpleNamespace(run=run, rows=rows)
        for plane in (make, score, train):
            plane.close()


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["queue", *map(str, arguments)])


@pytest.mark.slow
def test_what_is_in_it(live: SimpleNamespace):
    done = call(live.run.path)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    for part in (
        "10 in 5 blocks",
        "columns n 10, reward 6",
        "reader train 10 unread, 0 leased",
        "reader score 2 unread, 2 leased, 6 done",
        "leases score.0 2",
        "12 put",
        "dropped 2 (dull)",
        "in 0.0 rows/s, out 0.0 rows/s",
    ):
        assert part in text
    value = json.loads(call("show", live.run.path, "--json").output)
    assert value["live"] is True
    assert value["streams"]["s"]["rows"] == 10
    assert value["streams"]["s"]["holders"] == {"score.0": 2}
    assert value["streams"]["s"]["rates"] == {"rows_in": 0.0, "rows_out": 0.0}
    assert json.loads(call("--json", live.run.path).output)["streams"].keys() == {"s"}


@pytest.mark.slow
def test_why_a_row_waits(live: SimpleNamespace):
    lines = call("why", live.run.path, live.rows[5][1]).output
    assert "put by make.0" in lines
    assert "lack column 'reward', owed by 'score'" in lines
    assert "held by score.0" in call("why", live.run.path, live.rows[4][0]).output
    assert "not in any stream" in call("why", live.run.path, live.rows[0][0]).output


@pytest.mark.slow
def test_prometheus_text(live: SimpleNamespace, tmp_path: Path):
    text = call("metrics", live.run.path).output
    assert 'hpcrl_queue_rows{run="tiny",stream="s"} 10\n' in text
    assert 'hpcrl_queue_column_rows{run="tiny",stream="s",column="reward"} 6\n' in text
    assert 'hpcrl_queue_dropped_rows_total{run="tiny",stream="s",reason="dull"} 2\n' in text
    assert 'hpcrl_queue_held_rows{run="tiny",stream="s",holder="score.0"} 2\n' in text
    call("metrics", live.run.path, "--out", tmp_path / "q.prom")
    assert "hpcrl_queue_rows{" in (tmp_path / "q.prom").read_text()


@pytest.mark.slow
def test_the_endpoint_asks_for_the_key(live: SimpleNamespace):
    with (
        Observer(live.run) as observer,
        make_server("127.0.0.1", 0, live.run.key, lambda: prometheus("tiny", observer.figures())) as server,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        try:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {live.run.key}"}):
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20)
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {live.run.key}"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert b"hpcrl_queue_rows{" in answer.read()
        finally:
            server.shutdown()
            thread.join()


def test_rates_are_of_what_came_and_went():
    def figures(produced: int, cleared: int, dropped: int) -> dict[str, dict[str, object]]:
        return {"s": {"counters": {"produced": produced, "cleared": cleared, "dropped": {"x": dropped}}}}

    of = rates(figures(10, 5, 1), figures(30, 9, 3), 2.0)["s"]
    assert (of.rows_in, of.rows_out) == (10.0, 3.0)


def test_labels_are_escaped():
    stream = {
        "rows": 1, "bytes": 1, "rows_with": {}, "oldest_s": 0, "untrained_rows": 0, "untrained_bytes": 0, "capacity_rows": 1,
        "capacity_bytes": 1, "waiting": ["a.0"], "groups": {}, "holders": {"draw 7 of train": 2, "draw 8 of train": 3},
        "counters": {
            "produced": 1, "produced_bytes": 1, "trained": 0, "cleared": 0, "expired": 0, "dropped": {'a "b"\n\\': 1},
        },
    }  # fmt: skip
    text = prometheus("run", {"s": stream})
    assert 'reason="a \\"b\\"\\n\\\\"} 1' in text
    assert 'holder="draws of train"} 5' in text


def test_a_run_that_nobody_can_ask(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "run", name="tiny", recipe_json="{}")
    assert "has no attempt yet" in str(call(run.path).exception)
    attempt = run.new_attempt()
    assert "has no desk yet" in str(call("why", run.path, 1).exception)
    rendezvous = Rendezvous(attempt.path / "rendezvous", run.run_id)
    rendezvous.publish("queue.0", {"ip": "127.0.0.1", "port": 1})
    with pytest.raises(CheckFailed, match=r"does not answer within 0\.5 s; .*queue\.0\.log"), Observer(run, call_s=0.5) as one:
        one.figures()
    (run.path / "key").rename(run.path / "hidden")
    assert "cannot be read" in str(call("metrics", run.path).exception)
    write_done(attempt, DoneRecord(process="queue.0", status="done"))
    assert "has ended" in str(call(run.path).exception)
