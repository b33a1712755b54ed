"""Asking a program of this machine, with a deadline that holds even when the program sits in the kernel.

A child in an uninterruptible wait cannot be killed, and waiting for it would hang us as well. So it is sent
SIGKILL and left behind; `Commands` remembers it and does not ask the same thing again while it is still there.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# Enough for every listing we ask for; a program that writes more is cut off.
MAX_OUTPUT_BYTES = 1 << 20
# Children that are stuck at the same time; beyond that nothing new is asked.
MAX_STUCK = 16


class CommandOutcome(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    NOT_FOUND = "absent"
    TIMED_OUT = "late"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a program said; `text` is its output where it answered, and its complaint where it failed."""

    outcome: CommandOutcome
    text: str = ""
    is_truncated: bool = False


@dataclass(slots=True)
class CommandRunner:
    """One for each thread that asks."""

    seconds: float = 2.0
    max_output_bytes: int = MAX_OUTPUT_BYTES
    # None: our own environment.
    environment: Mapping[str, str] | None = None
    _stuck: dict[Hashable, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def stuck_count(self) -> int:
        self._stuck = {key: child for key, child in self._stuck.items() if child.poll() is None}
        return len(self._stuck)

    def run(self, arguments: Sequence[str]) -> CommandResult:
        """Run a program and give its answer, within the deadline in any case."""
        key = tuple(arguments)
        if self.stuck_count >= MAX_STUCK or key in self._stuck:
            return CommandResult(CommandOutcome.TIMED_OUT, "an earlier call is still stuck")
        try:
            child = subprocess.Popen(
                key,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self.environment,
            )
        except OSError as error:
            return CommandResult(CommandOutcome.NOT_FOUND, f"{arguments[0]}: {error.strerror}")
        until = time.monotonic() + self.seconds
        text = self._read(child, until)
        if text is None:
            return self._leave(key, child)
        is_cut = len(text) > self.max_output_bytes
        if is_cut:
            child.kill()
        assert child.stdout is not None
        child.stdout.close()
        try:
            child.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return self._leave(key, child)
        words = text[: self.max_output_bytes].decode("utf-8", "replace")
        return CommandResult(
            CommandOutcome.ANSWERED if child.returncode == 0 or is_cut else CommandOutcome.FAILED, words, is_cut
        )

    def _read(self, child: subprocess.Popen[bytes], until: float) -> bytes | None:
        """What a child writes until it ends or has written too much; None when its time is over."""
        assert child.stdout is not None
        text = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(child.stdout, selectors.EVENT_READ)
            while len(text) <= self.max_output_bytes:
                left = until - time.monotonic()
                # A program that never stops writing is always ready, and late all the same.
                if left <= 0 or not ready.select(left):
                    return None
                piece = os.read(child.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                text += piece
        return bytes(text)

    def _leave(self, key: Hashable, child: subprocess.Popen[bytes]) -> CommandResult:
        child.kill()
        assert child.stdout is not None
        child.stdout.close()
        # A child that can be killed is gone in a moment.
        until = time.monotonic() + 0.2
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        if child.poll() is None:
            self._stuck[key] = child
        return CommandResult(CommandOutcome.TIMED_OUT, f"no answer within {self.seconds:g} s")
