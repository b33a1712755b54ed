"""The settings of this node's kernel log, and how far it was spooled, so that a restarted agent does not send it again.

Each source has its own position: /dev/kmsg a sequence number, journald a cursor, a file an offset. The time since boot
is the same in every source, so that an agent that is configured for another source continues there.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from watchkeeper.kit import files
from watchkeeper.readers.logs import kernel_log


@dataclass(frozen=True, slots=True)
class KernelLogPosition:
    """The last record that was spooled; `cursor` is the source's own position after it."""

    source: str = ""
    sequence: int = -1
    since_boot_us: int = -1
    cursor: str = ""

    def for_source(self, source: str) -> KernelLogPosition:
        """The position for `source`; the position of another source keeps only the time since boot."""
        return self if self.source == source else KernelLogPosition(source, since_boot_us=self.since_boot_us)


@dataclass(frozen=True, slots=True)
class KernelLogSettings:
    """One node's kernel log: `source` is `kmsg`, `journald` or a file's path, `root` is the node's root directory."""

    source: str
    node: str
    boot: str
    kmsg: Path = Path("/dev/kmsg")
    root: Path = Path("/")
    position: KernelLogPosition = field(default_factory=KernelLogPosition)
    # Only lines that contain one of these are parsed; empty: every line.
    needles: tuple[bytes, ...] = kernel_log.NEEDLES
    monotonic: Callable[[], float] = monotonic


class PositionFile:
    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot

    def load(self) -> KernelLogPosition:
        try:
            content = json.loads(self._path.read_bytes())
            # A position of another boot is ignored.
            if content["boot"] != self._boot:
                return KernelLogPosition()
            # Files of version 0.1 have the boot and the sequence only.
            return KernelLogPosition(
                str(content.get("source", "kmsg")),
                int(content["sequence"]),
                int(content.get("since_boot_us", -1)),
                str(content.get("mark", "")),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return KernelLogPosition()

    def save(self, position: KernelLogPosition) -> None:
        plain = {"boot": self._boot, "source": position.source, "sequence": position.sequence}
        plain |= {"since_boot_us": position.since_boot_us, "mark": position.cursor}
        # If the position is lost, events are pushed again, and the hub recognises their ids. So the write is not
        # synced: a disk that hangs must not stop the agent from reporting it.
        with suppress(OSError):
            files.write_atomically(self._path, json.dumps(plain).encode(), syncs=False)


def build_sequence(microseconds: int, text: str) -> int:
    """A stable number for a line of a source without numbers; it also depends on the text."""
    return microseconds * 1000 + zlib.crc32(text.encode("utf-8", "replace")) % 1000
