"""Names that a person may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, options: Iterable[str]) -> str:
    """A clause for the end of an error about an unknown name: the nearest options, else all when they are few."""
    known = sorted(set(options))
    leaf = name.rsplit(".", 1)[-1]
    same_leaf = [option for option in known if option.rsplit(".", 1)[-1] == leaf]
    close = list(dict.fromkeys(difflib.get_close_matches(name, known, n=3, cutoff=0.6) + same_leaf))[:4]
    if close:
        return "nearest: " + ", ".join(close)
    if not known:
        return "there are none"
    return "there are: " + ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
