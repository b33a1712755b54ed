"""A private PostgreSQL for tests: a cluster in a temporary directory, on a socket and a free port of loopback.

`running` starts one; each test makes a database of its own with `Cluster.database`. PostgreSQL does not run as root,
so there the processes belong to `nobody`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests import servers
from tests.support.waiting import PROGRAM_SECONDS, until

SETTINGS = {
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
}


@dataclass
class Cluster:
    """One server; `stop` and `start` keep its port and what it holds."""

    folder: Path
    port: int
    program: Path
    _names: Iterator[int] = field(default_factory=itertools.count)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [self.program, "-D", self.folder / "cluster", "-p", str(self.port), "-h", "127.0.0.1"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*map(str, command), "-k", str(self.folder), *options], stdout=log, stderr=log, user=owner()
            )
        until(
            self._answers,
            what=lambda: (self.folder / "log").read_text()[-2000:],
            timeout_seconds=servers.READY_SECONDS,
            interval_seconds=PROGRAM_SECONDS,
        )

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.address("postgres")):
            return True
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all connections and stops; SIGQUIT does not even write down that it did."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def address(self, database: str) -> str:
        return f"postgresql://watchkeeper@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The address of a new, empty database."""
        name = f"t{next(self._names)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.address(name)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Nothing of the server moves, and no connection gets a process that does."""
        assert self._process is not None
        first = self._process.pid
        os.kill(first, signal.SIGSTOP)
        stopped = [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    def backends(self, database_address: str) -> list[int]:
        """The processes that serve a database's connections."""
        with psycopg.connect(database_address) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        return [row[0] for row in rows]


class Line:
    """A way to a server that can be cut: what was sent stays on its way, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._target, self._flows = port, threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._flows.clear()

    def mend(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        for connection in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                self._flows.wait()
                sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)


def owner() -> str | None:
    return "nobody" if os.geteuid() == 0 else None


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    program = servers.require("postgres").resolve()
    folder = Path(tempfile.mkdtemp(prefix="wk-pg-"))
    if owner() is not None:
        shutil.chown(folder, owner())
    init = [program.with_name("initdb"), "-D", folder / "cluster", "-U", "watchkeeper", "--no-sync", "-E", "UTF8"]
    cluster = Cluster(folder, servers.free_port(), program)
    try:
        subprocess.run([*map(str, init), "-A", "trust"], check=True, capture_output=True, user=owner(), cwd=folder)
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)
