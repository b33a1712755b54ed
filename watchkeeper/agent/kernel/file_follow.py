"""Following the kernel's lines in a file that syslog writes, through rotation and truncation.

For machines that have neither a readable /dev/kmsg nor a journal. A file reaches back over boots, so lines from
before this boot are passed over. Whoever may write to the log with the tag `kernel:` is believed: a file cannot
tell the kernel from a program. `agent.kernel.kernel_sources` starts this.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic

from watchkeeper.agent.kernel import kernel_follow
from watchkeeper.agent.kernel.kernel_position import Position, sequence_of
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock, logs
from watchkeeper.readers.logs import syslog_line

log = logging.getLogger(__name__)

SOURCE = "file"
READ_BYTES = 1 << 16
# A clock that was set right after the boot makes the boot look this much later than its first lines.
BOOT_SLACK = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A log file of this machine; the position's mark is `inode:offset`."""

    path: Path
    node: str
    boot: str
    position: Position = field(default_factory=Position)
    needles: tuple[bytes, ...] = ()
    monotonic: Callable[[], float] = monotonic


class OpenFile:
    """One file of the log, which keeps its identity when it is renamed."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise CollectError(
                f"the kernel log cannot be opened: {error.strerror}",
                where=str(path),
                remedy="Name the file that syslog writes kernel lines to, and let the agent's user read it",
            ) from error
        self.inode = os.fstat(self._descriptor).st_ino
        self._offset = offset
        self._pending = b""

    def lines(self, needles: tuple[bytes, ...]) -> Iterator[tuple[bytes, int]] | None:
        """The next whole lines of interest, each with the offset behind it; None at the end of the file."""
        block = os.pread(self._descriptor, READ_BYTES, self._offset + len(self._pending))
        if not block:
            return None
        block = self._pending + block
        cut = block.rfind(b"\n") + 1
        start, self._offset, self._pending = self._offset, self._offset + cut, block[cut:]
        if len(self._pending) > READ_BYTES:
            # No line of a log is that long.
            self._offset, self._pending = self._offset + len(self._pending), b""
        if needles and not any(needle in block for needle in needles):
            return iter(())
        return _split(block[:cut], start)

    def was_truncated(self) -> bool:
        """True once after the file became shorter than what we have read of it; reading then begins anew."""
        if os.fstat(self._descriptor).st_size >= self._offset + len(self._pending):
            return False
        self._offset, self._pending = 0, b""
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def _split(block: bytes, offset: int) -> Iterator[tuple[bytes, int]]:
    for line in block.split(b"\n")[:-1]:
        offset += len(line) + 1
        yield line, offset


async def follow_file(source: FileSource, *, time: clock.Clock) -> AsyncGenerator[kernel_follow.KernelRecord, None]:
    """Every kernel line of this boot behind the position, for ever; CollectError if the file cannot be opened."""
    file = _resume(source)
    try:
        is_replaced = False
        while True:
            lines = file.lines(source.needles)
            if lines is not None:
                for line, offset in lines:
                    mark = f"{file.inode}:{offset}"
                    record = _record(line, source, mark=mark, now=time.now())
                    if record is not None:
                        yield record
                # A burst is always readable: without this nothing else would get its turn.
                await asyncio.sleep(0)
                continue
            if file.was_truncated():
                log.info("Kernel log file was truncated", extra=logs.fields(path=str(source.path)))
                continue
            if is_replaced:
                # Opened before the old one is closed: what is closed twice may be another's by then.
                fresh = OpenFile(source.path)
                file.close()
                file, is_replaced = fresh, False
                continue
            # The writer may still hold the old file: it is read once more after the pause, then left.
            is_replaced = _inode(source.path) not in (None, file.inode)
            await time.sleep(kernel_follow.POLL_SECONDS)
    finally:
        file.close()


def _resume(source: FileSource) -> OpenFile:
    """The file that the position is in, which may have been rotated since; otherwise the log from its start."""
    inode, _, offset = source.position.mark.partition(":")
    if inode.isdigit() and offset.isdigit():
        for path in (source.path, *sorted(source.path.parent.glob(f"{source.path.name}[.-]*"))):
            if _inode(path) == int(inode) and path.stat().st_size >= int(offset):
                return OpenFile(path, int(offset))
    return OpenFile(source.path)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _record(line: bytes, source: FileSource, *, mark: str, now: datetime) -> kernel_follow.KernelRecord | None:
    """The line in the shape of a /dev/kmsg record; None for another program's, another boot's, or one told already."""
    if source.needles and not any(needle in line for needle in source.needles):
        return None
    found = syslog_line.read_line(line.decode("utf-8", "replace"), now)
    booted_at = now - timedelta(seconds=source.monotonic())
    if found is None or found.at < booted_at - BOOT_SLACK:
        return None
    since_boot_us = found.since_boot_us
    if since_boot_us is None:
        # The same line of the same second twice is one event: the file holds nothing that tells them apart.
        since_boot_us = max(0, int((found.at - booted_at).total_seconds() * 1e6))
        sequence = sequence_of(int(found.at.timestamp() * 1e6), found.text)
    else:
        sequence = sequence_of(since_boot_us, found.text)
    if since_boot_us <= source.position.since_boot_us and not source.position.mark:
        return None
    return kernel_follow.KernelRecord(
        source.node,
        source.boot,
        f"6,{sequence},{since_boot_us},-;{found.text}",
        found.at,
        seq=sequence,
        source=SOURCE,
        mark=mark,
    )
