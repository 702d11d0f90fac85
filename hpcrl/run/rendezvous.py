"""How processes of an attempt find each other: publish a value under a key, wait for others' keys.

Values are small JSON files in the attempt's directory, each written in one step, so it works wherever the run directory is
shared and needs no server. Bind first, then publish: an address is published only once something listens there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcrl.run.atomic import write_json
from hpcrl.run.listing import Listing
from hpcrl.run.stop import StopFlag, back_off, wait_for


class Rendezvous:
    """A folder of published values. Keys look like ``address/inference.0``."""

    def __init__(self, folder: Path, run_id: str, stop: StopFlag | None = None) -> None:
        self._folder, self._run_id, self._stop = folder, run_id, stop
        self._listings: dict[str, Listing] = {}

    def publish(self, key: str, value: Any) -> None:
        """Make a value readable under a key; a second publish replaces the first."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"run_id": self._run_id, "value": value})

    def peek(self, key: str) -> Any | None:
        """The value under a key, or None while there is none of this run."""
        try:
            record = json.loads(self._path(key).read_text())
        except FileNotFoundError:
            return None
        return record["value"] if record["run_id"] == self._run_id else None

    def wait(self, key: str, *, seconds: float) -> Any:
        """The value under a key.

        Raises:
            DeadlineExceeded: nobody published it in time.
            Stopped: the process was asked to stop.
        """
        return wait_for(
            f"{key!r} to be published under {self._folder}",
            lambda: self.peek(key),
            seconds=seconds,
            stop=self._stop,
            pauses=back_off(0.01, 0.5),
        )

    def gather(self, keys: list[str], *, seconds: float) -> list[Any]:
        """The values under all of these keys, in their order; deadline and errors as :meth:`wait`, naming what lacks."""
        values: dict[str, Any] = {}
        folders: dict[Path, dict[str, str]] = {}
        for key in keys:
            path = self._path(key)
            folders.setdefault(path.parent, {})[path.name] = key
        listings = {folder: Listing(folder) for folder in folders}

        def poll() -> bool | None:
            # One look at a folder, however many are awaited there: asking for each file would have every process of a run
            # ask the file system for every other one, again and again.
            for folder, awaited in folders.items():
                for name in awaited.keys() & listings[folder].read():
                    value = self.peek(awaited[name])
                    if value is not None:
                        values[awaited.pop(name)] = value
            return None if any(folders.values()) else True

        wait_for(
            f"{len(keys)} values such as {keys[0]!r} under {self._folder}" if keys else "nothing",
            poll,
            seconds=seconds,
            stop=self._stop,
            pauses=back_off(0.01, 0.5, 1.25),
        )
        return [values[key] for key in keys]

    def published(self, folder: str) -> frozenset[str]:
        """The last parts of the keys under ``folder/`` that have a value, of whatever run; cheap to ask again and again."""
        listing = self._listings.setdefault(folder, Listing(self._folder / folder))
        return frozenset(name.removesuffix(".json") for name in listing.read())

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
