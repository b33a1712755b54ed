"""Events on disk until the hub has them.

A spool is a directory of numbered files; each file is one batch, as many events as one push may carry.
Appending writes one line and never waits; the pusher takes the oldest file, and deletes it once the hub
has answered. The size is bounded: when it is full the oldest batch goes, counted and logged. A process
that dies loses nothing it appended. Nothing is synced: a machine that loses power may lose what its
kernel had not written back yet, about the last half minute, unless the hub already had it. A disk that is
full, broken or read-only is news itself, so what cannot be written waits in memory: one batch, behind the files.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.errors import StartRefused
from watchkeeper.kit import logs, own_metrics, wire
from watchkeeper.model import events

log = logging.getLogger(__name__)

# The hub takes 1,000 events and 1 MiB in one request; brackets and commas need a little room.
BATCH_EVENTS = 1000
BATCH_BYTES = 1_000_000
# 64 MiB are some 100,000 events: days of a hub outage on a node in trouble.
MAX_BYTES = 64 * 1024 * 1024
# A disk in trouble; any other error at the start is a wrong path or a wrong owner, which a person must put right.
DISK_TROUBLE = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO)
# Stands for a batch that is in no file; nothing can be there.
MEMORY = Path("/dev/null/memory")


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The events of one file, as the body of one push."""

    path: Path
    body: bytes
    count: int


