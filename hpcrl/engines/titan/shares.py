"""Who trains on what: length-balanced shares of a batch. Pure, and the same on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hpcrl.engines.titan.samples import Sample


def by_group(samples: Sequence[Sample], indexes: Sequence[int]) -> list[list[int]]:
    """Indexes of samples that share a prompt together, in order of first appearance."""
    groups: dict[int, list[int]] = {}
    for index in indexes:
        groups.setdefault(samples[index].group, []).append(index)
    return list(groups.values())


def shares(samples: Sequence[Sample], indexes: Sequence[int], parts: int) -> list[list[int]]:
    """Split samples into ``parts`` of about equal token counts, whole groups where there are enough of them.

    Groups stay together because samples of one prompt are cheaper together. Longest processing time first (Graham 1969):
    the largest group left goes to the part with the fewest tokens so far, the first such part on a tie. With fewer groups
    than parts, the largest groups are halved first. Parts may be empty if there are fewer samples than parts.
    """
    pieces = by_group(samples, indexes)
    while 0 < len(pieces) < parts and max(map(len, pieces)) > 1:
        largest = max((piece for piece in pieces if len(piece) > 1), key=lambda piece: _tokens(samples, piece))
        pieces.remove(largest)
        middle = len(largest) // 2
        pieces += [largest[:middle], largest[middle:]]
    filled: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0, part) for part in range(parts)]
    for piece in sorted(pieces, key=lambda piece: (-_tokens(samples, piece), piece[0])):
        tokens, part = heapq.heappop(heap)
        filled[part] += piece
        heapq.heappush(heap, (tokens + _tokens(samples, piece), part))
    return [sorted(part) for part in filled]


def _tokens(samples: Sequence[Sample], piece: Sequence[int]) -> int:
    return len(samples[piece[0]].prompt_ids) + sum(len(samples[index].response_ids) for index in piece)
