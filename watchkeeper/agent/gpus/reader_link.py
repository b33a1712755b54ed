"""The agent's end of one reader process: starts it, sends requests, reads messages and kills it.

Nothing here waits for the driver: the sampler polls `fileno` and decides with `agent.gpus.reader_watch` when a call has
hung. A process that is stuck in the kernel gets SIGKILL, its pipes are closed, and `has_exited` is checked until it is
true.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from watchkeeper.errors import CollectError
from watchkeeper.readers.nvml import families

# Without `site`: what a distribution or an image adds to the start of every Python costs 2.8 MiB on the H200 machine.
# Without the working directory: no file in it can replace a module.
PYTHON_ARGUMENTS = ("-S", "-P", "-m", "watchkeeper.agent.gpus.reader_child")
# Longer than any function name in nvml.h.
CALL_NAME_BYTES = 64
READ_BYTES = 1 << 16
# One GPU with all its MIG instances answers with about ten KiB.
MAX_LINE_BYTES = 1 << 20


class ReaderExited(CollectError):
    """The reader process exited or broke the protocol."""


class ReaderLink:
    def __init__(
        self,
        nvml_families: Sequence[families.NvmlFamily],
        *,
        events: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._call_memory = os.memfd_create("watchkeeper-call")
        os.ftruncate(self._call_memory, CALL_NAME_BYTES)
        try:
            self._child = subprocess.Popen(
                [sys.executable, *PYTHON_ARGUMENTS, str(self._call_memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(self._call_memory,),
                env={**(os.environ if environment is None else environment), "PYTHONPATH": _module_path()},
                # Ctrl-C stops the agent, and the agent stops this process itself.
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._call_memory)
            raise ReaderExited(f"the reader process cannot be started: {error.strerror}") from error
        self._pending = b""
        self._is_open = True
        try:
            self._send({"families": [family.plain() for family in nvml_families], "events": events})
        except ReaderExited:
            self.abandon()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def fileno(self) -> int:
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    def request_reading(self, index: int, cadences: Iterable[str]) -> None:
        self._send({"read": index, "cadences": list(cadences)})

    def read_messages(self) -> list[dict[str, Any]]:
        """The messages that have arrived, after a poll; ReaderExited if the process closed its output."""
        received = os.read(self.fileno(), READ_BYTES)
        if not received:
            raise ReaderExited(f"the reader process exited {self._describe_exit()}")
        *lines, self._pending = (self._pending + received).split(b"\n")
        if (size := len(self._pending)) > MAX_LINE_BYTES:
            raise ReaderExited(f"the reader process sent a line of {size} bytes, the limit is {MAX_LINE_BYTES}")
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise ReaderExited(f"the reader process sent invalid JSON: {error}") from error

    def current_call(self) -> str:
        """The driver call that is running, or was the last to run."""
        if not self._is_open:
            return ""
        return os.pread(self._call_memory, CALL_NAME_BYTES, 0).rstrip(b"\0").decode("ascii", "replace")

    def abandon(self) -> None:
        """Kill the process and close its pipes; `has_exited` is true once it has exited."""
        if self._is_open:
            self._is_open = False
            self._child.kill()
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None
                pipe.close()
            os.close(self._call_memory)

    def has_exited(self) -> bool:
        return self._child.poll() is not None

    def wait_for_exit(self, seconds: float) -> bool:
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ReaderExited(f"the reader process exited {self._describe_exit()}") from error

    def _describe_exit(self) -> str:
        self.wait_for_exit(0.2)
        code = self._child.poll()
        if code is None:
            return "without an exit status yet"
        return f"by signal {-code}" if code < 0 else f"with exit status {code}"


def _module_path() -> str:
    """The module search path of this process, with the root of this package."""
    return os.pathsep.join(dict.fromkeys((*filter(None, sys.path), str(Path(__file__).resolve().parents[3]))))
