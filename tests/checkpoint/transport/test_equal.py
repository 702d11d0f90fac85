"""A version has the same hash in the engine whichever way it came, from another process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hpcrl.checkpoint.publish.node import NodeWeights
from hpcrl.checkpoint.transport.distributed import Wire, group_name
from hpcrl.checkpoint.transport.fetch import Fetcher
from hpcrl.checkpoint.transport.memory import open_version
from hpcrl.checkpoint.transport.mirror import Mirror
from hpcrl.engines.client import EngineClient, EngineError
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.engines.group_update import Channel, GroupUpdate

torch.set_num_threads(1)
WAIT_S = 60.0
KEY = "a key of the run"


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[EngineClient]:
    server = EmbeddedServer(EngineSettings(model_path=tiny_model, dtype="bfloat16", threads=1), api_key=KEY)
    with EngineClient(server.start(), key=KEY) as client:
        yield client
    server.stop()


def channel(wire: Wire, generation: int) -> Channel:
    return Channel(group_name(0, generation), wire.address, wire.port, wire.names, wire.dtypes, wire.shapes)


def load_folder(engine: EngineClient, path: Path, version: int, expect: str) -> str | None:
    engine.pause("in_place")
    update = engine.update_weights_from_disk(path, version, expect_hash=expect)
    engine.continue_()
    return update.weight_hash


@pytest.mark.slow
def test_a_version_is_the_same_by_every_way(
    engine: EngineClient, tmp_path: Path, start_trainer: Callable, free_port: Callable[[], int]
) -> None:
    trainer = start_trainer(group_port=free_port())
    first = trainer.ask("publish", version=1)
    second = trainer.ask("publish", version=2)
    assert (first["kind"], second["kind"]) == ("base", "patch")
    assert first["hash"] != second["hash"]

    with NodeWeights(tmp_path / "node", tmp_path / "weights", wait_s=WAIT_S).bring(2, second["hash"]) as brought:
        assert load_folder(engine, brought.path, 2, second["hash"]) == second["hash"]

    third = trainer.ask("publish", version=3)
    assert trainer.ask("memory") == {"sent": 3}
    with open_version(tmp_path / "memory", 3, third["hash"], ranks=1, seconds=WAIT_S) as folder:
        assert load_folder(engine, folder, 3, third["hash"]) == third["hash"]

    fourth = trainer.ask("publish", version=4)
    wire = Wire.from_json(trainer.ask("wire")["wire"])
    update = GroupUpdate(engine, [channel(wire, 1)], rank=1, size=2, backend="gloo", seconds=WAIT_S)
    trainer.order("distributed", generation=1, engines=["inference.0"])
    update.join()
    engine.pause("in_place")
    got = update.update(4, expect_hash=fourth["hash"], seconds=WAIT_S)
    engine.continue_()
    assert trainer.answer() == {"sent": 4}
    assert got.weight_hash == fourth["hash"]
    info = engine.model_info()
    assert (info.version, info.weight_hash) == (4, fourth["hash"])

    fifth = trainer.ask("publish", version=5)
    port = free_port()
    trainer.ask("serve", port=port, key=KEY)
    fetcher = Fetcher("127.0.0.1", port, key=KEY, seconds=WAIT_S)
    Mirror(tmp_path / "mirror", fetcher, wait_s=WAIT_S).bring(5, fifth["hash"])
    fetcher.close()
    with NodeWeights(tmp_path / "far", tmp_path / "mirror", wait_s=WAIT_S).bring(5, fifth["hash"]) as brought:
        assert load_folder(engine, brought.path, 5, fifth["hash"]) == fifth["hash"]


@pytest.mark.slow
def test_an_engine_whose_sender_dies_half_way_serves_again_only_after_a_whole_load(
    engine: EngineClient, tmp_path: Path, start_trainer: Callable, free_port: Callable[[], int]
) -> None:
    trainer = start_trainer({"HPCRL_FAILPOINT": "transport.tensor@5=kill"}, group_port=free_port())
    published = trainer.ask("publish", version=1)
    wire = Wire.from_json(trainer.ask("wire")["wire"])
    update = GroupUpdate(engine, [channel(wire, 1)], rank=1, size=2, backend="gloo", seconds=WAIT_S)
    trainer.order("distributed", generation=1, engines=["inference.0"])
    update.join()
    engine.pause("in_place")
    with pytest.raises(EngineError, match=r"a member is gone.*4 of \d+ tensors had come; load a whole version"):
        update.update(1, expect_hash=published["hash"], seconds=WAIT_S)
    assert trainer.ended() != 0
    engine.continue_()
    assert not engine.health()
    update.leave()
    with NodeWeights(tmp_path / "node", tmp_path / "weights", wait_s=WAIT_S).bring(1, published["hash"]) as brought:
        assert load_folder(engine, brought.path, 1, published["hash"]) == published["hash"]
    assert engine.health()


@pytest.mark.slow
def test_an_engine_that_dies_half_way_is_named_to_the_sender(
    tiny_model: Path, start_trainer: Callable, free_port: Callable[[], int]
) -> None:
    trainer = start_trainer({"HPCRL_FAILPOINT": "transport.tensor@5=sleep:2"}, group_port=free_port())
    trainer.ask("publish", version=1)
    wire = Wire.from_json(trainer.ask("wire")["wire"])
    server = EmbeddedServer(EngineSettings(model_path=tiny_model, dtype="bfloat16", threads=1))
    with EngineClient(server.start()) as client:
        update = GroupUpdate(client, [channel(wire, 1)], rank=1, size=2, backend="gloo", seconds=WAIT_S)
        trainer.order("distributed", generation=1, engines=["inference.0"])
        update.join()
        ended = threading.Event()

        def receive() -> None:
            with pytest.raises(EngineError):
                update.update(1, expect_hash=None, seconds=WAIT_S)
            ended.set()

        threading.Thread(target=receive).start()
        while not server.engine.groups.get(group_name(0, 1)):
            pass
        server.stop()
        assert ended.wait(WAIT_S)
    assert "version 1 to inference.0: " in trainer.answer()["error"]


@pytest.mark.slow
def test_a_sender_that_nobody_joins_says_whom_it_waited_for(start_trainer: Callable, free_port: Callable[[], int]) -> None:
    trainer = start_trainer(group_port=free_port(), seconds=1)
    trainer.ask("publish", version=1)
    error = trainer.ask("distributed", generation=1, engines=["inference.0"])["error"]
    assert "version 1 to inference.0" in error
    assert "did not meet at 127.0.0.1" in error
