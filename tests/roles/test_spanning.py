"""An engine whose replica spans nodes: its parts start together, and load what each has brought to its node."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.recipe import ColocationRing, Limits, Recipe, Resources, Role, RoleGroup, Schedule
from hpcrl.roles.context import Identity, RoleContext
from hpcrl.roles.feedback import POLICY, SERVED, feedback_streams
from hpcrl.roles.inference import Inference
from hpcrl.roles.spanning import Span
from hpcrl.run.directory import RunDirectory
from hpcrl.run.errors import DeadlineExceeded, RoleLost, Stopped
from hpcrl.run.rendezvous import Rendezvous
from hpcrl.run.stop import StopFlag, wait_for
from hpcrl.tracking.journal import Journal

KEY = "the key of this run"
SOON_S = 10.0


class Node:
    """What a part does to the weights of its node."""

    def __init__(self, error: str = "") -> None:
        self.error, self.done = error, []
        self.reads = SimpleNamespace(bytes=0)

    def bring(self, version: int, hash: str) -> Any:
        self.done.append((version, hash))
        if self.error:
            raise WeightsError(self.error)
        return ExitStack()

    def distrust(self) -> None:
        self.done.append(("distrust", ""))


class Parts:
    """Parts of ``inference``'s replica 1, each in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stop = folder, StopFlag()
        self.pool = ThreadPoolExecutor(8)
        self.journal = Journal(folder / "journal.jsonl")

    def context(self, part: int, parts: int = 3) -> Any:
        return SimpleNamespace(
            identity=Identity("inference", 1, 4 + part, 8, part=part, parts=parts),
            rendezvous=Rendezvous(self.folder / "rendezvous", "run", self.stop),
            recipe=SimpleNamespace(limits=Limits(call_s=2.0)),
            attempt=SimpleNamespace(log=lambda name: self.folder / f"{name}.log"),
            journal=self.journal,
            stop=self.stop,
            phase=lambda *_: None,
        )

    def span(self, part: int, seconds: float = SOON_S) -> Span:
        return Span(self.context(part), seconds=seconds)

    def met(self) -> list[Span]:
        """Three that have started together."""
        spans = [self.span(part) for part in range(3)]
        for future in [self.pool.submit(span.meet) for span in reversed(spans)]:
            future.result(SOON_S)
        return spans

    def follow(self, span: Span, node: Any, watch: Callable[[], None] = lambda: None) -> Future[None]:
        return self.pool.submit(span.follow, node, watch)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.stop.set()
    made.pool.shutdown()
    made.journal.close()


def check_now(span: Span) -> None:
    span._next_look = 0.0
    span.check()


def test_parts_start_when_all_are_there(parts: Parts):
    first, second, third = (parts.span(part) for part in range(3))
    waiting = [parts.pool.submit(span.meet) for span in (first, third)]
    with pytest.raises(DeadlineExceeded, match=r"3 parts of inference\.1"):
        parts.span(2, seconds=0.3).meet()
    assert not any(future.done() for future in waiting)
    second.meet()
    with pytest.raises(DeadlineExceeded):
        # One that was there and is no more is not taken for the one that came instead.
        Span(parts.context(2), seconds=0.3).meet()
    waiting[0].result(SOON_S)


def test_all_start_again_when_one_has(parts: Parts):
    first, second, third = parts.met()
    for span in (first, second, third):
        check_now(span)
    again = parts.span(2)
    waiting = parts.pool.submit(again.meet)
    wait_for("the loss to be seen", lambda: lost(first), seconds=SOON_S)
    with pytest.raises(
        RoleLost, match=r"inference\.4 on .* spans 3 nodes.* part 2 of it was started again; read .*inference\.4\.log"
    ):
        check_now(first)
    check_now(second)
    newer = parts.span(0)
    begun = parts.pool.submit(newer.meet)
    wait_for("the others to see it", lambda: lost(second), seconds=SOON_S)
    assert not begun.done()
    parts.span(1).meet()
    begun.result(SOON_S)
    waiting.result(SOON_S)
    check_now(newer)
    check_now(again)


def lost(span: Span) -> bool | None:
    try:
        check_now(span)
    except RoleLost:
        return True
    return None


