"""Where an ignitor sits, as it reports it: this machine, or its node as a component's Slurm step has it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcrl.launch.layout import Component, Layout
from hpcrl.plan.allocation import Allocation, Node
from hpcrl.plan.local import ephemeral_range, local_allocation
from hpcrl.run.errors import CheckFailed, host

# Nothing is sent there: connecting a datagram socket only chooses a route.
_DISCARD = 9


@dataclass(frozen=True)
class Place:
    """One ignitor's place.

    Attributes:
        here: an allocation of the one node that it sits on.
        rank: its number among the ignitors of that node.
        components: component of each group, where the job has several.
    """

    here: Allocation
    rank: int
    components: Mapping[str, str] | None = None


def local_place(slot: int) -> Place:
    """On this machine, all of whose ignitors are here.

    Raises:
        CheckFailed: as :func:`hpcrl.plan.local.local_allocation`.
    """
    return Place(local_allocation(), slot)


def slurm_place(run: Path, component: str, environ: Mapping[str, str]) -> Place:
    """In a task of a component's step: what the layout asked for, where Slurm put it, the GPUs that the step gave.

    Raises:
        CheckFailed: the step gave other GPUs than the layout asked for, or they cannot be asked for what they are.
    """
    layout = Layout.from_json((run / "layout.json").read_text())
    asked = next(item for item in layout.components if item.name == component)
    node = Node(
        name=environ["SLURMD_NODENAME"],
        address=address_of(environ),
        cpus=asked.cpus_per_node,
        memory_gib=asked.memory_gib,
        ephemeral=ephemeral_range(),
        component=layout.label(asked),
    )
    if asked.gpus_per_node:
        node = _with_gpus(node, asked, environ)
    return Place(Allocation(nodes=(node,)), int(environ["SLURM_LOCALID"]), layout.mapping)


def address_of(environ: Mapping[str, str]) -> str:
    """The address of this node on the way to the one that started the step, which is how other nodes reach it."""
    address = _towards(environ.get("SLURM_LAUNCH_NODE_IPADDR", ""))
    if address.startswith("127."):
        # On the starting node itself, that way is the loopback.
        try:
            return socket.gethostbyname(environ["SLURMD_NODENAME"])
        except OSError:
            return address
    return address


def given_gpus(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Indexes of the GPUs that the step gave, rising; empty where it names none by index."""
    names = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(sorted(map(int, names))) if all(name.isdecimal() for name in names) else ()


def _with_gpus(node: Node, asked: Component, environ: Mapping[str, str]) -> Node:
    # The driver knows memory and domains; where there is none, the step's own word must do.
    (seen,) = local_allocation().nodes
    if seen.gpus:
        node = replace(node, gpus=seen.gpus, gpu_memory_gib=seen.gpu_memory_gib, numa=seen.numa)
    else:
        node = replace(node, gpus=given_gpus(environ))
    if len(node.gpus) != asked.gpus_per_node:
        raise CheckFailed(
            [
                f"node {host()}: the step of component {asked.name} gave {len(node.gpus)} GPUs "
                f"(CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', '')!r}) and the layout asks for "
                f"{asked.gpus_per_node}; see `nvidia-smi -L` on the node and the site's gres.conf"
            ]
        )
    return node


def _towards(target: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, _DISCARD))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
