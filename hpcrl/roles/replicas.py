"""Which engine a request goes to, out of those that announced themselves. No network here."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """An inference replica as it announced itself."""

    name: str
    url: str
    version: int


class Replicas:
    """Chooses the engine with the fewest requests under way; one that failed is left out for a while. Thread-safe.

    Args:
        rest_s: how long an engine is left out after a failure [s], unless it announces itself anew with another version or
            address, or no other is there.
    """

    def __init__(self, rest_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_s, self._clock = rest_s, clock
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self._failed: dict[Engine, float] = {}

    def fresh(self, newest: Mapping[str, Mapping[str, Any]], version: int) -> list[Engine]:
        """Engines that run at least this version, by name.

        Args:
            newest: newest value of each writer of stream ``served``.
        """
        engines = [Engine(name, str(value["url"]), int(value["version"])) for name, value in sorted(newest.items())]
        return [engine for engine in engines if engine.version >= version]

    def well(self, engines: Collection[Engine]) -> list[Engine]:
        """Those that have not failed lately."""
        with self._lock:
            return self._well(engines)

    def choose(self, engines: Collection[Engine]) -> Engine:
        """The least busy of those that are well, of all if none is; by name among equals.

        Raises:
            ValueError: no engine to choose from.
        """
        with self._lock:
            return min(self._well(engines) or engines, key=lambda engine: (self._under_way[engine.url], engine.name))

    @contextmanager
    def request(self, engine: Engine) -> Iterator[None]:
        """A request under way; an exception of the body counts as the engine's failure."""
        with self._lock:
            self._under_way[engine.url] += 1
        try:
            yield
        except BaseException:
            with self._lock:
                self._failed[engine] = self._clock()
            raise
        finally:
            with self._lock:
                self._under_way[engine.url] -= 1

    def _well(self, engines: Collection[Engine]) -> list[Engine]:
        since = self._clock() - self._rest_s
        return [engine for engine in engines if self._failed.get(engine, float("-inf")) < since]


def deal(numbers: list[int], engines: list[Engine]) -> list[tuple[Engine, list[int]]]:
    """Even, consecutive shares of prompt numbers, one for each engine in the given order; none is empty."""
    count = min(len(numbers), len(engines))
    bounds = [i * len(numbers) // count for i in range(count + 1)] if count else []
    return [(engine, numbers[bounds[i] : bounds[i + 1]]) for i, engine in enumerate(engines[:count])]
