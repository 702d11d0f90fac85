"""``hpcrl roles list``: the built-in roles, found by looking into ``hpcrl.roles``."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import click

from hpcrl.recipe import Role


@dataclass(frozen=True)
class RoleFacts:
    """What there is to say of a role class.

    Attributes:
        path: ``module:class``, as a recipe imports it.
        required: settings without a default.
        reads, writes, listens, announces: the contract with default settings; None where it depends on required ones.
    """

    name: str
    path: str
    service: bool
    about: str
    required: tuple[str, ...]
    reads: tuple[str, ...] | None
    writes: tuple[str, ...] | None
    listens: tuple[str, ...] | None
    announces: tuple[str, ...] | None


@click.group()
def command() -> None:
    """The roles that a recipe can use."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
def list_roles(as_json: bool) -> None:
    """List the built-in roles with what they read and write."""
    found, broken = find_roles("hpcrl.roles")
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(facts) for facts in found], indent=2))
    else:
        click.echo("\n\n".join(render(facts) for facts in found) or "there are none")
    for module, error in broken:
        click.echo(f"{module} cannot be imported, so its roles are not listed: {error}", err=True)


def find_roles(package: str) -> tuple[list[RoleFacts], list[tuple[str, str]]]:
    """Every role class that a module of a package defines, by name; and the modules that cannot be imported, with why."""
    found: list[RoleFacts] = []
    broken: list[tuple[str, str]] = []
    for item in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        try:
            module = importlib.import_module(item.name)
        except ImportError as error:
            broken.append((item.name, str(error)))
            continue
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if name.startswith("_") or kind is Role or kind.__module__ != item.name or inspect.isabstract(kind):
                continue
            if issubclass(kind, Role):
                found.append(facts_of(kind))
    return sorted(found, key=lambda facts: facts.name), broken


def facts_of(kind: type[Role]) -> RoleFacts:
    """The facts of one role class."""
    required = tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and field.init
    )
    # Defaults are attributes of the class, so without __init__ only the required settings lack; a contract that needs one
    # of these raises AttributeError.
    role = object.__new__(kind)
    about = (inspect.getdoc(kind) or "").strip().partition("\n")[0]
    return RoleFacts(
        name=kind.__name__,
        path=f"{kind.__module__}:{kind.__qualname__}",
        service=kind.service,
        about=about,
        required=required,
        reads=_contract(lambda: [_columns(item.stream, item.columns, item.final, "final") for item in role.reads()]),
        writes=_contract(lambda: [_columns(item.stream, item.columns, item.creates, "creates") for item in role.writes()]),
        listens=_contract(role.listens),
        announces=_contract(role.announces),
    )


def render(facts: RoleFacts) -> str:
    """A role as a few lines."""
    head = click.style(facts.name, bold=True) + ("  (service)" if facts.service else "")
    lines = [f"{head}  {facts.path}", f"  {facts.about}"]
    if facts.required:
        lines.append(f"  needs      {', '.join(facts.required)}")
    for name in ("reads", "writes", "listens", "announces"):
        values = getattr(facts, name)
        lines += [f"  {name if index == 0 else '':<10} {value}" for index, value in enumerate(values or ())]
    return "\n".join(lines)


def _contract(ask: Callable[[], Iterable[str]]) -> tuple[str, ...] | None:
    try:
        return tuple(ask())
    except AttributeError:
        return None


def _columns(stream: str, columns: tuple[str, ...], marked: bool, mark: str) -> str:
    return f"{stream}: {', '.join(columns)}" + (f" ({mark})" if marked else "")
