"""A cluster's configuration files as text; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.testing.slurm.spec import ClusterSpec, Ports
from hpcrl.testing.slurm.version import SlurmVersion

MEMORY_MB = 64_000
GRACE_S = 10


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a configuration takes from the host.

    Attributes:
        host: short host name.
        user: who runs the daemons and, unless root, the only one who may run jobs.
    """

    host: str
    user: str
    ports: Ports
    version: SlurmVersion


def render_all(spec: ClusterSpec, around: Surroundings) -> dict[str, str]:
    """Every file by its name in the cluster's folder."""
    files = {
        "slurm.conf": slurm_conf(spec, around),
        "gres.conf": gres_conf(spec),
        "cgroup.conf": f"CgroupPlugin={around.version.cgroup_plugin}\n",
    }
    if spec.accounting:
        files["slurmdbd.conf"] = slurmdbd_conf(spec, around)
    return files


def slurm_conf(spec: ClusterSpec, around: Surroundings) -> str:
    """``slurm.conf``: three partitions over the same virtual nodes; every port on loopback."""
    first, last = around.ports.of_nodes(spec.nodes)
    ports = str(first) if first == last else f"[{first}-{last}]"
    gres = f" Gres=gpu:{spec.gpus}" if spec.gpus else ""
    accounting = _accounting(spec, around) if spec.accounting else []
    user_signal = [
        "# The batch script itself hears of preemption, through --signal=B:…",
        "SlurmctldParameters=preempt_send_user_signal",
    ]
    lines = [
        "# Written for one start of a test cluster; changes are lost.",
        f"ClusterName={spec.name}",
        f"SlurmctldHost={around.host}(127.0.0.1)",
        f"SlurmctldPort={around.ports.controller}",
        f"SlurmUser={around.user}",
        f"SlurmdUser={around.user}",
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
        "",
        "# Requeued jobs are held until credentials expire: 5 s, not 120 s.",
        "AuthType=auth/munge",
        f"AuthInfo=socket={spec.munge_socket},cred_expire=5",
        "",
        *(user_signal if spec.user_signal else []),
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        "KillWait=5",
        "",
        "# Heterogeneous jobs start by backfill only.",
        "SchedulerParameters=sched_interval=2,bf_interval=1",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "",
        "# Virtual nodes: more CPUs than the host has, no cgroups.",
        "SlurmdParameters=config_overrides",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "",
        "# A silent node is down after 10 s and back when it is heard; one set down by hand stays so.",
        "ReturnToService=1",
        "SlurmdTimeout=10",
        "",
        f"StateSaveLocation={spec.state}",
        # Straight below the folder: the sockets of steps lie in it, and the length of their paths is limited.
        f"SlurmdSpoolDir={spec.folder}/%n",
        f"SlurmctldPidFile={spec.run}/slurmctld.pid",
        f"SlurmdPidFile={spec.run}/%n.pid",
        f"SlurmctldLogFile={spec.logs}/slurmctld.log",
        f"SlurmdLogFile={spec.logs}/%n.log",
        *accounting,
        "",
        "GresTypes=gpu",
        f"NodeName={_range(spec)} NodeHostname={around.host} NodeAddr=127.0.0.1 Port={ports} "
        f"CPUs={spec.cpus} RealMemory={MEMORY_MB}{gres}",
        "",
        "PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=off",
        f"PartitionName=low Nodes=ALL PriorityTier=5 PreemptMode=REQUEUE GraceTime={GRACE_S}",
        "PartitionName=high Nodes=ALL PriorityTier=20 PreemptMode=off",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(spec: ClusterSpec) -> str:
    """``gres.conf``: each node has the same device files."""
    lines = ["AutoDetect=off"]
    if spec.gpus:
        numbers = "0" if spec.gpus == 1 else f"[0-{spec.gpus - 1}]"
        lines.append(f"NodeName={_range(spec)} Name=gpu File={spec.devices}/gpu{numbers}")
    return "\n".join(lines) + "\n"


def slurmdbd_conf(spec: ClusterSpec, around: Surroundings) -> str:
    """``slurmdbd.conf``, which Slurm accepts in mode 0600 only."""
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={spec.munge_socket}",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={around.ports.database}",
        f"SlurmUser={around.user}",
        f"LogFile={spec.logs}/slurmdbd.log",
        f"PidFile={spec.run}/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        "StorageLoc=slurm_acct_db",
        "CommunicationParameters=NoInAddrAny",
    ]
    return "\n".join(lines) + "\n"


def _accounting(spec: ClusterSpec, around: Surroundings) -> list[str]:
    return [
        "",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=localhost",
        f"AccountingStoragePort={around.ports.database}",
        f"AccountingStoragePass={spec.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
        "JobAcctGatherType=jobacct_gather/none",
    ]


def _range(spec: ClusterSpec) -> str:
    return "n1" if spec.nodes == 1 else f"n[1-{spec.nodes}]"
