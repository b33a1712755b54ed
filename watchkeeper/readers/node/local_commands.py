"""What this machine says about itself: a few read-only commands, each with a time limit, as named texts.

The doctor asks when nothing was handed in. A command that hangs in the driver cannot be killed; it is left
alone after its time, and that it hung is part of the answer.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TIMEOUT_SECONDS = 20.0
# A process that waits in the driver does not even notice the kill.
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


# Without it nobody has looked at the GPUs, whatever the logs say.
NEEDED = "nvidia-smi"


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed; `text` ends with a sentence of ours if it did not end in time."""

    command: str
    text: bytes


def run_commands(
    commands: Sequence[Sequence[str]] = COMMANDS, timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[CommandOutput]:
    """Every command that exists here, one after the other."""
    for command in commands:
        if shutil.which(command[0]) is not None:
            yield CommandOutput(" ".join(command), _run(command, timeout_seconds))


def missing_commands() -> tuple[str, ...]:
    """What cannot be asked here although the answer hangs on it."""
    if shutil.which(NEEDED) is not None:
        return ()
    return (f"{NEEDED} is not here: nobody has looked at the GPUs. `watchkeeper scan` asks the driver without it",)


def _run(command: Sequence[str], timeout_seconds: float) -> bytes:
    # A file takes the output, so that nobody waits for the end of a pipe that a hung process holds open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        late = b""
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(AFTER_KILL_SECONDS)
            late = f"\n{command[0]} timed out after {timeout_seconds:g} seconds\n".encode()
        output.seek(0)
        return output.read(MAX_BYTES) + late
