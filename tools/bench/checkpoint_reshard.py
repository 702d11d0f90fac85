"""What one rank of several reads to get its shards back, against torch's own loader, in the same run.

    python tools/bench/checkpoint_reshard.py [--folder /tmp] [--saved-by 1 4] [--ranks 8] [--rounds 3] [--small]

The state is that of a 135M model with Adam in float32 (SmolLM2's shapes: weights and both moments, 1.6 GB), saved by torch's
distributed checkpoint from so many processes. Then one rank after the other of an FSDP layout of ``--ranks`` fills its shards:
``slice`` with hpcrl's reader, ``dcp`` with ``torch.distributed.checkpoint.load`` of the same DTensors. Bytes are those that the
kernel counts for this process (rchar of /proc/self/io); seconds are the best round of a rank, out of the page cache.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from hpcrl.checkpoint.reshard.restore import restore

TARGET = 1 / 7
MIB = 2**20


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Of SmolLM2-135M with so many layers; 30 are all."""
    layer = {
        "q": (576, 576),
        "k": (192, 576),
        "v": (192, 576),
        "o": (576, 576),
        "gate": (1536, 576),
        "up": (1536, 576),
        "down": (576, 1536),
        "norm1": (576,),
        "norm2": (576,),
    }
    return {
        "embed": (49152, 576),
        "norm": (576,),
        **{f"layers.{number}.{name}": shape for number in range(layers) for name, shape in layer.items()},
    }


def state(layers: int, fill: Callable[[str, tuple[int, ...]], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights, both moments and the step of each parameter."""
    tensors = {}
    for name, shape in shapes(layers).items():
        for part in ("model", "exp_avg", "exp_avg_sq"):
            tensors[f"{part}.{name}"] = fill(f"{part}.{name}", shape)
        tensors[f"step.{name}"] = torch.tensor(3.0)
    return tensors


def example(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The same on every process."""
    count = math.prod(shape)
    return (torch.arange(count, dtype=torch.float32) % 8191 + len(name) + ord(name[-1])).reshape(shape)


def save_rank(folder: Path, rank: int, ranks: int, port: int, layers: int) -> None:
    """One process of those that save."""
    torch.set_num_threads(1)
    if ranks == 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save(state(layers, example), storage_writer=FileSystemWriter(str(folder)), no_dist=True)
        return
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=timedelta(seconds=120)
    )
    mesh = init_device_mesh("cpu", (ranks,))
    tensors = state(layers, lambda name, shape: distribute_tensor(example(name, shape), mesh, [Shard(0)]))
    save(tensors, storage_writer=FileSystemWriter(str(folder)))
    dist.destroy_process_group()


def read_bytes() -> int:
    """Bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def measured(call: Callable[[], object]) -> tuple[int, float]:
    """Bytes read and seconds."""
    before, began = read_bytes(), time.perf_counter()
    call()
    return read_bytes() - before, time.perf_counter() - began


def restore_rank(folder: Path, rank: int, ranks: int, rounds: int, layers: int) -> tuple[int, float, int, float]:
    """Bytes and best seconds of hpcrl's reader, and of torch's."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))

        def shard(whole: torch.Tensor) -> Any:
            pieces = list(whole.chunk(ranks))
            mine = pieces[rank] if rank < len(pieces) else whole[:0]
            return DTensor.from_local(mine.clone(), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())

        def empty() -> dict[str, Any]:
            return state(layers, lambda name, shape: shard(torch.zeros(shape)))

        def torch_load(tensors: dict[str, Any]) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(tensors, storage_reader=FileSystemReader(str(folder)), no_dist=True)

        ours, theirs = empty(), empty()
        found = []
        for _ in range(rounds):
            found.append((*measured(lambda: restore(folder, ours)), *measured(lambda: torch_load(theirs))))
        for name, tensor in theirs.items():
            local = (one.to_local() if isinstance(one, DTensor) else one for one in (tensor, ours[name]))
            assert torch.equal(*local), name
        return found[0][0], min(one[1] for one in found), found[0][2], min(one[3] for one in found)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Print a line a save and rank, and whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--saved-by", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=29651)
    parser.add_argument("--small", action="store_true", help="two layers, to try it out")
    parser.add_argument("--save-rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    layers = 2 if options.small else 30
    if options.save_rank is not None:
        save_rank(options.folder, options.save_rank, options.saved_by[0], options.port, layers)
        return
    torch.set_num_threads(1)
    worst = 0.0
    for count in options.saved_by:
        folder = Path(tempfile.mkdtemp(prefix="reshard-", dir=options.folder))
        try:
            command = [sys.executable, __file__, "--folder", str(folder), "--saved-by", str(count), "--port", str(options.port)]
            command += ["--small"] * options.small
            savers = [subprocess.Popen([*command, "--save-rank", str(rank)]) for rank in range(count)]
            if any(saver.wait() for saver in savers):
                raise SystemExit("saving failed")
            total = sum(file.stat().st_size for file in folder.iterdir())
            print(f"saved by {count}: {total / MIB:.0f} MiB; one rank of {options.ranks} reads")
            for rank in (0, options.ranks // 2, options.ranks - 1):
                ours, ours_s, theirs, theirs_s = restore_rank(folder, rank, options.ranks, options.rounds, layers)
                worst = max(worst, ours / total)
                print(
                    f"  rank {rank}: slice {ours / MIB:7.1f} MiB = 1/{total / ours:.2f} in {ours_s:.3f} s; "
                    f"dcp {theirs / MIB:7.1f} MiB = 1/{total / theirs:.2f} in {theirs_s:.3f} s"
                )
        finally:
            shutil.rmtree(folder)
    print(f"most: 1/{1 / worst:.2f} of the bytes, target at most 1/{1 / TARGET:.0f}: {'met' if worst <= TARGET else 'MISSED'}")


if __name__ == "__main__":
    main()
