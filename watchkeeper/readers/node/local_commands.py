"""Run read-only commands on this node, each with a timeout, and return their output.

The doctor runs them if you give it no files. A command that hangs in the driver cannot be killed; after its timeout it
is left running, and the output says that it timed out.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TIMEOUT_SECONDS = 20.0
# A process that waits in the driver does not react to the kill.
AFTER_KILL_SECONDS = 1.0
MAX_BYTES = 64 << 20
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("dmesg",),
    ("journalctl", "-k", "-b", "--no-pager", "-n", "200000"),
    ("nvidia-smi",),
    ("nvidia-smi", "-q", "-x"),
    ("nvidia-smi", "nvlink", "--status"),
    ("ibstat",),
)
# Without it the GPUs are not checked.
REQUIRED_COMMAND = "nvidia-smi"


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command; a line that says so is appended if it timed out."""

    command: str
    text: bytes


def run_commands(
    commands: Sequence[Sequence[str]] = COMMANDS, timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[CommandOutput]:
    for command in commands:
        if shutil.which(command[0]) is not None:
            yield CommandOutput(" ".join(command), _run(command, timeout_seconds))


def find_missing_commands() -> tuple[str, ...]:
    """A problem for each required command that is not installed."""
    if shutil.which(REQUIRED_COMMAND) is not None:
        return ()
    return (f"{REQUIRED_COMMAND} is not installed: the GPUs were not checked. Run `watchkeeper scan` instead",)


def _run(command: Sequence[str], timeout_seconds: float) -> bytes:
    # The output goes to a file: a hung process would keep a pipe open and block the reader.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        timeout_note = b""
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(AFTER_KILL_SECONDS)
            timeout_note = f"\n{command[0]} timed out after {timeout_seconds:g} seconds\n".encode()
        output.seek(0)
        return output.read(MAX_BYTES) + timeout_note
