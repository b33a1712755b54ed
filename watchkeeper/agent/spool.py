"""Stores events on disk until the hub confirms them.

A spool is a directory of numbered files; each file is one batch of as many events as one push may carry. A process that
is killed loses no event that it appended; writes are not synced, so a power failure may lose the last half minute. If
the disk is full, broken or read-only, events wait in memory: one batch, after the files.
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

# The hub accepts 1,000 events and 1 MiB in one request; brackets and commas need some of it.
BATCH_EVENTS = 1000
BATCH_BYTES = 1_000_000
# 64 MiB are about 100,000 events: days of a hub outage on a faulty node.
MAX_BYTES = 64 * 1024 * 1024
# Errors of a faulty disk; any other error at the start is a wrong path or owner, which a person must fix.
DISK_ERRORS = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO)
# The path of the batch in memory; no file can have it.
MEMORY_BATCH = Path("/dev/null/memory")


@dataclass(frozen=True, slots=True)
class EventBatch:
    path: Path
    body: bytes
    count: int


class Spool:
    """A queue of events on disk; one process owns the directory."""

    def __init__(self, directory: Path, *, dropped_counter: own_metrics.Metric, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._dropped_counter = dropped_counter
        self._descriptor = -1
        self._open_file_events = 0
        self._unwritten: list[bytes] = []
        self._is_disk_writable = True
        self._has_events = asyncio.Event()
        self._rejected = directory / "rejected"
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._rejected.mkdir(exist_ok=True, mode=0o750)
            self._sizes = {path: path.stat().st_size for path in sorted(directory.glob("*.jsonl"))}
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise StartRefused(f"the spool cannot be used: {error.strerror}", where=str(directory)) from error
            self._sizes = {}
            self._log_write_failure(error)
        last_number = max((int(path.stem) for path in self._sizes if path.stem.isdigit()), default=0)
        # Never append to a file of an earlier process: its last line may be incomplete.
        self._number = last_number + 1
        if self._sizes:
            self._has_events.set()

    @property
    def used_bytes(self) -> int:
        return sum(self._sizes.values()) + self._unwritten_bytes

    def append(self, event: events.Event) -> None:
        """Store one event; an event that cannot be stored is counted and logged, and raises no error."""
        line = wire.dumps(event).encode() + b"\n"
        if len(line) > BATCH_BYTES:
            self._drop(1, "event too large, dropped", bytes=len(line), limit_bytes=BATCH_BYTES)
            return
        try:
            path = self._open_file(len(line))
            if os.write(self._descriptor, line) < len(line):
                # Remove the incomplete line, or close the file: reading accepts an incomplete line only at the end.
                os.ftruncate(self._descriptor, self._sizes[path])
                self._close_file()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._keep_in_memory(line, error)
            return
        self._is_disk_writable = True
        self._sizes[path] += len(line)
        self._open_file_events += 1
        self._drop_oldest()
        self._has_events.set()

    async def next_batch(self) -> EventBatch:
        """Wait for the oldest batch; it stays in the spool until `confirm`."""
        while True:
            await self._has_events.wait()
            while self._sizes:
                path = next(iter(self._sizes))
                if path == self._current_path and self._descriptor >= 0:
                    self._close_file()
                batch = self._read(path)
                if batch is None:
                    continue
                if batch.count:
                    return batch
                self.confirm(batch)
            if self._unwritten:
                return EventBatch(MEMORY_BATCH, b"[" + b",".join(self._unwritten) + b"]", len(self._unwritten))
            self._has_events.clear()

    def confirm(self, batch: EventBatch) -> None:
        """Delete a batch that the hub has confirmed."""
        if batch.path == MEMORY_BATCH:
            del self._unwritten[: batch.count]
            return
        # A file that cannot be deleted is sent again by the next process, and the hub recognises its events.
        with suppress(OSError):
            batch.path.unlink(missing_ok=True)
        self._sizes.pop(batch.path, None)

    def reject(self, batch: EventBatch) -> None:
        """Drop a batch that the hub will never accept, so that later ones can be sent; the last one is kept on disk."""
        self._set_aside(batch.path)
        self._dropped_counter.add(batch.count)
        self.confirm(batch)

    def requeue_halves(self, batch: EventBatch) -> list[Path]:
        """Move a batch after all others, as two halves if it has several events; returns their paths.

        A crash in between duplicates events, which the hub recognises, and loses none.
        """
        try:
            lines = [line for line in batch.path.read_bytes().split(b"\n") if line and _is_json(line)]
            middle = len(lines) // 2
            paths = [self._write_file(part) for part in (lines[:middle], lines[middle:]) if part]
        except OSError as error:
            log.warning("batch requeue failed", extra=logs.fields(batch=batch.path.name, error=error))
            return []
        self.confirm(batch)
        self._has_events.set()
        return paths

    def close(self) -> None:
        if self._descriptor >= 0:
            self._close_file()

    def _set_aside(self, path: Path) -> None:
        with suppress(OSError):
            for older in self._rejected.iterdir():
                older.unlink(missing_ok=True)
            path.rename(self._rejected / path.name)

    @property
    def _unwritten_bytes(self) -> int:
        return sum(map(len, self._unwritten))

    def _keep_in_memory(self, line: bytes, error: OSError) -> None:
        """Keep an event in memory because it could not be written; above the limit, it is dropped."""
        if len(self._unwritten) >= BATCH_EVENTS or self._unwritten_bytes + len(line) > BATCH_BYTES:
            in_memory = {"events_in_memory": len(self._unwritten), "bytes_in_memory": self._unwritten_bytes}
            limits = {"limit_events": BATCH_EVENTS, "limit_bytes": BATCH_BYTES}
            self._drop(1, "spool write failed, event dropped", error=error.strerror, **in_memory, **limits)
            return
        if self._is_disk_writable:
            self._log_write_failure(error)
        self._unwritten.append(line.rstrip(b"\n"))
        self._has_events.set()

    def _log_write_failure(self, error: OSError) -> None:
        self._is_disk_writable = False
        log_fields = logs.fields(spool=str(self._directory), error=error.strerror)
        log.error("spool write failed, events kept in memory", extra=log_fields)

    @property
    def _current_path(self) -> Path:
        return self._directory / f"{self._number:012d}.jsonl"

    def _open_file(self, line_bytes: int) -> Path:
        """Open the current file, or the next one if this line would exceed the size of a batch."""
        if self._descriptor >= 0:
            is_too_large = self._sizes[self._current_path] + line_bytes > BATCH_BYTES
            if is_too_large or self._open_file_events >= BATCH_EVENTS:
                self._close_file()
        if self._descriptor < 0:
            # It may be missing if the disk was not available at the start.
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._descriptor = os.open(self._current_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._open_file_events = 0
            self._sizes[self._current_path] = 0
        return self._current_path

    def _write_file(self, lines: list[bytes]) -> Path:
        if self._descriptor >= 0:
            self._close_file()
        path, content = self._current_path, b"\n".join(lines) + b"\n"
        path.write_bytes(content)
        self._sizes[path] = len(content)
        self._number += 1
        return path

    def _close_file(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        self._number += 1

    def _read(self, path: Path) -> EventBatch | None:
        """The batch in a file; None if it cannot be read: it is kept on disk, and counts as at least one event."""
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            del self._sizes[path]
            self._set_aside(path)
            self._drop(1, "spool file unreadable, its events dropped", file=path.name, error=error.strerror)
            return None
        complete = [line for line in lines if line and _is_json(line)]
        torn_count = sum(1 for line in lines if line) - len(complete)
        if torn_count:
            self._drop(torn_count, "incomplete events dropped", file=path.name)
        return EventBatch(path, b"[" + b",".join(complete) + b"]", len(complete))

    def _drop_oldest(self) -> None:
        while self.used_bytes > self._max_bytes and len(self._sizes) > 1:
            used_bytes, oldest = self.used_bytes, next(iter(self._sizes))
            try:
                count = oldest.read_bytes().count(b"\n")
                oldest.unlink()
            except OSError:
                count = 1  # At least one.
            del self._sizes[oldest]
            self._drop(count, "spool full, events dropped", bytes=used_bytes, limit_bytes=self._max_bytes)

    def _drop(self, count: int, message: str, **log_fields: object) -> None:
        self._dropped_counter.add(count)
        log.error(message, extra=logs.fields(count=count, **log_fields))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
