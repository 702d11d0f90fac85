"""Values cut into pieces, and pieces gathered into requests that end soon; pure.

TransferQueue asks again what was not answered within a few seconds, so a request must never take that long, however slow the
network and however large a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

REQUEST_BYTES = 8 << 20
# Each piece is a message of its own: while CURVE seals one, those before it travel and are opened. Larger ones also leave the
# caches of a core, smaller ones cost more calls.
PIECE_BYTES = 1 << 20


class Piece(NamedTuple):
    """Bytes ``start`` to ``end`` of a field's value, kept under a name of their own."""

    field: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The field's own for the first."""
        return f"{self.field}#{self.start // PIECE_BYTES}" if self.start else self.field


class Request(NamedTuple):
    """The same pieces of several blocks, by their positions."""

    positions: list[int]
    pieces: Sequence[Sequence[Piece]]

    @property
    def names(self) -> list[str]:
        """Of the pieces."""
        return [piece.name for piece in self.pieces[0]]


def requests_of(blocks: Sequence[Mapping[str, int]]) -> list[Request]:
    """Every piece of every block in one request each, none of more than ``REQUEST_BYTES``.

    Args:
        blocks: size of each field's value [bytes].
    """
    alike: dict[tuple[str, ...], list[tuple[int, list[Piece]]]] = {}
    requests: list[Request] = []
    for position, sizes in enumerate(blocks):
        pieces = [piece for field, size in sizes.items() for piece in _cut(field, size)]
        if sum(sizes.values()) <= REQUEST_BYTES:
            alike.setdefault(tuple(piece.name for piece in pieces), []).append((position, pieces))
        else:
            requests += [Request([position], [part]) for part in _fill(pieces)]
    for names, members in alike.items():
        if names:
            requests += _join(members)
    return requests


def _cut(field: str, size: int) -> list[Piece]:
    starts = range(0, max(1, size), PIECE_BYTES)
    return [Piece(field, a, min(size, a + PIECE_BYTES)) for a in starts]


def _fill(pieces: Sequence[Piece]) -> list[list[Piece]]:
    parts: list[list[Piece]] = []
    left = 0
    for piece in pieces:
        size = piece.end - piece.start
        if not parts or size > left:
            parts.append([])
            left = REQUEST_BYTES
        parts[-1].append(piece)
        left -= size
    return parts


def _join(members: Sequence[tuple[int, list[Piece]]]) -> list[Request]:
    ends = itertools.accumulate(sum(piece.end - piece.start for piece in pieces) for _, pieces in members)
    requests: list[Request] = []
    begin = 0
    for (position, pieces), end in zip(members, ends, strict=True):
        if not requests or end - begin > REQUEST_BYTES:
            begin = end - sum(piece.end - piece.start for piece in pieces)
            requests.append(Request([], []))
        requests[-1] = Request([*requests[-1].positions, position], [*requests[-1].pieces, pieces])
    return requests
