"""What can be wrong with a recipe's declarations by themselves: names, numbers, rings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from hpcrl.config.nearest import nearest
from hpcrl.recipe import ColocationRing, Recipe, Role, RoleGroup

# The data plane's own processes.
QUEUE = "queue"
# A process tells the data plane in one byte how often it was restarted.
MOST_RESTARTS = 255
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def declaration_problems(recipe: Recipe) -> list[str]:
    """Names, schedule, limits and stream sizes that cannot be, a sentence each."""
    problems = _name_problems(recipe)
    schedule, limits = recipe.schedule, recipe.limits
    for label, value in (
        ("schedule.steps", schedule.steps),
        ("schedule.prompts_per_step", schedule.prompts_per_step),
        ("schedule.samples_per_prompt (the group size)", schedule.samples_per_prompt),
    ):
        if value < 1:
            problems.append(f"{label} is {value}; it must be at least 1")
    if schedule.window is not None and schedule.window < 1:
        problems.append(f"schedule.window is {schedule.window}; it must be at least 1, or None for no window")
    if limits.version_lag < 0:
        problems.append(f"limits.version_lag is {limits.version_lag}; it must be at least 0")
    elif schedule.window is not None and schedule.window - 1 > limits.version_lag:
        problems.append(
            f"schedule.window {schedule.window} lets generation run {schedule.window - 1} versions ahead and "
            f"limits.version_lag allows {limits.version_lag}; lower the window or raise the lag"
        )
    for name in ("start_s", "wait_s", "call_s", "drain_s"):
        if not getattr(limits, name) > 0:
            problems.append(f"limits.{name} is {getattr(limits, name)}; it must be above 0 seconds")
    if limits.snapshot_s < 0:
        problems.append(f"limits.snapshot_s is {limits.snapshot_s}; it must be above 0 seconds, or 0 for no snapshots")
    if not 0 <= limits.restarts <= MOST_RESTARTS:
        problems.append(f"limits.restarts is {limits.restarts}; it must be 0 to {MOST_RESTARTS}")
    for stream in recipe.streams:
        if stream.block_rows < 1:
            problems.append(f"stream {stream.name}: block_rows is {stream.block_rows}; it must be at least 1")
        elif stream.capacity_rows < stream.block_rows:
            problems.append(
                f"stream {stream.name}: capacity_rows {stream.capacity_rows} is below one block ({stream.block_rows} rows)"
            )
        for name in ("capacity_bytes", "max_row_bytes"):
            if getattr(stream, name) < 1:
                problems.append(f"stream {stream.name}: {name} is {getattr(stream, name)}; it must be at least 1")
    return problems


def group_problems(recipe: Recipe) -> list[str]:
    """Replicas, resources and start dependencies that cannot be, a sentence each."""
    problems = [] if recipe.groups else ["the recipe has no group of roles"]
    for name in sorted(recipe.groups):
        group = recipe.groups[name]
        problems += [f"group {name}: {text}" for text in _one_group(group, recipe)]
    return problems


def ring_problems(recipe: Recipe) -> list[str]:
    """Rings whose members cannot share their GPUs in turn, a sentence each."""
    problems = []
    seen: dict[str, str] = {}
    for ring in recipe.rings:
        problems += [f"ring {ring.name}: {text}" for text in one_ring(ring, recipe)]
        for member in dict.fromkeys(ring.members):
            if member in seen:
                problems.append(f"group {member} is in rings {seen[member]} and {ring.name}; it may be in one at most")
            seen.setdefault(member, ring.name)
    return problems


def one_ring(ring: ColocationRing, recipe: Recipe) -> list[str]:
    """What is wrong with one ring by itself."""
    problems = []
    if len(set(ring.members)) < 2:
        problems.append("it needs at least two different members")
    problems += [f"member {name} is given twice" for name in duplicates(ring.members)]
    problems += [
        f"member {name!r} is no group; {nearest(name, recipe.groups)}"
        for name in dict.fromkeys(ring.members)
        if name not in recipe.groups
    ]
    needs = {name: gpu_need(recipe.groups[name]) for name in ring.members if name in recipe.groups}
    if len(set(needs.values())) > 1:
        listed = ", ".join(
            f"{name} {need} ({recipe.groups[name].replicas} x {recipe.groups[name].resources.gpus})"
            for name, need in needs.items()
        )
        problems.append(f"its members must need the same number of GPUs in all: {listed}")
    return problems + (_token_problems(ring, recipe) if ring.fallback else [])


def _token_problems(ring: ColocationRing, recipe: Recipe) -> list[str]:
    problems = []
    if ring.fallback not in ring.members:
        problems.append(f"fallback {ring.fallback!r} is no member; {nearest(ring.fallback, ring.members)}")
    for name in dict.fromkeys(ring.members):
        role = recipe.groups[name].role if name in recipe.groups else None
        if not isinstance(role, Role):
            continue
        kind = type(role).__name__
        if name == ring.fallback and not role.gives_way:
            problems.append(f"{name} cannot be the fallback: {kind} does not let go when another member asks (gives_way)")
        if name != ring.fallback and not role.takes_turns:
            problems.append(
                f"member {name} never asks for the token: {kind} must take its turns by hpcrl.roles.turns and say so "
                "(takes_turns = True)" + (", or be the fallback" if role.gives_way else "")
            )
    if not ring.rest_gib >= 0:
        problems.append(f"rest_gib is {ring.rest_gib}; it must be at least 0")
    if not ring.let_go_s > 0:
        problems.append(f"let_go_s is {ring.let_go_s}; it must be above 0 seconds")
    return problems


def gpu_need(group: RoleGroup) -> int:
    """GPUs of all replicas of a group."""
    return group.replicas * group.resources.gpus


def duplicates(names: Iterable[str]) -> list[str]:
    """Names that occur more than once, in the order of their first occurrence."""
    return [name for name, count in Counter(names).items() if count > 1]


def _name_problems(recipe: Recipe) -> list[str]:
    problems = []
    kinds: list[tuple[str, list[str]]] = [
        ("group", sorted(recipe.groups)),
        ("stream", [stream.name for stream in recipe.streams]),
        ("feedback stream", [item.name for item in recipe.feedback]),
        ("ring", [ring.name for ring in recipe.rings]),
    ]
    kinds += [(f"stream {stream.name}: column", [column.name for column in stream.columns]) for stream in recipe.streams]
    for kind, names in kinds:
        problems += [f"{kind} {name} is declared twice" for name in duplicates(names)]
        problems += [
            f"{kind} {name!r}: a name is lower-case letters, digits and _, and starts with a letter"
            for name in dict.fromkeys(names)
            if not _NAME.fullmatch(name)
        ]
    both = {stream.name for stream in recipe.streams} & {item.name for item in recipe.feedback}
    problems += [f"{name} is declared both as a stream and as a feedback stream" for name in sorted(both)]
    problems += [f"stream {stream.name} has no columns" for stream in recipe.streams if not stream.columns]
    if QUEUE in recipe.groups:
        problems.append(f"group {QUEUE}: that name is the data plane's own; choose another")
    return problems


def _one_group(group: RoleGroup, recipe: Recipe) -> list[str]:
    problems = []
    need = group.resources
    if not isinstance(group.role, Role):
        return [f"its role is a {type(group.role).__name__}, not a Role"]
    if group.replicas < 1:
        problems.append(f"replicas is {group.replicas}; it must be at least 1")
    if need.gpus < 0:
        problems.append(f"gpus is {need.gpus}; it must be at least 0")
    if need.cpus < 1:
        problems.append(f"cpus is {need.cpus}; it must be at least 1")
    for field in ("host_memory_gib", "gpu_memory_gib"):
        if not getattr(need, field) >= 0:
            problems.append(f"{field} is {getattr(need, field)}; it must be at least 0")
    if group.role.process_per_gpu and need.gpus > 1 and not group.role.world:
        problems.append(
            f"its role runs a process on each of {need.gpus} GPUs that form no world; set `world = True` on "
            f"{type(group.role).__name__}, or use replicas of one GPU"
        )
    for other in group.after:
        if other not in recipe.groups:
            problems.append(f"starts after {other!r}, which is no group; {nearest(other, recipe.groups)}")
    return problems
