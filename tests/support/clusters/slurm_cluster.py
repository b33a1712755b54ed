"""A real Slurm of a few nodes on this machine: munged, slurmctld, several slurmd with fake GPUs, accounting on request.

Needs root, for the device files that Slurm takes for GPUs. Everything listens on loopback, everything is ended with
the block, and what any of them logged is in the folder. The nodes are called n1, n2 …; slurmd believes what
slurm.conf says about them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from tests import servers
from tests.support import waiting

# Four seconds on a quiet machine, database included; the rest is for a busy one.
READY_SECONDS = 90.0
GPUS = 8
SLURM_CONF = """
ClusterName=probe
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthInfo=socket={folder}/munge.sock
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,defer_batch
ReturnToService=1
MpiDefault=none
GresTypes=gpu
SwitchType=switch/none
TopologyPlugin=topology/tree
{tokens}
{accounting}
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# Debian has it in a package of its own, slurm-wlm-jwt-plugin.
TOKENS = """
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
"""
ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.sock
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits
JobAcctGatherType=jobacct_gather/none
"""
SLURMDBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=slurm_acct
"""


@dataclass
class Cluster:
    """A running Slurm; `environment` is what its commands need to find it."""

    folder: Path
    environment: Mapping[str, str]
    _ends: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def ask(self, *command: str, **more: str) -> str:
        """What a command of Slurm prints; a test failure if it complains."""
        answer = subprocess.run(
            command, env={**self.environment, **more}, capture_output=True, text=True, timeout=60, check=False
        )
        assert answer.returncode == 0, f"{command}: {answer.stderr or answer.stdout}"
        return answer.stdout

    def submit(self, *options: str, script: str = "sleep 300") -> str:
        """Start a batch job and give its id."""
        printed = self.ask(
            "sbatch", "--parsable", "-o", "/dev/null", "-D", str(self.folder), *options, "--wrap", script
        )
        return printed.strip().partition(";")[0]

    def cancel_all(self) -> None:
        self.ask("scancel", "--quiet", "--user=root")
        until(lambda: not self.ask("squeue", "-h", "-t", "R,CG,S").strip())
        for node in self.ask("sinfo", "-h", "-N", "-o", "%N %t").split("\n"):
            if re.search(r" (drain|drng|down)", node):
                self.ask("scontrol", "update", f"nodename={node.split()[0]}", "state=resume")

    def start(self, name: str, *command: str | Path) -> None:
        with (self.folder / f"{name}.out").open("wb") as output:
            started = subprocess.Popen(
                [str(part) for part in command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                cwd=self.folder,
            )
        self._ends.append(started)

    def stop(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel_all()
        for started in reversed(self._ends):
            servers.stop(started)
        self._end_steps()

    def _end_steps(self) -> None:
        """slurmstepd outlives slurmd; ours are those that were given our folder."""
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError, ValueError):
                is_step = b"slurmstepd" in status.read_bytes()
                environ = (status.parent / "environ").read_bytes() if is_step else b""
                if str(self.folder).encode() in environ:
                    os.kill(int(status.parent.name), signal.SIGKILL)


def require_all(*more: str) -> None:
    """Skip by name where a program is missing, or where device files cannot be made."""
    for name in ("munged", "slurmctld", "slurmd", "squeue", *more):
        servers.require(name)
    if os.geteuid() != 0:
        _missing("Slurm takes device files for GPUs, and only root can make them. Run the tests as root")


def has_tokens() -> bool:
    """Whether this Slurm can check a JWT; one whose configuration asks for it without the plugin does not start."""
    return servers.find("auth_jwt.so") is not None


def _missing(why: str) -> NoReturn:
    if os.environ.get("REQUIRE_SERVERS") == "1":
        pytest.fail(f"{why} (REQUIRE_SERVERS=1)", pytrace=False)
    pytest.skip(why)


@contextlib.contextmanager
def running(folder: Path, *, nodes: int = 3, accounting: bool = False) -> Iterator[Cluster]:
    require_all(*(("slurmdbd", "mariadbd") if accounting else ()))
    folder.chmod(0o755)
    cluster = Cluster(folder, {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")})
    ports = [servers.free_port() for _ in range(nodes + 3)]
    _write(folder, nodes=nodes, ports=ports, accounting=accounting)
    try:
        _start_munge(cluster)
        if accounting:
            _start_accounting(cluster, ports)
        cluster.start("slurmctld", "slurmctld", "-D", "-c", "-f", folder / "slurm.conf")
        for number in range(1, nodes + 1):
            cluster.start(f"slurmd.n{number}", "slurmd", "-D", "-N", f"n{number}", "-f", folder / "slurm.conf")
        states = ["idle"] * nodes
        until(lambda: _prints(cluster, "sinfo", "-h", "-N", "-o", "%T").split() == states, folder)
        if accounting:
            # Only a slurmctld that has started tells the database what gres/gpu is.
            limit = ("sacctmgr", "-i", "modify", "account", "llm", "set", "GrpTRES=gres/gpu=12")
            until(lambda: "Modified" in _prints(cluster, *limit), folder)
        yield cluster
    finally:
        cluster.stop()


def _write(folder: Path, *, nodes: int, ports: list[int], accounting: bool) -> None:
    for index in range(GPUS):
        device = folder / f"nvidia{index}"
        if not device.exists():
            try:
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(195, index))
            except PermissionError:
                _missing("Slurm takes device files for GPUs, and root may make none here (CAP_MKNOD)")
    host = os.uname().nodename
    lines = [
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[number]} CPUs=16 RealMemory=64000 "
        f"Gres=gpu:h200:{GPUS}"
        for number in range(1, nodes + 1)
    ]
    books = ACCOUNTING.format(port=ports[nodes + 1], folder=folder) if accounting else ""
    (folder / "jwt.key").write_bytes(secrets.token_bytes(32))
    (folder / "jwt.key").chmod(0o600)
    parts = {"accounting": books, "tokens": TOKENS.format(folder=folder) if has_tokens() else ""}
    text = SLURM_CONF.format(host=host, port=ports[0], folder=folder, nodes="\n".join(lines), **parts)
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(f"NodeName=n[1-{nodes}] Name=gpu Type=h200 File={folder}/nvidia[0-{GPUS - 1}]\n")
    (folder / "topology.conf").write_text(
        f"SwitchName=leaf1 Nodes=n1\nSwitchName=leaf2 Nodes=n[2-{nodes}]\nSwitchName=spine Switches=leaf[1-2]\n"
    )
    (folder / "state").mkdir(exist_ok=True)


def _start_munge(cluster: Cluster) -> None:
    folder = cluster.folder
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    options = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    cluster.start("munged", "munged", "-F", "--force", "-S", folder / "munge.sock", *options)
    until((folder / "munge.sock").exists, folder)


def _start_accounting(cluster: Cluster, ports: list[int]) -> None:
    """MariaDB and slurmdbd, with the cluster and one account known to them before slurmctld asks."""
    folder, database = cluster.folder, ports[-1]
    tables, scratch = folder / "tables", folder / "scratch"
    scratch.mkdir()
    # In a folder that several share, each that starts removes the temporary tables of the others.
    where = [f"--datadir={tables}", f"--tmpdir={scratch}"]
    made = subprocess.run(
        ["mariadb-install-db", "--no-defaults", *where, "--auth-root-authentication-method=normal"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert made.returncode == 0, made.stdout
    where += [f"--socket={folder}/db.sock", f"--port={database}", "--bind-address=127.0.0.1"]
    cluster.start("mariadbd", "mariadbd", "--no-defaults", "--user=root", *where, f"--pid-file={folder}/db.pid")
    until((folder / "db.sock").exists, folder)
    conf = folder / "slurmdbd.conf"
    conf.write_text(SLURMDBD_CONF.format(folder=folder, port=ports[-2], database=database))
    conf.chmod(0o600)
    cluster.start("slurmdbd", "slurmdbd", "-D")
    until(
        lambda: (
            "probe" in _prints(cluster, "sacctmgr", "-i", "-n", "-P", "add", "cluster", "probe")
            or _is_registered(cluster)
        )
    )
    cluster.ask("sacctmgr", "-i", "add", "account", "llm", "cluster=probe")
    cluster.ask("sacctmgr", "-i", "add", "user", "root", "account=llm", "cluster=probe")


def _is_registered(cluster: Cluster) -> bool:
    return "probe" in _prints(cluster, "sacctmgr", "-n", "-P", "show", "cluster", "format=cluster")


def _prints(cluster: Cluster, *command: str) -> str:
    """What a command prints, or nothing while it cannot say."""
    try:
        return cluster.ask(*command)
    except (AssertionError, subprocess.TimeoutExpired):
        return ""


def until(condition: Callable[[], object], folder: Path | None = None, *, seconds: float = READY_SECONDS) -> None:
    def ends_of_logs() -> str:
        logs = sorted((*folder.glob("*.out"), *folder.glob("*.log"))) if folder is not None else []
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-600:]}" for path in logs)

    waiting.until(condition, what=ends_of_logs, timeout_seconds=seconds, interval_seconds=waiting.PROGRAM_SECONDS)
