"""Texts of a site profile in a shell script and in a command: ``$NAME`` stands for a variable, all else for itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


def quote(text: str) -> str:
    """One word of a shell script; ``$NAME`` and ``${NAME}`` are expanded where the script runs, nothing else is."""
    word, end = "", 0
    for match in _VARIABLE.finditer(text):
        word += _literal(text[end : match.start()]) + f'"${{{match[1] or match[2]}}}"'
        end = match.end()
    return word + _literal(text[end:]) or "''"


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with its variables as an environment has them; one that is not set is empty, as in a shell."""
    return _VARIABLE.sub(lambda match: environ.get(match[1] or match[2], ""), text)


def _literal(text: str) -> str:
    return shlex.quote(text) if text else ""
