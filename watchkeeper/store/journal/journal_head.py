"""The newest entry of a journal file, kept in a second file, so that lost entries are noticed.

SQLite drops what follows a damaged page of its write-ahead log, without an error: the journal is then shorter, and
intact by itself. The second file has two slots that are written in turn, so that a torn write leaves the other one. It
is synced once a second: a power failure loses at most its last second.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from watchkeeper.errors import StoreError
from watchkeeper.kit import logs, wire
from watchkeeper.store.journal.connection import JournalConnection

log = logging.getLogger(__name__)

SLOT_BYTES = 192
SYNC_SECONDS = 1.0
LOSS = "journal_loss"
LOSS_ACCEPTED = "journal_loss_accepted"
REMEDY = "Restore a backup, or accept the loss with `watchkeeper store accept-loss` while the hub is stopped"


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The number, hash and time of the newest entry, and the highest number of an incident."""

    seq: int
    hash: str
    at: str
    incident_number: int


@dataclass(frozen=True, slots=True)
class Loss:
    """What a journal has lost. With `is_gap`, the entries from `first` to `last`, whose hash is `hash`, are missing."""

    problem: str
    at: datetime
    first: int = 0
    last: int = 0
    hash: str = ""
    is_gap: bool = False
    incident_number: int = 0


class HeadFile:
    def __init__(self, journal: Path) -> None:
        self.path = journal.with_suffix(".head")
        self._descriptor = -1
        self._is_writable = True
        self._synced_at = 0.0

    def read(self) -> JournalHead | None:
        """The head; None if there is no file, ValueError if it is damaged."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"the head of the journal cannot be read: {error.strerror}", where=str(self.path)
            ) from error
        heads = [head for start in (0, SLOT_BYTES) if (head := _parse(content[start : start + SLOT_BYTES]))]
        if not heads and content:
            raise ValueError(f"{self.path} is damaged")
        return max(heads, key=lambda head: head.seq, default=None)

    def write(self, head: JournalHead) -> None:
        """Write the head after its commit; a failure is logged and does not undo the commit."""
        text = f"{head.seq} {head.hash} {head.at} {head.incident_number}"
        slot = f"{zlib.crc32(text.encode()):08x} {text}\n".encode().rjust(SLOT_BYTES)
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            os.pwrite(self._descriptor, slot, head.seq % 2 * SLOT_BYTES)
            if time.monotonic() - self._synced_at >= SYNC_SECONDS:
                self._sync()
        except OSError as error:
            if self._is_writable:
                log_fields = logs.fields(path=self.path, error=error.strerror)
                log.error("journal head write failed, lost entries may go unnoticed", extra=log_fields)
            self._is_writable = False
        else:
            self._is_writable = True

    def close(self) -> None:
        if self._descriptor >= 0:
            self._sync()
            os.close(self._descriptor)
            self._descriptor = -1

    def _sync(self) -> None:
        os.fdatasync(self._descriptor)
        self._synced_at = time.monotonic()


def find_loss(head_file: HeadFile, connection: JournalConnection) -> Loss | None:
    """What the journal has lost since the head was written; the head is read first, because a hub may write."""
    try:
        head = head_file.read()
    except ValueError as error:
        at = datetime.fromtimestamp(head_file.path.stat().st_mtime, UTC)
        return Loss(f"{error}, so it cannot be told whether entries are missing", at)
    if head is None:
        return None
    has_entries = "entry" in connection.tables()
    row = connection.execute("SELECT hash FROM entry WHERE seq = ?", (head.seq,)).fetchone() if has_entries else None
    last = (connection.execute("SELECT MAX(seq) FROM entry").fetchone()[0] if has_entries else None) or 0
    at = wire.parse_time(head.at)
    if row is not None and row[0] != head.hash:
        return Loss(f"entry {head.seq} is not the one that was written at {head.at}", at, head.seq, head.seq, head.hash)
    # A missing entry below the last one was trimmed by a version that writes no head.
    if row is not None or head.seq <= last:
        return None
    missing = f"entry {head.seq} is" if head.seq == last + 1 else f"entries {last + 1} to {head.seq} are"
    problem = f"{missing} missing, the last one was written at {head.at}"
    return Loss(problem, at, last + 1, head.seq, head.hash, is_gap=True, incident_number=head.incident_number)


def _parse(slot: bytes) -> JournalHead | None:
    try:
        checksum, text = slot.decode("ascii").strip().split(" ", 1)
        if int(checksum, 16) != zlib.crc32(text.encode()):
            return None
        seq, hash, at, incident_number = text.split(" ")
        return JournalHead(int(seq), hash, at, int(incident_number))
    except ValueError:
        return None