def test_every_node_has_a_version_before_it_is_loaded(parts: Parts):
    first, *others = parts.met()
    nodes = [Node(), Node()]
    for span, node in zip(others, nodes, strict=True):
        parts.follow(span, node)
    first.have_brought(3, "abc")
    first.have_brought(None)
    first.have_brought(3, "abc")
    assert [node.done for node in nodes] == [[(3, "abc"), ("distrust", ""), (3, "abc")]] * 2


def test_a_node_that_cannot_bring_it_is_named(parts: Parts):
    first, *others = parts.met()
    parts.follow(others[0], Node())
    parts.follow(others[1], Node("a patch is damaged"))
    with pytest.raises(WeightsError, match=r"part 2 of inference\.1: .*a patch is damaged"):
        first.have_brought(3, "abc")


def test_a_part_that_does_not_answer_is_not_waited_for_longer_than_a_call(parts: Parts):
    first, *others = parts.met()
    parts.follow(others[0], Node())
    with pytest.raises(WeightsError, match="waited 2 s for the other parts"):
        first.have_brought(3, "abc")


def test_what_an_earlier_first_part_asked_for_is_not_done(parts: Parts):
    first, *_ = parts.met()
    with pytest.raises(WeightsError):
        first.have_brought(1, "old")
    newer, *others = parts.met()
    nodes = [Node(), Node()]
    for span, node in zip(others, nodes, strict=True):
        parts.follow(span, node)
    newer.have_brought(2, "new")
    assert [node.done for node in nodes] == [[(2, "new")]] * 2


def test_a_part_ends_with_its_processes_and_when_stopped(parts: Parts):
    _, *others = parts.met()

    def ended() -> None:
        raise RoleLost("SGLang ended")

    with pytest.raises(RoleLost, match="SGLang ended"):
        parts.follow(others[0], Node(), ended).result(SOON_S)
    quiet = parts.follow(others[1], Node())
    parts.stop.set()
    quiet.result(SOON_S)
    with pytest.raises(Stopped):
        parts.span(1).meet()


@pytest.mark.parametrize(
    ("sglang", "ring", "said"), [(False, False, "have SGLang serve"), (True, True, "take it out of its ring")]
)
def test_what_cannot_span_is_refused(tmp_path: Path, sglang: bool, ring: bool, said: str):
    from hpcrl.engines.sglang.settings import Sglang

    role = Inference(model=str(tmp_path), sglang=Sglang(memory_saver=True) if sglang else None)
    other = RoleGroup(role=Role(), resources=Resources(gpus=16))
    recipe = Recipe(
        name="t",
        groups={"inference": RoleGroup(role=role, resources=Resources(gpus=16, across_nodes=True)), "trainer": other},
        streams=(),
        rings=(ColocationRing(name="r", members=("inference", "trainer"), fallback="inference"),) if ring else (),
        schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
    )
    assert any(said in problem for problem in role._span_problems(recipe))


class Announces(Role):
    def announces(self) -> tuple[str, ...]:
        return (POLICY, SERVED)

    def listens(self) -> tuple[str, ...]:
        return (POLICY, SERVED)


