"""Who trains on what: length-balanced shares of a batch. Pure, and the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrl.engines.titan.samples import Sample
from hpcrl.plan.balance import longest_first


def by_group(samples: Sequence[Sample], indexes: Sequence[int]) -> list[list[int]]:
    """Indexes of samples that share a prompt together, in order of first appearance."""
    groups: dict[int, list[int]] = {}
    for index in indexes:
        groups.setdefault(samples[index].group, []).append(index)
    return list(groups.values())


def shares(samples: Sequence[Sample], indexes: Sequence[int], parts: int) -> list[list[int]]:
    """Split samples into ``parts`` of about equal token counts, whole groups where there are enough of them.

    Groups stay together because samples of one prompt are cheaper together, and go to the parts by :func:`longest_first`.
    With fewer groups than parts, the largest groups are halved first. Parts may be empty if there are fewer samples than parts.
    """
    pieces = by_group(samples, indexes)
    while 0 < len(pieces) < parts and max(map(len, pieces)) > 1:
        largest = max((piece for piece in pieces if len(piece) > 1), key=lambda piece: _tokens(samples, piece))
        pieces.remove(largest)
        middle = len(largest) // 2
        pieces += [largest[:middle], largest[middle:]]
    pieces.sort(key=lambda piece: piece[0])
    filled = longest_first([_tokens(samples, piece) for piece in pieces], parts)
    return [sorted(index for number in part for index in pieces[number]) for part in filled]


def _tokens(samples: Sequence[Sample], piece: Sequence[int]) -> int:
    return len(samples[piece[0]].prompt_ids) + sum(len(samples[index].response_ids) for index in piece)
