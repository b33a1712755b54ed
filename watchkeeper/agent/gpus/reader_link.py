"""The agent's end of one reader child: start it, ask it, hear it, give it up.

Nothing here waits for the driver: the sampler polls `fileno` and decides, with `agent.gpus.reader_watch`,
how long is too long. A child that is stuck in the kernel cannot be killed; it is sent SIGKILL, its
pipes are closed, and it is looked at now and then until it is gone.
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

# Without `site`: what a distribution or an image hangs into the start of every Python costs the reader 2.8 MiB on the
# H200's machine. And without the working directory, so that no file in it passes for a module.
START = ("-S", "-P", "-m", "watchkeeper.agent.gpus.reader_child")
# Long enough for the longest name in nvml.h.
NOTE_BYTES = 64
READ_BYTES = 1 << 16
# One GPU with all its slices answers in some ten KiB.
MAX_LINE_BYTES = 1 << 20


class ReaderGone(CollectError):
    """The child closed its end or broke the protocol."""


class ReaderLink:
    """One child, which reads these families."""

    def __init__(
        self, wanted: Sequence[families.NvmlFamily], *, events: bool, environment: Mapping[str, str] | None = None
    ) -> None:
        self._note = os.memfd_create("watchkeeper-call")
        os.ftruncate(self._note, NOTE_BYTES)
        try:
            self._child = subprocess.Popen(
                [sys.executable, *START, str(self._note)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(self._note,),
                env={**(os.environ if environment is None else environment), "PYTHONPATH": _own_path()},
                # A Ctrl-C for the agent is not one for us: the agent ends its child itself.
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._note)
            raise ReaderGone(f"the reader cannot be started: {error.strerror}") from error
        self._pending = b""
        self._is_open = True
        try:
            self._send({"families": [family.plain() for family in wanted], "events": events})
        except ReaderGone:
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
        """The messages that are there now, after a poll; ReaderGone at the end of them."""
        received = os.read(self.fileno(), READ_BYTES)
        if not received:
            raise ReaderGone(f"the reader ended {self._how_it_ended()}")
        *lines, self._pending = (self._pending + received).split(b"\n")
        if len(self._pending) > MAX_LINE_BYTES:
            raise ReaderGone(f"the reader sent a line of {len(self._pending)} bytes, the limit is {MAX_LINE_BYTES}")
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise ReaderGone(f"the reader sent something else than JSON: {error}") from error

    def current_call(self) -> str:
        """The driver call that the child is in, or was last in."""
        return os.pread(self._note, NOTE_BYTES, 0).rstrip(b"\0").decode("ascii", "replace") if self._is_open else ""

    def abandon(self) -> None:
        """Kill the child and forget its pipes; `is_gone` says when it is really gone."""
        if self._is_open:
            self._is_open = False
            self._child.kill()
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None
                pipe.close()
            os.close(self._note)

    def is_gone(self) -> bool:
        return self._child.poll() is not None

    def wait_gone(self, seconds: float) -> bool:
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
            raise ReaderGone(f"the reader ended {self._how_it_ended()}") from error

    def _how_it_ended(self) -> str:
        self.wait_gone(0.2)
        code = self._child.poll()
        if code is None:
            return "without a word"
        return f"by signal {-code}" if code < 0 else f"with exit status {code}"


def _own_path() -> str:
    """Where this process finds its modules, this package first of all."""
    root = str(Path(__file__).resolve().parents[3])
    return os.pathsep.join(dict.fromkeys((*filter(None, sys.path), root)))
