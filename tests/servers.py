"""Real programs that tests talk to: finding them, starting them, stopping them.

`require("promtool")` gives the path, or skips the test by name with the way to get the program; with
REQUIRE_SERVERS=1 that skip is a failure. `running` starts a server on a free loopback port and waits until
it is ready. `python -m tests.servers` prints the packages that are missing, for scripts/bootstrap.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.waiting import PROGRAM_SECONDS, until

STOP_SECONDS = 15.0
READY_SECONDS = 90.0
FIRST_PORT, LAST_PORT = 20_000, 32_000
MOST_WORKERS = 4


def _own_ports() -> range:
    """The ports of this process: tests that run beside others have a share of their own, also where nobody listens."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not worker:
        return range(FIRST_PORT, LAST_PORT)
    size = (LAST_PORT - FIRST_PORT) // MOST_WORKERS
    first = FIRST_PORT + int(worker) % MOST_WORKERS * size
    return range(first, first + size)


# Two runs beside each other begin at different places.
_ports = itertools.islice(itertools.cycle(_own_ports()), os.getpid() * 97 % len(_own_ports()), None)


@dataclass(frozen=True, slots=True)
class Program:
    """Names under which a program may be installed, and the packages that may bring it, best first."""

    names: tuple[str, ...]
    packages: tuple[str, ...]


PROGRAMS = {
    # Debian 12 and Ubuntu 24.04 ship promtool inside prometheus, Debian 13 in a package of its own.
    "promtool": Program(("promtool",), ("promtool", "prometheus")),
    "prometheus": Program(("prometheus",), ("prometheus",)),
    # One Debian package brings the server, vmagent and vmalert.
    "victoria-metrics": Program(("victoria-metrics",), ("victoria-metrics",)),
    "vmagent": Program(("vmagent",), ("victoria-metrics",)),
    "vmalert": Program(("vmalert",), ("victoria-metrics",)),
    "alertmanager": Program(("prometheus-alertmanager", "alertmanager"), ("prometheus-alertmanager",)),
    # A simulated InfiniBand fabric, the subnet manager that brings it up, and the tools that look at it.
    "ibsim": Program(("ibsim",), ("ibsim-utils",)),
    "opensm": Program(("opensm", "/usr/sbin/opensm"), ("opensm",)),
    "node-exporter": Program(("prometheus-node-exporter", "node_exporter"), ("prometheus-node-exporter",)),
    "ibnetdiscover": Program(("ibnetdiscover", "/usr/sbin/ibnetdiscover"), ("infiniband-diags",)),
    # A Slurm of several nodes on one machine; accounting needs slurmdbd and a database.
    "munged": Program(("munged", "/usr/sbin/munged"), ("munge",)),
    "slurmctld": Program(("slurmctld", "/usr/sbin/slurmctld"), ("slurmctld",)),
    "slurmd": Program(("slurmd", "/usr/sbin/slurmd"), ("slurmd",)),
    "squeue": Program(("squeue",), ("slurm-client",)),
    "slurmrestd": Program(("slurmrestd", "/usr/sbin/slurmrestd"), ("slurmrestd",)),
    # Not a program: what lets Slurm check a JWT.
    "auth_jwt.so": Program(
        tuple(f"/usr/lib/{machine}-linux-gnu/slurm-wlm/auth_jwt.so" for machine in ("x86_64", "aarch64")),
        ("slurm-wlm-jwt-plugin",),
    ),
    "slurmdbd": Program(("slurmdbd", "/usr/sbin/slurmdbd"), ("slurmdbd",)),
    "mariadbd": Program(("mariadbd", "/usr/sbin/mariadbd"), ("mariadb-server",)),
    # Debian puts the server's programs where no PATH looks; they differ by the release's version.
    "postgres": Program(
        (*(f"/usr/lib/postgresql/{version}/bin/postgres" for version in range(20, 12, -1)), "postgres"),
        ("postgresql",),
    ),
    # What a Kubernetes API server keeps its objects in; the server itself is built by scripts/kubernetes.
    "etcd": Program(("etcd",), ("etcd-server",)),
    "shellcheck": Program(("shellcheck",), ("shellcheck",)),
    # Reads a compose file without a daemon; version 1 of Debian 12 as well as version 2.
    "docker-compose": Program(
        ("docker-compose", "/usr/libexec/docker/cli-plugins/docker-compose"),
        ("docker-compose",),
    ),
    "amtool": Program(("amtool",), ("prometheus-alertmanager",)),
    "systemd-analyze": Program(("systemd-analyze",), ("systemd",)),
    # Ubuntu's chromium is a snap that apt cannot install in a container; Google's name is accepted where it exists.
    "chromium": Program(("chromium", "chromium-browser", "google-chrome"), ("chromium",)),
}


def find(name: str) -> Path | None:
    names = PROGRAMS[name].names
    there = (known for known in names if known.startswith("/") and Path(known).is_file())
    return next((Path(path) for path in (*there, *map(shutil.which, names)) if path), None)


def require(name: str) -> Path:
    """The program's path; without it the test is skipped, or failed where servers are required."""
    path = find(name)
    if path is not None:
        return path
    package = PROGRAMS[name].packages[-1]
    why = f"{name} is not installed. `sudo apt-get install {package}` gets it; so does `make test` as root"
    if os.environ.get("REQUIRE_SERVERS") == "1":
        pytest.fail(f"{why} (REQUIRE_SERVERS=1)", pytrace=False)
    pytest.skip(why)


def free_port() -> int:
    """A port that is free now and that this process gave to nobody yet, so that nobody who starts slowly loses it."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row, below the range that outgoing connections take theirs from."""
    for _ in range(LAST_PORT - FIRST_PORT):
        first = next(_ports)
        if first + count <= _own_ports().stop and all(_is_free(port) for port in range(first, first + count)):
            for _ in range(count - 1):
                next(_ports)
            return first
    raise RuntimeError(f"no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as trial, contextlib.suppress(OSError):
        trial.bind(("", port))
        return True
    return False


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], *, ready_url: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server from the moment `ready_url` answers until the block ends; its output is in `log`."""
    with log.open("wb") as output:
        words = [str(part) for part in command]
        server = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            wait_until_ready(server, ready_url, log=log)
            yield server
        finally:
            stop(server)


def wait_until_ready(server: subprocess.Popen[bytes], url: str, *, log: Path) -> None:
    def is_ready() -> bool:
        if server.poll() is not None:
            pytest.fail(f"{server.args!r} ended with {server.returncode}:\n{log.read_text()[-2000:]}", pytrace=False)
        # URLError, a refused connection and a timeout are all OSError.
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return True
        return False

    until(
        is_ready,
        what=lambda: f"an answer of {url}; the log says:\n{log.read_text()[-2000:]}\n",
        timeout_seconds=READY_SECONDS,
        interval_seconds=PROGRAM_SECONDS,
    )


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and end it when it does not listen."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def missing_packages() -> list[str]:
    """For each program that is not there, the first of its packages that apt knows."""
    return [
        next((package for package in program.packages if _apt_knows(package)), program.packages[-1])
        for name, program in PROGRAMS.items()
        if find(name) is None
    ]


def _apt_knows(package: str) -> bool:
    if shutil.which("apt-cache") is None:
        return False
    answer = subprocess.run(["apt-cache", "show", package], capture_output=True, check=False)
    return answer.returncode == 0 and bool(answer.stdout)


if __name__ == "__main__":
    sys.stdout.write(" ".join(missing_packages()))
