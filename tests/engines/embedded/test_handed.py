"""Handles to another process's memory: those of torch are taken, everything else is refused without being carried out."""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.engines.embedded.errors import RequestError
from hpcrl.engines.embedded.handed import handed_tensors
from hpcrl.engines.tensor_update import _in_shared_memory, _payload


def packed(what: Any) -> str:
    return base64.b64encode(pickle.dumps(what)).decode()


@pytest.fixture(autouse=True, scope="module")
def _nothing_left() -> Iterator[None]:
    """Handles that nobody has taken keep their memory until this process ends."""
    yield
    for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*"):
        path.unlink()


class Harm:
    """Calls something when it is unpickled."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._made_by = call, arguments

    def __reduce__(self) -> Any:
        return self._made_by


def handles() -> str:
    tensors = {"weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "bias": torch.ones(4)}
    return _payload(_in_shared_memory(tensors))


def test_handles_of_torch_are_tensors_again():
    found = dict(handed_tensors(handles()))
    assert torch.equal(found["weight"], torch.arange(6, dtype=torch.bfloat16).reshape(2, 3))
    assert torch.equal(found["bias"], torch.ones(4))


@pytest.mark.parametrize(
    "call",
    [(os.system, "touch {path}"), (eval, "open({path!r}, 'w')"), (open, "{path}", "w"), (torch.load, "{path}")],
    ids=["system", "eval", "open", "load"],
)
def test_no_name_but_those_of_handles_is_looked_up(tmp_path: Path, call: Any):
    path = tmp_path / "harm"
    harm = Harm(call[0], *(argument.format(path=str(path)) for argument in call[1:]))
    with pytest.raises(RequestError, match="is no handle of a tensor"):
        handed_tensors(packed([("weight", harm)]))
    assert not path.exists()


@pytest.mark.parametrize("given", [{"weight": 1}, ["weight"], [("weight", 1)], [(1, torch.Size([1]))], "weight", None], ids=str)
def test_what_is_no_list_of_names_and_tensors_is_refused(given: Any):
    with pytest.raises(RequestError, match="a list of names and tensors is wanted"):
        handed_tensors(packed(given))


@pytest.mark.parametrize("payload", [None, 1, "", "not base64!", "AAAA", []], ids=str)
def test_what_is_no_pickle_is_refused(payload: Any):
    with pytest.raises(RequestError, match="serialized_named_tensors"):
        handed_tensors(payload)


@given(st.booleans(), st.integers(0, 9999), st.integers(1, 255))
def test_a_pickle_that_is_cut_or_bent_is_refused_or_read(cut: bool, place: int, bits: int):
    whole = bytearray(base64.b64decode(handles()))
    place %= len(whole)
    if cut:
        del whole[place:]
    else:
        whole[place] ^= bits
    with suppress(RequestError):
        handed_tensors(base64.b64encode(bytes(whole)).decode())
