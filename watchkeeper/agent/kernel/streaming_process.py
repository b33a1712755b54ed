"""Runs a program that prints lines until it is stopped, such as `journalctl --follow` or `dcgmi dmon`.

`kit.commands` is for programs that print and exit. Nothing here waits for the program: reading returns what is
available, and closing abandons a process that does not exit at once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress

from watchkeeper.agent.kernel import kernel_follow

READ_BYTES = 1 << 16
MAX_ERROR_BYTES = 4_096
# After this time without output, the caller checks standard error: the program may have failed and wait forever.
SILENCE_SECONDS = 5.0
# A killed process exits within milliseconds, unless it waits in the kernel.
KILL_SECONDS = 0.5


class StreamingProcess:
    """A running program; OSError if it cannot be started."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._error_file = os.memfd_create(os.path.basename(arguments[0]))
        try:
            self._child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._error_file,
                bufsize=0,
                start_new_session=True,
                env=environment,
            )
        except OSError:
            os.close(self._error_file)
            raise
        assert self._child.stdout is not None
        self._descriptor = self._child.stdout.fileno()
        os.set_blocking(self._descriptor, False)

    async def lines(self, needles: tuple[bytes, ...] = ()) -> AsyncGenerator[bytes | None, None]:
        """Lines that contain a needle, or all lines, until the program exits; None after each SILENCE_SECONDS."""
        pending = b""
        while True:
            try:
                block = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                if not await kernel_follow.wait_readable(self._descriptor, SILENCE_SECONDS):
                    yield None
                continue
            if not block:
                return
            *whole, pending = kernel_follow.select_lines(pending + block, needles)
            for line in whole:
                if not needles or any(needle in line for needle in needles):
                    yield line
            pending = pending[-READ_BYTES:]
            # During a burst the file is always readable: let other tasks run.
            await asyncio.sleep(0)

    def read_errors(self) -> str:
        return os.pread(self._error_file, MAX_ERROR_BYTES, 0).decode("utf-8", "replace").strip()

    def close(self) -> int | None:
        """Kill the program and return its exit status if it had exited before; do not wait for it to exit."""
        status = self._child.poll()
        self._child.kill()
        assert self._child.stdout is not None
        self._child.stdout.close()
        os.close(self._error_file)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(KILL_SECONDS)
        return status
