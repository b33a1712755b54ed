"""Child processes for every call into a driver: requests and messages are JSON lines over pipes.

A process that hangs in a driver call cannot be interrupted, so each call runs in a child. Each child has a separate
session, so that Ctrl-C reaches only the command, which then kills all children.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[3]
# Appended to sys.path: in front, our packages would hide those of an environment with another Python, such as NumPy.
LAUNCH = """
import runpy, sys
sys.path.append(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)
"""
# Our children write no longer lines.
MAX_LINE_BYTES = 1 << 20
STDERR_BYTES = 64 << 10
KILL_WAIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """How to start a child; `python` is an interpreter with torch, `environment` extends the inherited one."""

    arguments: tuple[str, ...]
    python: str = sys.executable
    environment: Mapping[str, str] | None = None

    def command(self) -> list[str]:
        return [self.python, *self.arguments]


def module_program(name: str, *arguments: str, python: str = sys.executable) -> ChildProgram:
    return ChildProgram(("-u", "-c", LAUNCH, str(ROOT), f"watchkeeper.probe.{name}", *arguments), python)


@dataclass(frozen=True, slots=True)
class ChildMessage:
    """One message; `body` is None after the child exited, for `exit_reason`."""

    child: str
    body: Mapping[str, Any] | None
    exit_reason: str = ""


class Child:
    def __init__(self, name: str, program: ChildProgram) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._partial_line = b""
        self._popen = subprocess.Popen(
            program.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            env={**os.environ, **(program.environment or {})},
        )

    @property
    def output(self) -> IO[bytes]:
        assert self._popen.stdout is not None
        return self._popen.stdout

    def send(self, request: Mapping[str, Any]) -> None:
        """Write a request; if the child has exited, its output shows that."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(json.dumps(request).encode() + b"\n")
            self._popen.stdin.flush()

    def read_messages(self) -> Iterator[Mapping[str, Any]] | None:
        """The messages that can be read now, or None at the end of the output."""
        output_bytes = os.read(self.output.fileno(), 1 << 16)
        if not output_bytes:
            return None
        *whole_lines, self._partial_line = (self._partial_line + output_bytes).split(b"\n")
        self._partial_line = self._partial_line[-MAX_LINE_BYTES:]
        return filter(None, map(_parse_line, whole_lines))

    def kill(self) -> None:
        """Kill the child; do not wait longer if it is blocked in the kernel."""
        self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(KILL_WAIT_SECONDS)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._stderr.close()

    def exit_reason(self) -> str:
        """The exit status or signal, and the last line of standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(KILL_WAIT_SECONDS)
        code = self._popen.returncode
        status = "closed its output" if code is None else f"signal {-code}" if code < 0 else f"exit status {code}"
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_BYTES))
        error_lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return f"{status}: {error_lines[-1][:300]}" if error_lines else status


def _parse_line(line: bytes) -> Mapping[str, Any] | None:
    with contextlib.suppress(ValueError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    return None


class Children:
    """All children of a run; leaving the `with` block kills them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, Child] = {}
        self._messages: list[ChildMessage] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.kill(name)
        self._selector.close()

    def start(self, name: str, program: ChildProgram) -> None:
        try:
            child = Child(name, program)
        except OSError as error:
            self._messages.append(ChildMessage(name, None, f"{program.python}: {error.strerror}"))
            return
        self._running[name] = child
        self._selector.register(child.output, selectors.EVENT_READ, child)

    def send(self, name: str, request: Mapping[str, Any]) -> None:
        self._running[name].send(request)

    def kill(self, name: str) -> None:
        child = self._running.pop(name, None)
        if child is not None:
            self._selector.unregister(child.output)
            child.kill()

    def next_message(self, deadline: float) -> ChildMessage | None:
        """The next message of any child, or None when the monotonic clock has reached `deadline`."""
        while not self._messages:
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0 or not self._running:
                if remaining_seconds > 0:
                    time.sleep(min(remaining_seconds, 0.05))
                return None
            for key, _ in self._selector.select(remaining_seconds):
                self._read_output(key.data)
        return self._messages.pop(0)

    def _read_output(self, child: Child) -> None:
        messages = child.read_messages()
        if messages is not None:
            self._messages += [ChildMessage(child.name, message) for message in messages]
            return
        reason = child.exit_reason()
        self.kill(child.name)
        self._messages.append(ChildMessage(child.name, None, reason))
