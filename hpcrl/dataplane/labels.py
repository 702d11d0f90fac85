"""What the history and the balance know of rows, out of their columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcrl.dataplane.interface import ColumnData
from hpcrl.dataplane.ledger.ops import Labels
from hpcrl.recipe import Stream


def labels_of(stream: Stream, columns: Mapping[str, ColumnData]) -> Labels:
    """Labels of new rows, by the columns that the stream names for it; a row whose version column is empty has span (-1, -1).

    Args:
        columns: of a put, checked.
    """
    rows = len(next(iter(columns.values())))
    prompts = np.asarray(columns[stream.prompt]).tolist() if stream.prompt else []
    first: list[int] = []
    last: list[int] = []
    if stream.version:
        versions = columns[stream.version]
        if isinstance(versions, np.ndarray):
            first = last = versions.tolist()
        else:
            spans = [(int(v.min()), int(v.max())) if isinstance(v, np.ndarray) and len(v) else (-1, -1) for v in versions]
            first, last = [span[0] for span in spans], [span[1] for span in spans]
    tokens = [sum(len(columns[name][row]) for name in stream.tokens) for row in range(rows)] if stream.tokens else []
    return Labels(prompts, first, last, tokens)
