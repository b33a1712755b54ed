"""A program of this machine that runs on and writes lines for as long as we want to hear them.

`commands` is for programs that answer and end; this is for `journalctl --follow` and `dcgmi dmon`. Nothing here
waits for the program: reading gives what is there, and closing gives up a child that does not die at once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress

from watchkeeper.agent.kernel import kernel_follow

READ_BYTES = 1 << 16
MAX_COMPLAINT_BYTES = 4_096
# How often a child that says nothing is looked at: it may have complained and wait for ever.
LOOK_SECONDS = 5.0
# A killed child is gone within milliseconds, unless it sits in the kernel.
LAST_SECONDS = 0.5


class StreamingProcess:
    """One such program; OSError if it cannot be started."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._complaint = os.memfd_create(os.path.basename(arguments[0]))
        try:
            self._child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._complaint,
                bufsize=0,
                start_new_session=True,
                env=environment,
            )
        except OSError:
            os.close(self._complaint)
            raise
        assert self._child.stdout is not None
        self._descriptor = self._child.stdout.fileno()
        os.set_blocking(self._descriptor, False)

    async def lines(self, needles: tuple[bytes, ...] = ()) -> AsyncGenerator[bytes | None, None]:
        """Lines with one of the needles, or all of them, until it ends; None each time it was silent for a while."""
        pending = b""
        while True:
            try:
                block = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                if not await kernel_follow.wait_readable(self._descriptor, LOOK_SECONDS):
                    yield None
                continue
            if not block:
                return
            *whole, pending = kernel_follow.lines_of_interest(pending + block, needles)
            for line in whole:
                if not needles or any(needle in line for needle in needles):
                    yield line
            pending = pending[-READ_BYTES:]
            # A burst is always readable: without this nothing else would get its turn.
            await asyncio.sleep(0)

    def complaint(self) -> str:
        """What it has said on its standard error."""
        return os.pread(self._complaint, MAX_COMPLAINT_BYTES, 0).decode("utf-8", "replace").strip()

    def close(self) -> int | None:
        """End it; its exit status if it had ended by itself. One that does not die at once is left to the kernel."""
        status = self._child.poll()
        self._child.kill()
        assert self._child.stdout is not None
        self._child.stdout.close()
        os.close(self._complaint)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(LAST_SECONDS)
        return status
