"""Prompts that reasoning-gym generates: any item by its number, the same on every host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from hpcrl.config.nearest import nearest
from hpcrl.data.dataset import Dataset, Item, Prompts
from hpcrl.data.gym_tasks import registry_with
from hpcrl.run.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class ReasoningGym(Dataset):
    """A task of reasoning-gym.

    Attributes:
        task: its name, such as ``chain_sum``.
        size: how many items there are.
        seed: of the generator.
        params: the task's own settings, such as ``{"min_digits": 1}``.
        user: the user's text, a format string over ``question`` and the item's metadata.
    """

    task: str
    size: int = 10_000
    seed: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    user: str = "{question}"

    @property
    def procedural(self) -> bool:
        """Items are generated."""
        return True

    def fingerprint(self) -> dict[str, str]:
        """The settings and the generator's version."""
        return super().fingerprint() | {"reasoning-gym": version("reasoning-gym")}

    def open(self) -> Prompts:
        """The task's generator.

        Raises:
            CheckFailed: reasoning-gym is not installed, there is no such task, or its settings are refused.
        """
        if self.size < 1:
            raise CheckFailed([f"dataset {self.task!r} has size {self.size}: it is empty"])
        try:
            registry = registry_with(self.task)
        except ImportError as error:
            raise CheckFailed(
                [f"package reasoning-gym cannot be imported ({error}); run `pip install reasoning-gym==0.1.25`"]
            ) from error
        if self.task not in registry.DATASETS:
            raise CheckFailed([f"reasoning-gym has no task {self.task!r}; {nearest(self.task, registry.DATASETS)}"])
        try:
            entries = registry.create_dataset(self.task, size=self.size, seed=self.seed, **self.params)
            prompts = _Generated(self, entries)
            prompts[0]
        except KeyError as error:
            raise CheckFailed(
                [f"the user text {self.user!r} of dataset {self.task!r} names {error}, which no item has"]
            ) from error
        # Tasks check their settings with bare asserts.
        except (ValueError, TypeError, AssertionError) as error:
            raise CheckFailed([f"reasoning-gym refused task {self.task!r} with {dict(self.params)}: {error}"]) from error
        return prompts


class _Generated:
    def __init__(self, settings: ReasoningGym, entries: Any) -> None:
        self._settings, self._entries = settings, entries

    def __len__(self) -> int:
        return self._settings.size

    def __getitem__(self, index: int) -> Item:
        entry = self._entries[index]
        user = self._settings.user.format(**{**entry["metadata"], "question": entry["question"]})
        return Item(
            prompt=self._settings.chat({"role": "user", "content": user}),
            answer=str(entry["answer"]),
            metadata={**entry["metadata"], "question": entry["question"]},
            source=f"{self._settings.task} item {index}",
        )
