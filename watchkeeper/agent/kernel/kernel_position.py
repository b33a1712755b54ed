"""Up to where this machine's kernel log has been spooled, so that a restarted agent does not send it all again.

Each source has its own way to go on: /dev/kmsg a sequence number, journald a cursor, a file a place in it. The
kernel's time since boot is kept beside it: it is the same in every source, so that an agent that is told to use
another one goes on where the one before ended. A position of another boot is none.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.kit import files


@dataclass(frozen=True, slots=True)
class Position:
    """The last record that was spooled; `mark` is the source's own word for where it stands."""

    source: str = ""
    sequence: int = -1
    since_boot_us: int = -1
    mark: str = ""

    def of(self, source: str) -> Position:
        """The position for this source: of another one only the time is worth something."""
        return self if self.source == source else Position(source, since_boot_us=self.since_boot_us)


class PositionFile:
    """The position on disk."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot

    def load(self) -> Position:
        try:
            kept = json.loads(self._path.read_bytes())
            if kept["boot"] != self._boot:
                return Position()
            # Files of version 0.1 have the first two only.
            return Position(
                str(kept.get("source", "kmsg")),
                int(kept["sequence"]),
                int(kept.get("since_boot_us", -1)),
                str(kept.get("mark", "")),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return Position()

    def save(self, position: Position) -> None:
        plain = {"boot": self._boot, "source": position.source, "sequence": position.sequence}
        plain |= {"since_boot_us": position.since_boot_us, "mark": position.mark}
        # A position that is not written, or lost, costs a repeated push, which the hub recognises by its ids. So a disk
        # that hangs is not waited for: it would keep the agent from telling of it.
        with suppress(OSError):
            files.write_atomically(self._path, json.dumps(plain).encode(), syncs=False)


def sequence_of(micros: int, text: str) -> int:
    """A number for a source that counts nothing: the same whenever and from wherever the line is read again.

    Two lines of one microsecond differ in their text.
    """
    return micros * 1000 + zlib.crc32(text.encode("utf-8", "replace")) % 1000
