from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.engines.sglang.command import KEY_VARIABLE, Place, arguments, environment, visible
from hpcrl.engines.sglang.settings import Sglang

PLACE = Place(
    model=Path("/m"), address="10.0.0.1", port=30000, inner_port=30001, dtype="bfloat16", context=1024, seed=3, threads=4
)
KERNELS = Path("/var/tmp/k")


def flags(sglang: Sglang, place: Place) -> dict[str, str | None]:
    """By name; those without a value have None."""
    listed = arguments(sglang, place)
    pairs = zip(listed, [*listed[1:], "--"], strict=True)
    return {name: None if value.startswith("--") else value for name, value in pairs if name.startswith("--")}


def test_a_server_on_the_cpu_computes_with_torch_alone():
    told = flags(Sglang(max_tokens=4096), PLACE)
    assert told["--device"] == "cpu"
    assert told["--attention-backend"] == "torch_native"
    assert told["--sampling-backend"] == "pytorch"
    assert told["--max-total-tokens"] == "4096"
    assert told["--tp-size"] == "1"
    assert environment({}, Sglang(), PLACE, key="k", kernels=KERNELS, temporary=KERNELS)["OMP_NUM_THREADS"] == "4"


def test_a_server_on_gpus_takes_all_of_its_replica_and_leaves_the_rest_to_sglang():
    told = flags(
        Sglang(memory_saver=True, memory_fraction=0.6, arguments=("--attention-backend", "fa3")), replace(PLACE, gpus=(0, 1))
    )
    assert told["--tp-size"] == "2"
    assert told["--attention-backend"] == "fa3"
    assert told["--mem-fraction-static"] == "0.6"
    assert "--enable-memory-saver" in told
    assert not {"--device", "--sampling-backend", "--disable-overlap-schedule"} & told.keys()


def test_the_context_can_be_filled_although_sglang_keeps_some_tokens_to_itself():
    assert int(flags(Sglang(), PLACE)["--context-length"] or 0) >= 1024 + 6
    assert (
        environment({}, Sglang(), PLACE, key="k", kernels=KERNELS, temporary=KERNELS)[
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
        ]
        == "true"
    )


def test_a_server_that_spans_nodes_is_told_which_it_is():
    second = replace(PLACE, gpus=(0, 1, 2, 3), nodes=2, node=1, first_address="10.0.0.1:40000")
    told = flags(Sglang(), second)
    assert (told["--tp-size"], told["--nnodes"], told["--node-rank"]) == ("8", "2", "1")
    assert told["--dist-init-addr"] == "10.0.0.1:40000"


def test_the_key_is_in_the_environment_and_on_no_command_line():
    assert environment({}, Sglang(), PLACE, key="k", kernels=KERNELS, temporary=KERNELS)[KEY_VARIABLE] == "k"
    assert "--api-key" not in arguments(Sglang(), PLACE)


def test_another_interpreter_does_not_inherit_this_ones_packages():
    base = {"PYTHONPATH": "/mine", "VIRTUAL_ENV": "/v", "HOME": "/h"}
    other = environment(base, Sglang(python="/other"), PLACE, key="k", kernels=KERNELS, temporary=KERNELS)
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & other.keys()
    assert other["HOME"] == "/h"
    assert environment(base, Sglang(), PLACE, key="k", kernels=KERNELS, temporary=KERNELS)["PYTHONPATH"] == "/mine"
    more = Sglang(python="/other", python_path=("/a", "/b"))
    assert environment(base, more, PLACE, key="k", kernels=KERNELS, temporary=KERNELS)["PYTHONPATH"] == "/a:/b"


def test_compiled_kernels_stay_on_the_node_unless_the_environment_says_where():
    told = environment({"TRITON_CACHE_DIR": "/t"}, Sglang(), PLACE, key="k", kernels=KERNELS, temporary=KERNELS)
    assert told["TRITON_CACHE_DIR"] == "/t"
    for name in ("SGLANG_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"):
        assert told[name].startswith(str(KERNELS))


@pytest.mark.parametrize(
    ("outer", "gpus", "seen"),
    [(None, (0, 1), "0,1"), ("4,5,6,7", (1, 2), "5,6"), ("GPU-a,GPU-b", (1,), "GPU-b"), ("", (0,), "0")],
)
def test_gpus_are_counted_in_what_this_process_sees(outer, gpus, seen):
    assert visible(outer, gpus) == seen


def test_an_ipv6_address_stands_in_brackets():
    assert replace(PLACE, address="::1").url == "http://[::1]:30000"


@pytest.mark.parametrize(
    ("sglang", "says"),
    [
        (Sglang(memory_fraction=1.5), "memory_fraction must be between 0 and 1, not 1.5"),
        (Sglang(max_tokens=0), "max_tokens must be at least 1, not 0"),
        (Sglang(start_s=0), "start_s must be above 0"),
        (Sglang(python="venv/bin/python"), "sglang.python must be an absolute path, not 'venv/bin/python'"),
        (Sglang(arguments=("--port=7",)), "has --port, which hpcrl sets itself"),
    ],
)
def test_settings_that_cannot_be_are_told(sglang, says):
    (problem,) = sglang.problems()
    assert says in problem


def test_an_interpreter_may_be_named_by_its_bare_name():
    assert Sglang(python="python3.12", arguments=("--attention-backend", "fa3")).problems() == []