class Served:
    """A trainer's announcements on one side; on the other an inference role whose two parts are threads of this process."""

    def __init__(self, folder: Path, model: Path, python: str) -> None:
        from safetensors.torch import load_file

        from hpcrl.checkpoint.publish.layout import TensorSpec
        from hpcrl.checkpoint.publish.publisher import Publisher
        from hpcrl.dataplane.connect import connect
        from hpcrl.dataplane.memory import MemoryHub
        from hpcrl.engines.sglang.settings import Sglang

        self._connect, self._hub, self._counts = connect, MemoryHub(), {"trainer": 1, "inference": 2}
        self.run = RunDirectory.create(folder / "run", name="t", recipe_json="{}")
        self.attempt = self.run.new_attempt()
        sglang = Sglang(python=python, max_tokens=2048, max_running=8, start_s=400)
        self.role = Inference(model=str(model), dtype="float32", max_context=128, sglang=sglang)
        self.recipe = Recipe(
            name="t",
            groups={"trainer": RoleGroup(role=Announces()), "inference": RoleGroup(role=Announces())},
            streams=(),
            feedback=feedback_streams(),
            schedule=Schedule(steps=1, prompts_per_step=1, samples_per_prompt=1),
            limits=Limits(wait_s=400, call_s=60),
        )
        self.queue = connect(self._hub, self.recipe, group="trainer", rank=0, processes=self._counts)
        self.tensors = load_file(model / "model.safetensors")
        specs = [TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in self.tensors.items()]
        self.publisher = Publisher(self.run.weights, model, specs, attempt=1)
        self.stop, self._meeting = StopFlag(), _ports(1)[0]
        self.pool = ThreadPoolExecutor(8)
        self.begun = [self.begin(part) for part in range(2)]

    def begin(self, part: int) -> Future[None]:
        name = f"inference.{part}"
        context = RoleContext(
            recipe=self.recipe,
            identity=Identity(
                "inference",
                0,
                part,
                2,
                ports=_ports(4),
                world_address="127.0.0.1",
                world_port=self._meeting,
                part=part,
                parts=2,
            ),
            attempt=self.attempt,
            queue=self._connect(self._hub, self.recipe, group="inference", rank=part, processes=self._counts),
            rendezvous=Rendezvous(self.attempt.path / "rendezvous", self.run.run_id, self.stop),
            journal=Journal(self.attempt.journal / f"{name}.{threading.get_ident()}.jsonl"),
            key=KEY,
            stop=self.stop,
        )
        return self.pool.submit(self.role.run, context)

    def announce(self, version: int) -> None:
        self.tensors["model.norm.weight"] *= -1
        done = self.publisher.publish(version, self.tensors.items())
        self.queue.announce(POLICY, {"version": version, "path": "", "hash": done.hash})

    def wait_served(self, version: int) -> str:
        def look() -> str | None:
            for future in self.begun:
                if future.done():
                    future.result()
            served = [item.value for item in self.queue.newest(SERVED).values()]
            return next((value["url"] for value in served if value["version"] == version), None)

        return wait_for(f"version {version}", look, seconds=300)

    def close(self) -> None:
        self.stop.set()
        self.pool.shutdown()


def _ports(count: int) -> tuple[int, ...]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(probe.getsockname()[1] for probe in probes)


@pytest.mark.slow
def test_a_real_engine_over_two_nodes_serves_each_version_and_ends_as_a_whole(
    sglang_python: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import psutil
    import torch
    from transformers import AutoModelForCausalLM

    from hpcrl.engines.client import EngineClient
    from hpcrl.engines.completion import Sampling

    # SGLang wants to know a core for each rank of a host.
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    prompt = [1, 5, 9, 13]
    served = Served(tmp_path, tiny_model, sglang_python)

    def answers(url: str) -> None:
        """What the model of this version would say."""
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        model.load_state_dict(served.tensors, strict=False)
        with EngineClient(url, key=KEY) as client, torch.no_grad():
            ((completion,),) = client.generate([prompt], Sampling(max_new_tokens=6, temperature=0.0), seconds=60)
            tokens = completion.tokens.tolist()
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1)[range(6), tokens]
        assert logits.argmax(-1).tolist() == tokens
        assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=2e-3)

    try:
        served.announce(0)
        url = served.wait_served(0)
        answers(url)
        served.announce(1)
        assert served.wait_served(1) == url
        answers(url)
        servers = [
            child
            for child in psutil.Process().children()
            if child.pid not in before and "launch.py" in " ".join(child.cmdline())
        ]
        assert len(servers) == 2
        second = next(one for one in servers if "--node-rank 1" in " ".join(one.cmdline()))
        second.kill()
        with pytest.raises(RoleLost, match="was killed by signal 9"):
            served.begun[1].result(60)
        # Its other part would wait for it; where it is started again, so is this one.
        again = served.begin(1)
        with pytest.raises(RoleLost, match="part 1 of it was started again"):
            served.begun[0].result(60)
        assert not again.done()
    finally:
        served.close()
    left = [
        child for child in psutil.Process().children(recursive=True) if child.pid not in before and "sglang" in child.name()
    ]
    assert not left
