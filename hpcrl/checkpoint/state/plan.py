"""Who writes what: planned once by torch's distributed checkpoint, as a trainer's tensors stay where they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from hpcrl.checkpoint.state.ranks import Ranks

_ALIGNED = 64


@dataclass(frozen=True)
class Place:
    """Where a tensor, or this rank's shard of one, lies in the memory that it is copied to.

    Attributes:
        start: [bytes].
    """

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """[bytes]."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Planned:
    """A rank's part of every save.

    Attributes:
        plan: its items; each tensor that several ranks hold is in the plan of one of them.
        places: of the items, in their order.
        metadata: of all ranks' tensors; on rank 0.
    """

    plan: SavePlan
    places: tuple[Place, ...]
    metadata: Metadata | None

    @property
    def size(self) -> int:
        """Of all places [bytes]."""
        return max((place.start + place.size for place in self.places), default=0)


class Planner:
    """Plans the saves of tensors that keep their names, shapes and placements."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._planner = DefaultSavePlanner()
        self._planned: Planned | None = None

    def plan(self, tensors: dict[str, Any]) -> Planned:
        """The plan; made at the first call, which is a collective, and the same ever after."""
        self._planner.set_up_planner(tensors, is_coordinator=self._ranks.rank == 0)
        if self._planned is None:
            plan, metadata = self._agree(self._planner.create_local_plan())
            self._planned = Planned(self._planner.finish_plan(plan), _places(plan), metadata)
        return self._planned

    def tensor(self, item: WriteItem) -> torch.Tensor:
        """What an item of the plan is to hold, of the tensors of the latest :meth:`plan`."""
        data = self._planner.resolve_data(item)
        assert isinstance(data, torch.Tensor)
        return data.detach()

    def _agree(self, mine: SavePlan) -> tuple[SavePlan, Metadata | None]:
        rank, size = self._ranks.rank, self._ranks.size
        every: list[Any] = [mine]
        if size > 1:
            every = [None] * size
            dist.gather_object(mine, every if rank == 0 else None)
        plans: list[Any] = [None] * size
        metadata = None
        if rank == 0:
            plans, metadata = self._planner.create_global_plan(every)
            # Gives each rank the prefix of its files.
            plans = FileSystemWriter("unused").prepare_global_plan(plans)
        if size == 1:
            return plans[0], metadata
        got: list[Any] = [None]
        dist.scatter_object_list(got, plans if rank == 0 else None)
        return got[0], metadata


def _places(plan: SavePlan) -> tuple[Place, ...]:
    places, end = [], 0
    for item in plan.items:
        assert item.tensor_data is not None, f"{item.index.fqn} is no tensor"
        place = Place(end, tuple(item.tensor_data.chunk.sizes), item.tensor_data.properties.dtype)
        places.append(place)
        end += -(-place.size // _ALIGNED) * _ALIGNED
    return tuple(places)
