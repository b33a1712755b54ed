"""Run a program with a timeout that works even when the program hangs in the kernel.

A child in an uninterruptible wait cannot be killed, and waiting for it would hang us as well. So it gets SIGKILL and is
abandoned; `CommandRunner` does not start the same command again while that child exists.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# Enough for every listing that we read; longer output is truncated.
MAX_OUTPUT_BYTES = 1 << 20
# The limit of stuck children; above it no command is started.
MAX_STUCK = 16


class CommandOutcome(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    NOT_FOUND = "absent"
    TIMED_OUT = "late"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command; `text` is its output, or the error if it failed."""

    outcome: CommandOutcome
    text: str = ""
    is_truncated: bool = False


@dataclass(slots=True)
class CommandRunner:
    """Runs commands; each thread has its own."""

    timeout_seconds: float = 2.0
    max_output_bytes: int = MAX_OUTPUT_BYTES
    # None: the environment of this process.
    environment: Mapping[str, str] | None = None
    _stuck: dict[Hashable, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def stuck_count(self) -> int:
        self._stuck = {key: child for key, child in self._stuck.items() if child.poll() is None}
        return len(self._stuck)

    def run(self, arguments: Sequence[str]) -> CommandResult:
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
        deadline = time.monotonic() + self.timeout_seconds
        output = self._read_output(child, deadline)
        if output is None:
            return self._abandon(key, child)
        is_truncated = len(output) > self.max_output_bytes
        if is_truncated:
            child.kill()
        assert child.stdout is not None
        child.stdout.close()
        try:
            child.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return self._abandon(key, child)
        outcome = CommandOutcome.ANSWERED if child.returncode == 0 or is_truncated else CommandOutcome.FAILED
        return CommandResult(outcome, output[: self.max_output_bytes].decode("utf-8", "replace"), is_truncated)

    def _read_output(self, child: subprocess.Popen[bytes], deadline: float) -> bytes | None:
        """The output of a child until it ends or exceeds the limit; None at the deadline."""
        assert child.stdout is not None
        output = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while len(output) <= self.max_output_bytes:
                remaining_seconds = deadline - time.monotonic()
                # A program that never stops writing is always ready; the deadline applies to it too.
                if remaining_seconds <= 0 or not selector.select(remaining_seconds):
                    return None
                chunk = os.read(child.stdout.fileno(), 1 << 16)
                if not chunk:
                    break
                output += chunk
        return bytes(output)

    def _abandon(self, key: Hashable, child: subprocess.Popen[bytes]) -> CommandResult:
        child.kill()
        assert child.stdout is not None
        child.stdout.close()
        # A child that can be killed exits within milliseconds.
        kill_deadline = time.monotonic() + 0.2
        while child.poll() is None and time.monotonic() < kill_deadline:
            time.sleep(0.005)
        if child.poll() is None:
            self._stuck[key] = child
        return CommandResult(CommandOutcome.TIMED_OUT, f"no answer within {self.timeout_seconds:g} s")
