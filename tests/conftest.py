"""Fixtures shared by all tests: tiny models with a real tokenizer, made in a second and used read-only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

# No example has a deadline: this host is shared.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
# Folders whose tests share what takes long to start.
_SHARED = ("tests/slurm/", "tests/engines/contract/")
# Where several workers share the tests: the cluster's mostly wait, so beside them runs what takes several processes; what takes
# one core each comes last, when all workers do such and files are short.
_FIRST = ("tests/slurm/", "tests/e2e/", "tests/engines/contract/")
_CRASHED = pytest.StashKey[bool]()
_not_collected: list[str] = []
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
VOCAB_SIZE = 128


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several workers share the tests, those that share fixtures stay together."""
    from xdist.scheduler import LoadFileScheduling

    class Lanes(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in _SHARED if nodeid.startswith(folder)), None) or str(super()._split_scope(nodeid))

    return Lanes(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(sched: Any) -> None:
    """A worker crashed: what was left to it is not run, and the end must not look like that of tests which failed."""
    sched.config.stash[_CRASHED] = True


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Tests could not be collected, or not alike by all workers: then none was run."""
    if report.failed:
        _not_collected.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(_CRASHED, False) or _not_collected:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, as :data:`_FIRST` says."""

    def turn(item: pytest.Item) -> int:
        return next((number for number, folder in enumerate(_FIRST) if item.nodeid.startswith(folder)), len(_FIRST))

    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=turn)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|im_start|>", "<|im_end|>", "<unk>"]
    characters = [chr(c) for c in range(32, 127)]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(special + characters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="<unk>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _write_model(folder: Path, family: str, **changes: Any) -> Path:
    import torch
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    families: dict[str, Any] = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }

    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        **changes,
    }
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    config, kind = families[family]
    model = kind(config(**shape))
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            # They begin with zeros, which would hide that they are missing.
            torch.nn.init.normal_(parameter, std=0.5)
    torch.random.set_rng_state(generator_state)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=1, bos_token_id=0)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers, 64 wide, with a character tokenizer; float32."""
    return _write_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of two layers, 64 wide, its head untied, with a character tokenizer; float32."""
    return _write_model(tmp_path_factory.mktemp("qwen2"), "qwen2", tie_word_embeddings=False)


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of two layers, 64 wide, with a character tokenizer; float32."""
    return _write_model(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(autouse=True)
def _forget_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Recipes and helpers that a test wrote and imported are not there for the next one, as in a process of its own."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    # Of fixtures that several tests share as well. Plain text: there are thousands of modules to look at after each test.
    tests, made = f"{Path(__file__).parent}{os.sep}", f"{tmp_path_factory.getbasetemp()}{os.sep}"
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        # Test modules themselves are named by their place.
        if file.startswith(made) or (file.startswith(tests) and not name.startswith("tests")):
            del sys.modules[name]


@pytest.fixture
def own_threads() -> Iterator[None]:
    """Puts back torch's number of threads, which a run in this process changes."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def flip() -> Callable[[Path], None]:
    """Changes a bit in the middle of a file."""

    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)

    return change


def _orphans() -> set[str]:
    """Files in shared memory that no living process has mapped, but for the folders of runs: those have an owner's lock."""
    mapped: set[str] = set()
    for process in psutil.process_iter():
        try:
            mapped |= {Path(found.path.removesuffix(" (deleted)")).name for found in process.memory_maps()}
        except (psutil.Error, OSError):
            continue
    return {name for name in os.listdir("/dev/shm") if name not in mapped and not name.startswith(f"hpcrl-{os.getuid()}-")}


@pytest.fixture
def shared_memory_left() -> Callable[[str], set[str]]:
    """What a run of that id left in shared memory, and, unless other tests run beside this one, what nobody will remove."""
    before, alone = _orphans(), "PYTEST_XDIST_WORKER" not in os.environ

    def left(run_id: str) -> set[str]:
        return {name for name in os.listdir("/dev/shm") if run_id in name} | (_orphans() - before if alone else set())

    return left


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """An interpreter with SGLang for the CPU, as tools/sglang_cpu.sh installs it; without one the test is skipped."""
    named = os.environ.get("HPCRL_SGLANG_PYTHON")
    python = named or str(Path(__file__).parents[1] / ".venv-sglang" / "bin" / "python")
    if not os.path.exists(python):
        assert named is None, f"HPCRL_SGLANG_PYTHON={named} is not there"
        pytest.skip("no SGLang for the CPU; bash tools/sglang_cpu.sh installs it")
    return python
