"""Starting a cluster: files, then munged, the database if any, the controller and all nodes at once."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from hpcrl.plan.local import ephemeral_range
from hpcrl.plan.ports import candidates, probe_busy
from hpcrl.run.errors import CheckFailed, HpcrlError, host
from hpcrl.run.stop import wait_for
from hpcrl.testing.slurm import accounting, daemons
from hpcrl.testing.slurm.programs import CommandFailed, output_of
from hpcrl.testing.slurm.record import Record
from hpcrl.testing.slurm.render import Surroundings, render_all
from hpcrl.testing.slurm.spec import ClusterSpec, Ports, count_ports
from hpcrl.testing.slurm.status import SERVING
from hpcrl.testing.slurm.stop import stop
from hpcrl.testing.slurm.version import installed_version

NODES_S = 30.0
DBD_S = 60.0


def start(spec: ClusterSpec) -> Record:
    """Start a cluster in a folder that has none; the caller holds the host's lock.

    Raises:
        CheckFailed: no ports are free, or the folder holds files that are not a cluster's.
        HpcrlError: a daemon did not start; what had started is stopped again, and the logs are kept.
    """
    strangers = [str(path) for path in spec.owned[:-1] if path.exists()]
    if strangers:
        raise CheckFailed([f"{spec.folder} holds files that no cluster of this tool left: {', '.join(strangers[:5])}"])
    version = installed_version()
    record = Record(spec=spec, ports=find_ports(spec), version=str(version))
    try:
        spec.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckFailed([f"the folder {spec.folder} cannot be made ({error.strerror}); choose another"]) from error
    for folder in (spec.logs, spec.state, spec.devices):
        folder.mkdir(exist_ok=True)
    for folder in (spec.run, *([spec.database] if spec.accounting else [])):
        folder.mkdir(mode=0o700 if folder == spec.database else 0o711)
    record.save()
    user = pwd.getpwuid(os.geteuid()).pw_name
    around = Surroundings(host=socket.gethostname().split(".")[0], user=user, ports=record.ports, version=version)
    try:
        write_files(spec, around)
        _start_all(record, user)
    except BaseException:
        stop(record, keep_logs=True)
        raise
    record.whole = True
    record.save()
    return record


def find_ports(spec: ClusterSpec) -> Ports:
    """Free ports in a row outside the ephemeral range; the same for a folder as long as they are free.

    Raises:
        CheckFailed: there are none.
    """
    for block in candidates(spec.name, None, [ephemeral_range()], count_ports(spec)):
        if not probe_busy("0.0.0.0", [block]):
            return Ports(first=block[0])
    raise CheckFailed([f"no {count_ports(spec)} ports in a row are free on {host()}; see what listens (`ss -ltnp`)"])


def write_files(spec: ClusterSpec, around: Surroundings) -> None:
    """Write the configuration, the munge key and the GPUs' device files."""
    for name, text in render_all(spec, around).items():
        (spec.folder / name).touch(mode=0o600 if name == "slurmdbd.conf" else 0o644)
        (spec.folder / name).write_text(text)
    key = spec.run / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    for number in range(spec.gpus):
        # Slurm hands out character devices only. A link to one needs no rights, where mknod is root's.
        (spec.devices / f"gpu{number}").symlink_to(os.devnull)


def wait_for_nodes(spec: ClusterSpec, nodes: Collection[str]) -> None:
    """Wait until the controller can give these nodes to jobs.

    Raises:
        DeadlineExceeded: some are not there in time; the controller's log tells more.
    """
    command = ["sinfo", "--Node", "--noheader", "--partition=main", "--format=%N %T"]

    def poll() -> bool | None:
        try:
            lines = output_of(command, seconds=NODES_S, env={"SLURM_CONF": str(spec.conf)}).splitlines()
        except CommandFailed:
            return None
        serving = {name for name, state in (line.split() for line in lines) if state in SERVING}
        return True if serving >= set(nodes) else None

    wait_for(f"the nodes {', '.join(nodes)} to register; read {spec.logs}/slurmctld.log and a node's", poll, seconds=NODES_S)


def _start_all(record: Record, user: str) -> None:
    spec = record.spec
    _start(record, [daemons.munged(spec)])
    if spec.accounting:
        accounting.create_database(spec, user)
        _start(record, [accounting.database(spec, user)])
        _start(record, [accounting.dbd(spec)])
        wait_for("slurmdbd to answer", lambda: _register(spec), seconds=DBD_S)
    _start(record, [daemons.controller(spec)])
    _start(record, [daemons.node(spec, name) for name in spec.node_names])
    wait_for_nodes(spec, spec.node_names)


def _register(spec: ClusterSpec) -> bool | None:
    try:
        output_of(["sacctmgr", "--immediate", "add", "cluster", spec.name], seconds=DBD_S, env={"SLURM_CONF": str(spec.conf)})
    except CommandFailed:
        return None
    return True


def _start(record: Record, those: Iterable[daemons.Daemon]) -> None:
    failures: list[HpcrlError] = []
    with ThreadPoolExecutor(16) as pool:
        for daemon, starting in [(daemon, pool.submit(daemon.start)) for daemon in those]:
            try:
                record.daemons[daemon.name] = starting.result()
            except HpcrlError as error:
                failures.append(error)
    record.save()
    if failures:
        raise failures[0]
