"""A model directory's chat template, rendered without transformers.

Which file holds it and what a template may use are as in transformers: ``chat_template.jinja`` goes before the entry in
``tokenizer_config.json``; of several templates the one called ``default`` counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hpcrl.data.dataset import Messages

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """Messages to the text that the model is prompted with.

    Args:
        source: the template, in Jinja.
        special: special tokens by their names, such as ``bos_token``.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self._source, self._special = source, special
        self._compiled: Any = None

    def render(self, messages: Messages) -> str:
        """The text, up to where the answer begins.

        Raises:
            ValueError: the template is no valid one, or refuses the messages.
        """
        from jinja2 import TemplateError

        try:
            if self._compiled is None:
                self._compiled = _environment().from_string(self._source)
            held = [dict(message) for message in messages]
            text: str = self._compiled.render(
                messages=held, tools=None, documents=None, add_generation_prompt=True, **self._special
            )
        except (TemplateError, TypeError) as error:
            raise ValueError(str(error)) from error
        return text


def read_template(path: Path, settings: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template of a model directory; None if it has none.

    Args:
        settings: the directory's ``tokenizer_config.json``.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    file = path / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(source, list):
        source = next((item["template"] for item in source if item["name"] == "default"), None)
    return ChatTemplate(source, special_tokens(settings)) if source else None


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by their names, out of ``tokenizer_config.json``."""
    named = {name: settings[name] for name in _SPECIAL if settings.get(name) is not None}
    return {name: token["content"] if isinstance(token, Mapping) else str(token) for name, token in named.items()}


def _environment() -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks what the model wrote; the text is what stands in it."""

        tags = {"generation"}  # noqa: RUF012 - as in the base class

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
