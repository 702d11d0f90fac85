"""The cluster's own note of what it started, beside its configuration: ``cluster.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.run.atomic import write_json
from hpcrl.run.errors import HpcrlError
from hpcrl.testing.slurm.processes import ProcessRef
from hpcrl.testing.slurm.spec import ClusterSpec, Ports


@dataclass
class Record:
    """What was started.

    Attributes:
        ports: the ports that were free.
        daemons: each daemon that was started, by name; it may have died since.
        whole: whether the start came to its end.
    """

    spec: ClusterSpec
    ports: Ports
    version: str
    daemons: dict[str, ProcessRef] = field(default_factory=dict)
    whole: bool = False

    def save(self) -> None:
        """Replace the file in one step."""
        write_json(
            record_path(self.spec.folder), {**asdict(self), "spec": {**asdict(self.spec), "folder": str(self.spec.folder)}}
        )

    def are_alive(self) -> bool:
        """Whether the start came to its end and every daemon of it still runs."""
        return self.whole and all(process.is_alive() for process in self.daemons.values())


def record_path(folder: Path) -> Path:
    """Where the record of the cluster in a folder lies."""
    return folder / "cluster.json"


def load_record(folder: Path) -> Record | None:
    """The record of the cluster in a folder; None if there is none.

    Raises:
        HpcrlError: the file is not such a record.
    """
    path = record_path(folder)
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return Record(
            spec=ClusterSpec(**{**found["spec"], "folder": Path(found["spec"]["folder"])}),
            ports=Ports(**found["ports"]),
            version=found["version"],
            daemons={name: ProcessRef(**process) for name, process in found["daemons"].items()},
            whole=found["whole"],
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise HpcrlError(
            f"{path} is not the record of a test cluster ({error}); if its daemons are gone (`ps -ef | grep {folder}`), "
            "delete the folder"
        ) from error
