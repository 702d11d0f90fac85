"""Publishing: each of the trainer's ranks writes the tensors that it owns, mostly as patches, and rank 0 the record, last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcrl.checkpoint.hashing import hash_digests
from hpcrl.checkpoint.publish.codec import Bits
from hpcrl.checkpoint.publish.files import part_name, write_companions, write_index, write_model, write_patches
from hpcrl.checkpoint.publish.layout import TensorSpec, WeightsError, owners
from hpcrl.checkpoint.publish.owned import OwnedTensors
from hpcrl.checkpoint.publish.retain import discard, read_previous, retain, sweep
from hpcrl.checkpoint.publish.versions import Version, version_path, write_version
from hpcrl.run.disk import PATIENCE_S, FileRecord, explain, make_folder
from hpcrl.run.errors import HpcrlError
from hpcrl.run.failpoints import reach
from hpcrl.run.stop import wait_for

if TYPE_CHECKING:
    import torch

# Gives every rank what each rank says. A collective.
Exchange = Callable[[bytes], list[bytes]]
# A patch that is larger than this share of a base is not worth its chain.
_LARGE = 1 / 2


class _Report(msgspec.Struct, frozen=True):
    """What a rank tells the others.

    Attributes:
        patch_bytes: of its patches; None where it has none, or wants a base.
        durable: rank 0's word counts.
        error: why it cannot go on.
    """

    patch_bytes: int | None = None
    durable: bool = False
    tensors: dict[str, str] = {}
    files: list[FileRecord] = []
    error: str = ""


class Publisher:
    """One rank's part in publishing. All ranks call alike; what rank 0 asks for counts.

    It keeps a copy of what this rank owns, as it was published last, to find what has changed.

    Args:
        folder: of all versions.
        base: model folder that gives ``config.json`` and the tokenizer files.
        specs: every tensor of the model, the same on all ranks.
        attempt: of the run. The first version of a publisher is a base; newer ones that an earlier attempt left go then.
        base_every: versions from one base to the next, at most. A base also comes when a patch would be larger than half of
            it, or the patches since the last one together larger than it.
        threads: tensors compared at the same time.
    """

    def __init__(
        self,
        folder: Path,
        base: Path,
        specs: Sequence[TensorSpec],
        *,
        attempt: int,
        rank: int = 0,
        ranks: int = 1,
        exchange: Exchange = lambda said: [said],
        base_every: int = 32,
        threads: int = 1,
    ) -> None:
        if not specs:
            raise WeightsError(f"nothing can be published to {folder}: the model has no tensors")
        self._folder, self._base, self._attempt, self._base_every = folder, base, attempt, base_every
        self._rank, self._ranks, self._exchange = rank, ranks, exchange
        self._specs = list(specs)
        self._owners = owners(specs, ranks)
        self._owned = OwnedTensors((spec for spec in specs if self._owners[spec.name] == rank), threads=threads)
        self._total = sum(spec.nbytes for spec in specs)
        # The newest version, if what is held is that.
        self._last: Version | None = None
        self._chain, self._chain_bytes = 0, 0
        # Bases to publish before patches are tried again, and how many it was when they last were too large.
        self._rest, self._rested = 0, 0
        self._previous: dict[int, int | None] | None = None

    def publish(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, whole: bool = False, durable: bool = False
    ) -> Version:
        """Publish a version; one of the same number is replaced. A collective of all ranks.

        Args:
            tensors: every tensor by name, in the same order on all ranks, on any device. They are read one by one, to the end
                even if this rank cannot go on, as fetching one may be a collective too.
            whole: publish a base.
            durable: make it outlive the machine. Without, it is whole for readers while the machines live, which is enough
                for a version that is only served until the next.

        Raises:
            WeightsError: on all ranks, if one cannot take or write its tensors; on rank 0, if it cannot write the record.
                Names rank, host and file. The version is not there, and the next one will be a base.
        """
        before, self._last = self._last, None
        path = version_path(self._folder, version)
        patching = before is not None and self._may_patch(version, before)
        error = self._try(lambda: self._begin(version, path))
        # Also after an error: the other ranks are at it.
        error = self._try(lambda: self._owned.take(tensors, patching=patching)) or error
        patch_bytes = self._owned.patch_bytes if patching and not whole else None
        said = self._tell(version, _Report(patch_bytes=patch_bytes, durable=durable, error=error))
        on = before if self._are_small(said) else None
        files: list[FileRecord] = []
        durable = said[0].durable
        error = self._try(lambda: files.extend(self._write(path, whole=on is None, durable=durable)))
        said = self._tell(version, _Report(tensors=self._owned.digests, files=files, error=error))
        digests = {name: digest for report in said for name, digest in sorted(report.tensors.items())}
        done = Version(
            version=version,
            hash=hash_digests(digests),
            dtype=self._specs[0].dtype,
            attempt=self._attempt,
            previous=None if on is None else on.version,
            previous_hash="" if on is None else on.hash,
            tensors=digests,
            files=[record for report in said for record in report.files],
        )
        if self._rank == 0 and (error := self._try(lambda: self._commit(path, done, durable))):
            raise self._failed(version, error)
        self._chain, self._chain_bytes = (0, 0) if on is None else (self._chain + 1, self._chain_bytes + done.size)
        self._last = done
        return done

    def retain(self, *, keep_last: int, protect: Collection[int] = ()) -> list[int]:
        """On rank 0, remove versions that nobody needs; see :func:`~hpcrl.checkpoint.publish.retain.to_drop`.

        Raises:
            WeightsError: one cannot be removed.
        """
        dropped: list[int] = []
        known = self._previous or {}
        error = self._try(lambda: dropped.extend(retain(self._folder, known, keep_last=keep_last, protect=protect)))
        if error:
            raise WeightsError(f"older versions in {self._folder} cannot be removed: {error}")
        return dropped

    @property
    def known(self) -> list[int]:
        """On rank 0, the versions that are there, rising."""
        return sorted(self._previous or ())

    @property
    def owned(self) -> dict[str, tuple[TensorSpec, Bits]]:
        """What this rank owns, as it was published last, by name. The next :meth:`publish` changes it."""
        return self._owned.whole()

    def _may_patch(self, version: int, before: Version) -> bool:
        small = self._chain + 1 < self._base_every and self._chain_bytes <= self._total
        return version > before.version and small and not self._rest

    def _are_small(self, said: Sequence[_Report]) -> bool:
        """Whether all ranks have patches and these are worth it."""
        sizes = [report.patch_bytes for report in said]
        if None in sizes:
            self._rest = max(0, self._rest - 1)
            return False
        small = sum(size or 0 for size in sizes) <= _LARGE * self._total
        # Values that all change once are likely to do so again, and to find that out costs more than to write them.
        self._rested = 0 if small else min(2 * self._rested + 1, self._base_every)
        self._rest = self._rested
        return small

    def _begin(self, version: int, path: Path) -> None:
        if self._rank:
            return
        reach("publish.begin", path)
        if self._previous is None:
            sweep(self._folder)
            self._previous = read_previous(self._folder)
        self._previous.pop(version, None)
        if path.exists():
            discard(path)
        make_folder(path, durable=False)
        reach("publish.folder", path)

    def _write(self, path: Path, *, whole: bool, durable: bool) -> list[FileRecord]:
        part, records = part_name(self._rank, self._ranks), []
        # Made by another node.
        wait_for(f"the folder {path}", lambda: path.is_dir() or None, seconds=PATIENCE_S)
        reach("publish.part", path)
        if self._owned.specs:
            if whole:
                records.append(write_model(path, part, self._owned.whole(), durable=durable))
            else:
                records.append(write_patches(path, part, self._owned.patches, durable=durable))
        if whole and self._rank == 0:
            records += write_companions(self._base, path, self._specs[0].dtype, durable=durable)
            if self._ranks > 1:
                files = {name: f"model{part_name(rank, self._ranks)}.safetensors" for name, rank in self._owners.items()}
                records.append(write_index(path, files, self._total, durable=durable))
        reach("publish.written", path)
        return records

    def _commit(self, path: Path, done: Version, durable: bool) -> None:
        reach("publish.marker", path)
        write_version(path, done, durable=durable)
        assert self._previous is not None
        self._previous[done.version] = done.previous
        newer = [version for version in self.known if version > done.version]
        for version in reversed(newer):
            discard(version_path(self._folder, version))
            del self._previous[version]
        reach("publish.done", path)

    def _tell(self, version: int, report: _Report) -> list[_Report]:
        said = [msgspec.msgpack.decode(data, type=_Report) for data in self._exchange(msgspec.msgpack.encode(report))]
        wrong = list(dict.fromkeys(other.error for other in said if other.error))
        if wrong:
            raise self._failed(version, "; ".join(wrong))
        return said

    def _try(self, call: Callable[[], object]) -> str:
        """What went wrong, in words for a person; empty if nothing did."""
        who = f"trainer rank {self._rank}"
        try:
            call()
        except OSError as error:
            return str(explain(who, "it cannot be written", error, self._folder))
        except HpcrlError as error:
            return f"{who}: {error}"
        return ""

    def _failed(self, version: int, why: str) -> WeightsError:
        return WeightsError(f"version {version} cannot be published to {version_path(self._folder, version)}: {why}")
