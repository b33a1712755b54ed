"""Hubs that cost little to kill: forks of one process that has imported everything a hub needs.

A hub that dies after a second has spent most of its life on imports. `World.spawn` asks `Nursery` for the next one,
which is a process of its own from then on.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


class Forked:
    """A process that is not our child, as far as the harness needs one of `subprocess`."""

    def __init__(self, pid: int) -> None:
        self.pid, self._file, self._lock = pid, os.pidfd_open(pid), threading.Lock()

    def poll(self) -> int | None:
        return None if self._is_alive(0) else 0

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self._is_alive(0):
            signal.pidfd_send_signal(self._file, number)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended is known to nobody; TimeoutExpired when it did not."""
        if self._is_alive(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return 0

    def _is_alive(self, seconds: float | None) -> bool:
        if self._file < 0:
            return False
        look = select.poll()
        look.register(self._file, select.POLLIN)
        if not look.poll(None if seconds is None else 1000 * seconds):
            return True
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
        return False


class Nursery:
    def __init__(self, log: Path, environment: Mapping[str, str] | None) -> None:
        with log.open("ab") as log_file:
            line = [sys.executable, "-m", "tests.faults.hub"]
            pipe = subprocess.PIPE
            self._parent = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=log_file, env=environment, text=True)

    def bear(self, arguments: Sequence[str]) -> Forked:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write("\t".join(arguments) + "\n")
        self._parent.stdin.flush()
        return Forked(int(self._parent.stdout.readline()))

    def close(self) -> None:
        self._parent.communicate()


def serve() -> None:
    """For each line of arguments a hub, whose process is told; until there are no more lines."""
    from tests.faults import hub

    # Nobody waits for them, and a zombie would look alive.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(2, 1)
            hub.main(*line.rstrip("\n").split("\t"))
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
