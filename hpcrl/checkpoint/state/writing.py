"""A rank's part of a save, from shared memory to durable files, and with rank 0 the commit."""

from __future__ import annotations

import io
import logging
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from hpcrl.checkpoint.state.files import DurableFiles
from hpcrl.checkpoint.state.layout import TRAINED, SaveName, StateError, rng_name
from hpcrl.checkpoint.state.manifest import Trained, write_manifest
from hpcrl.checkpoint.state.memory import SharedMemory
from hpcrl.checkpoint.state.part import Part, Shard, await_parts, leave_word, write_part
from hpcrl.checkpoint.state.plan import Planned
from hpcrl.checkpoint.state.request import Commit, Done, Failed, Job, Reply, decode_job, encode
from hpcrl.checkpoint.state.retain import prune, remove_saves, remove_unfinished
from hpcrl.run.disk import FileRecord, explain, total_bytes, write_file
from hpcrl.run.errors import HpcrlError, host
from hpcrl.run.failpoints import reach

log = logging.getLogger(__name__)


class Writer:
    """Writes what lies in the shared memory, as often as it is asked to.

    Args:
        planned: pickled :class:`~hpcrl.checkpoint.state.plan.Planned` of this rank.
        memory: descriptor of the shared memory.
    """

    def __init__(self, planned: bytes, memory: int) -> None:
        torch.set_num_threads(1)
        # From the process that started this one.
        self._planned: Planned = pickle.loads(planned)
        self._tensors = SharedMemory(self._planned.places, memory).tensors

    def answer(self, message: bytes) -> bytes:
        """Do a job."""
        job = decode_job(message)
        reach("writer.request", job.folder)
        try:
            reply: Reply = self.write(job)
        except (HpcrlError, OSError, RuntimeError, msgspec.MsgspecError) as error:
            reply = Failed(self._give_up(job, error))
        return encode(reply)

    def write(self, job: Job) -> Done:
        """Write a save's part, and with rank 0 commit the save.

        Raises:
            OSError: the file system failed.
            StateError: another rank could not write its part.
        """
        began = time.monotonic()
        folder, name = Path(job.folder), SaveName(job.attempt, job.step, job.number)
        save = folder / str(name)
        if job.commit is not None:
            for problem in remove_unfinished(folder, name):
                log.warning("%s", problem)
        files = DurableFiles()
        storage = FileSystemWriter(str(save), sync_files=False, per_thread_copy_ahead=0)
        storage.fs = files
        staged = _Staged(self._planned.plan.items, self._tensors, save)
        results: list[WriteResult] = storage.write_data(self._planned.plan, staged).wait()
        files.records[rng_name(job.rank)] = write_file(save / rng_name(job.rank), [job.rng])
        records = list(files.records.values())
        shards = [_shard(result) for result in results]
        record = write_part(save, Part(rank=job.rank, host=host(), files=records, shards=shards))
        if job.commit is None:
            return Done(total_bytes([*records, record]), time.monotonic() - began)
        written = self._commit(folder, job, job.commit, storage, files)
        problems = prune(folder, job.commit.keep, run_id=job.commit.manifest.run_id)
        return Done(total_bytes(written), time.monotonic() - began, problems)

    def _commit(
        self, folder: Path, job: Job, commit: Commit, storage: FileSystemWriter, files: DurableFiles
    ) -> list[FileRecord]:
        save = folder / str(commit.manifest.name)
        rows = np.frombuffer(commit.trained, np.dtype("<i8"))
        trained = write_file(save / TRAINED, _npy(rows))
        reach("commit.begin", save)
        parts = await_parts(save, job.world_size, seconds=commit.parts_s)
        reach("commit.metadata", save)
        results = [[_result(shard) for shard in part.shards] for part, _ in parts]
        assert self._planned.metadata is not None, "rank 0 has the metadata"
        storage.finish(self._planned.metadata, results)
        records = [record for part, own in parts for record in (*part.files, own)]
        records += [files.records[".metadata"], trained]
        manifest = msgspec.structs.replace(
            commit.manifest,
            files=records,
            rng=[rng_name(part.rank) for part, _ in parts],
            trained=Trained(len(rows), TRAINED),
            t=time.time(),
        )
        write_manifest(folder, manifest)
        return records

    def _give_up(self, job: Job, error: Exception) -> str:
        """Leave word for rank 0, or remove what there is; what to say to the trainer."""
        folder, name = Path(job.folder), SaveName(job.attempt, job.step, job.number)
        who, what = f"trainer rank {job.rank}", f"the state of step {job.step} cannot be saved"
        if isinstance(error, OSError):
            text = str(explain(who, what, error, folder / str(name)))
        elif isinstance(error, StateError):
            text = str(error)
        else:
            text = f"{who} on {host()}: {what}: {error!r}"
        if job.commit is None:
            leave_word(folder / str(name), job.rank, text)
        else:
            remove_saves(folder, [name])
        return text


class _Staged(DefaultSavePlanner):
    """Gives torch's storage writer what was copied to the shared memory."""

    def __init__(self, items: Sequence[WriteItem], tensors: Sequence[torch.Tensor], save: Path) -> None:
        super().__init__()
        self._save = save
        self._tensors = {item.index: tensor for item, tensor in zip(items, tensors, strict=True)}

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        reach("shard.tensor", self._save)
        return self._tensors[write_item.index]


def _npy(array: np.ndarray) -> list[bytes]:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return [buffer.getvalue()]


def _shard(result: WriteResult) -> Shard:
    index, place = result.index, result.storage_data
    offset = None if index.offset is None else tuple(index.offset)
    return Shard(index.fqn, offset, index.index, place.relative_path, place.offset, place.length)


def _result(shard: Shard) -> WriteResult:
    offset = None if shard.offset is None else torch.Size(shard.offset)
    index = MetadataIndex(shard.name, offset, shard.index)
    return WriteResult(index, shard.size, _StorageInfo(shard.file, shard.start, shard.size))
