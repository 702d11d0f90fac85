"""Which published versions may go."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

from hpcrl.checkpoint.publish.layout import WeightsError
from hpcrl.checkpoint.publish.versions import read_version, unfinished, version_path, versions, with_ancestors
from hpcrl.run.disk import remove_tree, rename
from hpcrl.run.failpoints import reach


def to_drop(
    previous: Mapping[int, int | None], *, keep_last: int, keep_every: int | None = None, protect: Collection[int] = ()
) -> list[int]:
    """Which versions may go, falling, so that a patch goes before what it is built on. Pure.

    Kept are the newest ``keep_last``, multiples of ``keep_every``, what is protected, and all that these are built on.

    Args:
        previous: by version that is there, the one that it is a patch on; None for a base.
    """
    newest = sorted(previous)[-keep_last:] if keep_last > 0 else []
    every = [version for version in previous if keep_every and version % keep_every == 0]
    kept = with_ancestors({*newest, *every, *protect} & previous.keys(), previous)
    return sorted(previous.keys() - kept, reverse=True)


def retain(
    folder: Path,
    previous: dict[int, int | None],
    *,
    keep_last: int,
    keep_every: int | None = None,
    protect: Collection[int] = (),
) -> list[int]:
    """Remove the versions that :func:`to_drop` names, from ``previous`` too, and return them.

    Raises:
        OSError: one cannot be removed.
    """
    dropped = to_drop(previous, keep_last=keep_last, keep_every=keep_every, protect=protect)
    for version in dropped:
        discard(version_path(folder, version))
        del previous[version]
    return dropped


def read_previous(folder: Path) -> dict[int, int | None]:
    """By version that is there, the one that it is a patch on; None for a base, and for one whose record is damaged."""
    found: dict[int, int | None] = {}
    for version in versions(folder):
        try:
            found[version] = read_version(folder, version).previous
        except WeightsError:
            found[version] = None
    return found


def discard(path: Path) -> None:
    """Remove a version's folder; a reader never meets half of it by its name.

    Raises:
        OSError: it cannot be removed.
    """
    gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    rename(path, gone, durable=False)
    reach("publish.prune", gone)
    remove_tree(gone)


def sweep(folder: Path) -> list[Path]:
    """Remove what publishes and removals that were cut short have left, and return it.

    Raises:
        OSError: it cannot be removed.
    """
    left = unfinished(folder)
    for path in left:
        remove_tree(path)
    return left