class Spool:
    """Append at one end, push from the other. One process owns the directory."""

    def __init__(self, directory: Path, *, lost: own_metrics.Metric, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._lost = lost
        self._open = -1
        self._open_events = 0
        self._unwritten: list[bytes] = []
        self._is_disk_well = True
        self._waiting = asyncio.Event()
        self._rejected = directory / "rejected"
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._rejected.mkdir(exist_ok=True, mode=0o750)
            self._sizes = {path: path.stat().st_size for path in sorted(directory.glob("*.jsonl"))}
        except OSError as error:
            if error.errno not in DISK_TROUBLE:
                raise StartRefused(f"the spool cannot be used: {error.strerror}", where=str(directory)) from error
            self._sizes = {}
            self._say_trouble(error)
        last = max((int(path.stem) for path in self._sizes if path.stem.isdigit()), default=0)
        # What was open when the last process ended stays as it is: its last line may be torn.
        self._number = last + 1
        if self._sizes:
            self._waiting.set()

    @property
    def used_bytes(self) -> int:
        return sum(self._sizes.values()) + self._unwritten_bytes

    def append(self, event: events.Event) -> None:
        """Keep one event; what cannot be kept is counted and logged, because the follower must go on."""
        line = wire.dumps(event).encode() + b"\n"
        if len(line) > BATCH_BYTES:
            self._lose(1, f"an event of {len(line)} bytes is above the limit of {BATCH_BYTES}")
            return
        try:
            path = self._current(len(line))
            if os.write(self._open, line) < len(line):
                # A torn line must be the last of its file, where reading expects it, or better not be there at all.
                os.ftruncate(self._open, self._sizes[path])
                self._seal()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._remember(line, error)
            return
        self._is_disk_well = True
        self._sizes[path] += len(line)
        self._open_events += 1
        self._make_room()
        self._waiting.set()

    async def next_batch(self) -> EventBatch:
        """The oldest batch, as soon as there is one; it stays until `done`."""
        while True:
            await self._waiting.wait()
            while self._sizes:
                path = next(iter(self._sizes))
                if path == self._path and self._open >= 0:
                    self._seal()
                batch = self._read(path)
                if batch.count:
                    return batch
                self.done(batch)
            if self._unwritten:
                return EventBatch(MEMORY, b"[" + b",".join(self._unwritten) + b"]", len(self._unwritten))
            self._waiting.clear()

    def done(self, batch: EventBatch) -> None:
        """The hub has the batch: forget it."""
        if batch.path == MEMORY:
            del self._unwritten[: batch.count]
            return
        # What cannot be deleted is sent once more by the next process, and the hub recognises it.
        with suppress(OSError):
            batch.path.unlink(missing_ok=True)
        self._sizes.pop(batch.path, None)

    def reject(self, batch: EventBatch) -> None:
        """Set aside a batch that the hub will never take, so that the ones behind it can go; one is kept to look at."""
        with suppress(OSError):
            for older in self._rejected.iterdir():
                older.unlink(missing_ok=True)
            batch.path.rename(self._rejected / batch.path.name)
        self._lost.add(batch.count)
        self.done(batch)

    def requeue_halves(self, batch: EventBatch) -> list[Path]:
        """Put a batch behind all others, as two halves where it has two events or more; returns where they are now.

        A crash on the way leaves events twice, which the hub recognises, and none of them lost.
        """
        try:
            lines = [line for line in batch.path.read_bytes().split(b"\n") if line and _is_json(line)]
            middle = len(lines) // 2
            placed = [self._add(part) for part in (lines[:middle], lines[middle:]) if part]
        except OSError as error:
            log.warning("A batch cannot be put off", extra=logs.fields(batch=batch.path.name, error=error))
            return []
        self.done(batch)
        self._waiting.set()
        return placed

    def close(self) -> None:
        if self._open >= 0:
            self._seal()

    @property
    def _unwritten_bytes(self) -> int:
        return sum(map(len, self._unwritten))

    def _remember(self, line: bytes, error: OSError) -> None:
        """Keep an event that the disk did not take, in memory; one too many is lost."""
        if len(self._unwritten) >= BATCH_EVENTS or self._unwritten_bytes + len(line) > BATCH_BYTES:
            kept = (
                f"{len(self._unwritten)} events wait in memory, the limits are {BATCH_EVENTS} and {BATCH_BYTES} bytes"
            )
            self._lose(1, f"the spool cannot be written: {error.strerror}; {kept}")
            return
        if self._is_disk_well:
            self._say_trouble(error)
        self._unwritten.append(line.rstrip(b"\n"))
        self._waiting.set()

    def _say_trouble(self, error: OSError) -> None:
        self._is_disk_well = False
        where = {"spool": str(self._directory), "error": error.strerror}
        log.error("The spool cannot be written; events wait in memory", extra=logs.fields(**where))

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._number:012d}.jsonl"

    def _current(self, more: int) -> Path:
        """The open file, a new one when this line would make it larger than a batch."""
        if self._open >= 0 and (self._open_events >= BATCH_EVENTS or self._sizes[self._path] + more > BATCH_BYTES):
            self._seal()
        if self._open < 0:
            # It may not have been there at the start, on a disk that has come back since.
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._open = os.open(self._path, flags, 0o640)
            self._open_events = 0
            self._sizes[self._path] = 0
        return self._path

    def _add(self, lines: list[bytes]) -> Path:
        """Write a file of its own behind all others."""
        if self._open >= 0:
            self._seal()
        path, text = self._path, b"\n".join(lines) + b"\n"
        path.write_bytes(text)
        self._sizes[path] = len(text)
        self._number += 1
        return path

    def _seal(self) -> None:
        os.close(self._open)
        self._open = -1
        self._number += 1

    def _read(self, path: Path) -> EventBatch:
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            self._lose(0, f"{path.name} cannot be read: {error.strerror}")
            return EventBatch(path, b"", 0)
        whole = [line for line in lines if line and _is_json(line)]
        torn = sum(1 for line in lines if line) - len(whole)
        if torn:
            self._lose(torn, f"{path.name} has lines that were not written to their end")
        return EventBatch(path, b"[" + b",".join(whole) + b"]", len(whole))

    def _make_room(self) -> None:
        while self.used_bytes > self._max_bytes and len(self._sizes) > 1:
            used, oldest = self.used_bytes, next(iter(self._sizes))
            try:
                count = oldest.read_bytes().count(b"\n")
                oldest.unlink()
            except OSError:
                count = 0
            del self._sizes[oldest]
            self._lose(count, f"the spool has {used} bytes, the limit is {self._max_bytes}; the oldest events go first")

    def _lose(self, count: int, why: str) -> None:
        self._lost.add(count)
        log.error("Events were lost", extra=logs.fields(count=count, why=why))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
