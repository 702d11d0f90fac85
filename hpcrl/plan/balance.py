"""Length balance: things of different cost over equal parts. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def longest_first(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Indexes of things, in ``parts`` lists of about equal total cost.

    Longest processing time first (Graham 1969): the dearest thing left goes to the part that costs least so far; the first
    such thing and part on a tie. The dearest part costs at most 4/3 - 1/(3 parts) of the best that is possible. Parts may
    be empty if there are fewer things than parts.
    """
    filled: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, part) for part in range(parts)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        cost, part = heapq.heappop(heap)
        filled[part].append(index)
        heapq.heappush(heap, (cost + costs[index], part))
    return filled
