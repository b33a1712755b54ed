"""The inventory of a store: sizes and checksums of its files, so that missing, replaced and cut ones are noticed.

Files are valid by themselves; only the inventory knows which ones there must be. It is updated after a file was written
and before one is removed, so that a crash in between is not damage.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from watchkeeper.kit import files
from watchkeeper.store.blocks.block import Block
from watchkeeper.store.blocks.block_writer import SUFFIX, TAIL
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.wal.wal import MAGIC, RECORD, Segment

NAME, METADATA = "inventory.json", "metadata.json"
BLOCKS, WAL = "blocks", "wal"
# In place of a checksum: the file did not exist.
NO_FILE = -1
START_BYTES = len(MAGIC) + RECORD.size
Entries = dict[str, list[int]]


class Inventory:
    """Keeps the inventory file of a store up to date; thread-safe."""

    def __init__(self, samples: Path) -> None:
        self._path = samples / NAME
        self._lock = threading.Lock()
        self._blocks: Entries = {}
        self._segments: Entries = {}
        # The checksum of the metadata; while it is written, the old and the new one: a crash may leave either.
        self._metadata: list[int] = []
        self._written = b""
        # Blocks that are missing or were replaced: they are reported at each start, until they expire.
        self._lost_blocks: Entries = {}
        self.damages = tuple(find_damage(samples))
        with contextlib.suppress(ValueError):
            document = _read(self._path)
            self._blocks, self._segments, self._metadata = document[BLOCKS], document[WAL], document[METADATA]
            lost = {damage.path.name for damage in self.damages if damage.path.suffix == SUFFIX}
            self._lost_blocks = {name: entry for name, entry in self._blocks.items() if name in lost}
        if not self._metadata and (content := _read_bytes(samples / METADATA)) is not None:
            self._metadata = [zlib.crc32(content)]

    def update(self, present: Callable[[], tuple[Iterable[Block], Iterable[Segment]]]) -> None:
        """Write what is present; `present` is called under the lock, after every `forget` before."""
        with self._lock:
            blocks, segments = present()
            written = {block.path.name: [block.bytes, block.checksum] for block in blocks}
            self._blocks = written | self._lost_blocks
            self._segments = {segment.path.name: self._segment_entry(segment) for segment in segments}
            self._write()

    def _segment_entry(self, segment: Segment) -> list[int]:
        """Size, newest time, and the checksum of the start, which does not change after the first record."""
        _, _, start = self._segments.get(segment.path.name, (0, 0, NO_FILE))
        if start == NO_FILE and segment.bytes >= START_BYTES:
            start = _start_checksum(segment.path)
        return [segment.bytes, segment.newest_ms, start]

    def write_metadata(self, path: Path, content: bytes) -> None:
        """Write the metadata; until that is done, its old and its new content are both valid."""
        with self._lock:
            self._metadata = [*(self._metadata[:1] or [NO_FILE]), zlib.crc32(content)]
            self._write()
            files.write_atomically(path, content)
            self._metadata = self._metadata[-1:]

    def forget(self, paths: Iterable[Path]) -> None:
        """Call this before files are removed or moved."""
        with self._lock:
            for path in paths:
                for entries in (self._blocks, self._segments, self._lost_blocks):
                    entries.pop(path.name, None)
            self._write()

    def expire(self, oldest_ms: int) -> None:
        expired = [name for name in self._lost_blocks if _times_of(name)[1] <= oldest_ms]
        if expired:
            self.forget(map(Path, expired))

    def _write(self) -> None:
        document = {BLOCKS: self._blocks, WAL: self._segments, METADATA: self._metadata}
        content = json.dumps(document, separators=(",", ":")).encode()
        if content != self._written:
            files.write_atomically(self._path, b"%s\n%08x\n" % (content, zlib.crc32(content)), mode=0o640)
            self._written = content


def find_damage(samples: Path) -> Iterator[Corruption]:
    """Files that are missing, replaced or cut; a hub may be running."""
    try:
        document = _read(samples / NAME)
        problems = dict(_compare(samples, document))
        # A running hub may have removed a file since, and the inventory no longer has it.
        current = _read(samples / NAME) if problems else document
    except ValueError as error:
        problem = f"the inventory is damaged ({error}), so it cannot be told whether files are missing or were replaced"
        yield Corruption(samples / NAME, 0, problem)
        return
    for (part, name), problem in problems.items():
        if part == METADATA:
            yield Corruption(samples / METADATA, 0, problem)
        elif current[part].get(name) == document[part][name]:
            yield Corruption(samples / part / name, 0, problem)


def accept_damage(samples: Path) -> list[Corruption]:
    """Remove the inventory if files are damaged, while no hub runs: the next start writes a new one."""
    damages = list(find_damage(samples))
    if damages:
        (samples / NAME).unlink()
    return damages


def _compare(samples: Path, document: dict[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
    times = [_times_of(path.name) for path in (samples / BLOCKS).glob(f"*{SUFFIX}")]
    for name, (size, checksum) in document[BLOCKS].items():
        stamp = _read_stamp(samples / BLOCKS / name)
        start_ms, end_ms = _times_of(name)
        # An older version merges blocks without an inventory.
        if stamp is None and not any(start <= start_ms and end_ms <= end for start, end in times):
            yield (BLOCKS, name), "the block is missing"
        elif stamp is not None and stamp != (size, checksum):
            yield (BLOCKS, name), "the block is not the one that was written"
    for name, (size, newest_ms, start) in document[WAL].items():
        path = samples / WAL / name
        present_bytes = path.stat().st_size if path.exists() else 0
        # An older version removes a segment when its samples are in blocks.
        if present_bytes < size and (present_bytes or newest_ms >= max((end for _, end in times), default=0)):
            yield (WAL, name), f"{size - present_bytes} of {size} bytes are missing"
        elif present_bytes and start not in (NO_FILE, _start_checksum(path)):
            yield (WAL, name), "the segment is not the one that was written"
    if document[METADATA]:
        content = _read_bytes(samples / METADATA)
        checksum = NO_FILE if content is None else zlib.crc32(content)
        if content != b"" and checksum not in document[METADATA]:
            yield (
                (METADATA, ""),
                "the metadata of metrics is missing" if content is None else "the metadata was changed",
            )


def _read(path: Path) -> dict[str, Any]:
    """The inventory, empty if there is none yet; ValueError if it is damaged."""
    file_content = _read_bytes(path)
    if file_content is None:
        return {BLOCKS: {}, WAL: {}, METADATA: []}
    content, _, checksum = file_content.rstrip(b"\n").rpartition(b"\n")
    if int(checksum, 16) != zlib.crc32(content):
        raise ValueError("its checksum does not match")
    document: dict[str, Any] = json.loads(content)
    return document


def _read_bytes(path: Path) -> bytes | None:
    """The content; None without a file. A file that cannot be read is empty here, and the store reports it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _start_checksum(path: Path) -> int:
    """The checksum of the start of a segment, which has the checksum of its first record; NO_FILE if unreadable."""
    try:
        with path.open("rb") as file:
            return zlib.crc32(file.read(START_BYTES))
    except OSError:
        return NO_FILE


def _read_stamp(path: Path) -> tuple[int, int] | None:
    """The size of a block and the checksum of its footer, which has the checksums of all its parts."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            tail = os.pread(file.fileno(), TAIL.size, max(0, size - TAIL.size))
    except FileNotFoundError:
        return None
    except OSError:
        return 0, 0
    return (size, TAIL.unpack(tail)[1]) if len(tail) == TAIL.size else (size, 0)


def _times_of(name: str) -> tuple[int, int]:
    """Start and end of a block, which its name has; an empty time for another file."""
    start, _, end = name.removesuffix(SUFFIX).rpartition("-")
    try:
        return int(start), int(end)
    except ValueError:
        return 0, 0
