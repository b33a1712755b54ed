"""Follows the kernel's lines in a file that syslog writes, through rotation and truncation.

For nodes that have neither a readable /dev/kmsg nor a journal. Every line with the tag `kernel:` counts as the
kernel's, because a file does not show which program wrote a line.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.agent.kernel import kernel_follow
from watchkeeper.agent.kernel.kernel_position import KernelLogPosition, KernelLogSettings, build_sequence
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, logs
from watchkeeper.readers.logs import kernel_lines

log = logging.getLogger(__name__)

SOURCE = "file"
READ_BYTES = 1 << 16
# When the clock is set after boot, the boot can appear to be this much later than its first log lines.
BOOT_SLACK = timedelta(minutes=2)


class OpenLogFile:
    """An open file of the log; it stays the same file when it is renamed."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            problem = f"the kernel log cannot be opened: {error.strerror}"
            remedy = "Name the file that syslog writes kernel lines to, and let the agent's user read it"
            raise CollectError(problem, where=str(path), remedy=remedy) from error
        self.inode = os.fstat(self._descriptor).st_ino
        self._offset = offset
        self._pending = b""

    def read_lines(self, needles: tuple[bytes, ...]) -> Iterator[tuple[bytes, int]] | None:
        """The next complete lines with a needle, each with the offset after it; None at the end of the file."""
        block = os.pread(self._descriptor, READ_BYTES, self._offset + len(self._pending))
        if not block:
            return None
        block = self._pending + block
        whole_bytes = block.rfind(b"\n") + 1
        start, self._offset, self._pending = self._offset, self._offset + whole_bytes, block[whole_bytes:]
        if len(self._pending) > READ_BYTES:
            # No log line is that long: skip it.
            self._offset, self._pending = self._offset + len(self._pending), b""
        if needles and not any(needle in block for needle in needles):
            return iter(())
        return _split_lines(block[:whole_bytes], start)

    def was_truncated(self) -> bool:
        """True once after the file became shorter than the read offset; reading restarts at offset 0."""
        if os.fstat(self._descriptor).st_size >= self._offset + len(self._pending):
            return False
        self._offset, self._pending = 0, b""
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def _split_lines(block: bytes, offset: int) -> Iterator[tuple[bytes, int]]:
    for line in block.split(b"\n")[:-1]:
        offset += len(line) + 1
        yield line, offset


async def follow_file(
    settings: KernelLogSettings, *, time: clock.Clock
) -> AsyncGenerator[kernel_follow.KernelRecord, None]:
    """Every kernel line of this boot after the position; CollectError if the file cannot be opened."""
    path = Path(settings.source)
    file = _open_at_position(path, settings.position)
    try:
        is_replaced = False
        while True:
            lines = file.read_lines(settings.needles)
            if lines is not None:
                for line, offset in lines:
                    record = _build_record(line, settings, cursor=f"{file.inode}:{offset}", now=time.now())
                    if record is not None:
                        yield record
                # During a burst the file is always readable: let other tasks run.
                await asyncio.sleep(0)
                continue
            if file.was_truncated():
                log.info("kernel log file truncated", extra=logs.fields(path=str(path)))
                continue
            if is_replaced:
                # Opened before the old file is closed, so that an error here cannot close one descriptor twice.
                replacement = OpenLogFile(path)
                file.close()
                file, is_replaced = replacement, False
                continue
            # The writer may still write to the old file: read it again after the pause before it is closed.
            is_replaced = _read_inode(path) not in (None, file.inode)
            await time.sleep(kernel_follow.POLL_SECONDS)
    finally:
        file.close()


def _open_at_position(path: Path, position: KernelLogPosition) -> OpenLogFile:
    """Open the file of the position (`inode:offset`), which may have been rotated; otherwise the log from its start."""
    inode, _, offset = position.cursor.partition(":")
    if inode.isdigit() and offset.isdigit():
        for candidate in (path, *sorted(path.parent.glob(f"{path.name}[.-]*"))):
            if _read_inode(candidate) == int(inode) and candidate.stat().st_size >= int(offset):
                return OpenLogFile(candidate, int(offset))
    return OpenLogFile(path)


def _read_inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _build_record(
    line: bytes, settings: KernelLogSettings, *, cursor: str, now: datetime
) -> kernel_follow.KernelRecord | None:
    """The line as a /dev/kmsg record; None if it is a program's, of another boot, or was read before."""
    if settings.needles and not any(needle in line for needle in settings.needles):
        return None
    entry = kernel_lines.read_syslog_line(line.decode("utf-8", "replace"), now)
    booted_at = now - timedelta(seconds=settings.monotonic())
    if entry is None or entry.at < booted_at - BOOT_SLACK:
        return None
    since_boot_us = entry.since_boot_us
    if since_boot_us is None:
        # Two equal lines of the same second are one event: nothing in the file distinguishes them.
        since_boot_us = max(0, int((entry.at - booted_at).total_seconds() * 1e6))
        sequence = build_sequence(int(entry.at.timestamp() * 1e6), entry.text)
    else:
        sequence = build_sequence(since_boot_us, entry.text)
    if since_boot_us <= settings.position.since_boot_us and not settings.position.cursor:
        return None
    record = f"6,{sequence},{since_boot_us},-;{entry.text}"
    return kernel_follow.KernelRecord(settings.node, settings.boot, record, entry.at, sequence, SOURCE, cursor)
