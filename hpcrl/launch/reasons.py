"""Slurm's reasons in words: why a job waits, how it ended, and what to do when it is refused."""

from __future__ import annotations

from collections.abc import Mapping

WAITS: Mapping[str, str] = {
    "None": "the scheduler has not looked at it yet",
    "Priority": "jobs of higher priority are ahead of it",
    "Resources": "it is next, and waits until enough nodes are free",
    "Dependency": "it waits for another job to end",
    "DependencyNeverSatisfied": "the job that it waits for cannot end as asked; cancel it and submit it again",
    "JobHeldUser": "it is held by its owner; let it go with `scontrol release JOB`",
    "JobHeldAdmin": "it is held by an administrator; ask them",
    "BeginTime": "its begin time has not come (a requeued job is held for a while)",
    "Licenses": "it waits for a licence",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs now",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives to one job",
    "PartitionTimeLimit": "its time limit is longer than its partition allows; cancel it and ask for less --time",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node meets its constraints",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation was deleted",
    "Cleaning": "its last life is still being cleaned up",
    "Prolog": "the prolog of its nodes runs",
    "JobHoldMaxRequeue": "it was requeued more often than the cluster allows; let it go with `scontrol release JOB`",
    "JobLaunchFailure": "it could not be launched; read its log, then `scontrol release JOB`",
    "launch_failed_requeued_held": "its launch failed and it is held; let it go with `scontrol release JOB`",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "AccountNotAllowed": "its partition does not take its account",
    "QOSNotAllowed": "its partition does not take its QOS",
    "AccountingPolicy": "a limit of its account is reached",
}
# Names of limits begin with whose they are.
_LIMITS = {"QOS": "a limit of its QOS is reached", "Assoc": "a limit of its account is reached"}

ENDS: Mapping[str, str] = {
    "COMPLETED": "the job completed",
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the job reached its time limit",
    "NODE_FAIL": "a node of the job failed",
    "OUT_OF_MEMORY": "the job ran out of host memory; raise host_memory_gib",
    "PREEMPTED": "the job was preempted and not queued again",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "the job reached its deadline",
    "FAILED": "the job ended with an error",
}

REFUSALS: Mapping[str, str] = {
    "account": "the account is refused: correct `account` in the site profile; `sacctmgr show assoc user=$USER` lists yours",
    "qos": "the QOS is refused: correct `qos` in the site profile; `sacctmgr show qos format=name` lists all",
    "partition name": "the partition does not exist: `sinfo` lists those there are",
    "feature specification": "no node has the feature of `constraint` in the site profile; `sinfo --format='%n %f'` lists them",
    "time limit": "the time limit is refused; ask for less --time",
    "reservation": "the reservation in `sbatch` of the site profile is refused",
    "configuration is not available": "no nodes of the partition have what is asked for; compare with `sinfo --Node --long`",
    "more processors requested": "more cores are asked for than a node may give; lower cpus of the groups",
    "memory specification": "more memory is asked for than a node may give; correct memory_gib in the site profile",
    "requeue": "the cluster lets no job be requeued; give --no-requeue",
}


def why_it_waits(reason: str) -> str:
    """Slurm's reason for a waiting job as a clause; an unknown reason as it is."""
    name = reason.partition(",")[0].strip()
    if name in WAITS:
        detail = reason.partition(",")[2].strip()
        return WAITS[name] + (f" ({detail})" if detail else "")
    for start, words in _LIMITS.items():
        if name.startswith(start):
            return f"{words} ({name}); `sacctmgr show qos` and `sshare` tell which"
    return f"Slurm says {reason}" if reason else WAITS["None"]


def is_held(reason: str) -> bool:
    """Whether only a person can let the job go."""
    return reason.startswith(("JobHeld", "JobHoldMaxRequeue", "launch_failed_requeued_held"))


def how_it_ended(state: str) -> str:
    """Slurm's final state of a job as a clause."""
    return ENDS.get(state, f"Slurm says {state}")


def why_refused(said: str) -> str:
    """What to do about an error of ``sbatch``, with its own words."""
    lower = said.lower()
    for words, hint in REFUSALS.items():
        if words in lower:
            return f"Slurm refuses the job ({said}): {hint}"
    return f"Slurm refuses the job: {said}"
