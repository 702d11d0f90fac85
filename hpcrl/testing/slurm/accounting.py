"""slurmdbd and a database of its own, for ``sacct``: reachable through sockets in the cluster's folder and on loopback."""

from __future__ import annotations

from hpcrl.testing.slurm.daemons import DATABASE, DBD, Daemon
from hpcrl.testing.slurm.programs import output_of
from hpcrl.testing.slurm.spec import ClusterSpec

INSTALL_DATABASE_S = 60.0


def create_database(spec: ClusterSpec, user: str) -> None:
    """Lay out an empty database.

    Raises:
        CommandFailed: it could not; quotes what it said.
    """
    command = [
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={spec.database}",
        f"--user={user}",
        # Whoever reaches the socket is let in; it lies in a folder that nobody else can enter.
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    ]
    output_of(command, seconds=INSTALL_DATABASE_S)


def database(spec: ClusterSpec, user: str) -> Daemon:
    """MariaDB on a socket only, tuned to start fast and not to outlive a power cut."""
    log, pid_file = spec.logs / "mariadbd.log", spec.run / "mariadbd.pid"
    options = {
        "datadir": spec.database,
        "socket": spec.database_socket,
        "pid-file": pid_file,
        "log-error": log,
        "user": user,
        "innodb-flush-log-at-trx-commit": 0,
        "innodb-buffer-pool-size": "64M",
        # Slurm's tables are changed under this lock; it asks for more than the default of 50 s.
        "innodb-lock-wait-timeout": 900,
    }
    arguments = " ".join(f"--{name}={value}" for name, value in options.items())
    # It has no mode in which it leaves its parent, so a shell leaves it. The socket is what says that it listens.
    command = ("setsid", "-f", "sh", "-c", f"exec mariadbd --no-defaults --skip-networking {arguments} </dev/null >>{log} 2>&1")
    return Daemon(name=DATABASE, command=command, pid_file=pid_file, log=log)


def dbd(spec: ClusterSpec) -> Daemon:
    """slurmdbd, which finds its own slurmdbd.conf beside the slurm.conf."""
    return Daemon(
        name=DBD,
        command=("slurmdbd",),
        pid_file=spec.run / "slurmdbd.pid",
        log=spec.logs / "slurmdbd.log",
        env=(("SLURM_CONF", str(spec.conf)), ("MYSQL_UNIX_PORT", str(spec.database_socket))),
    )
