"""Open user input as named byte streams: files, folders, compressed files, tar and zip archives, standard input.

Archives are untrusted: nothing is unpacked to disk, and members are read as streams with limits on their unpacked size,
their number and the nesting depth. `Stream.problem` says what was not read, and why.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from watchkeeper.readers.logs.log_text import ByteStream

# A support bundle of a rack has a few thousand files; an archive with more is a mistake or an attack.
MAX_MEMBERS = 20_000
# Text compresses 10 to 50 times; a higher ratio after the first megabytes is a decompression bomb.
MAX_RATIO = 200
FREE_BYTES = 64 << 20
MAX_MEMBER_BYTES = 8 << 30
MAX_DEPTH = 3
# An archive inside an archive must be held in memory to be opened.
MAX_NESTED_BYTES = 256 << 20
PEEK_BYTES = 512

GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, RuntimeError)

BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# In Latin text in UTF-16 nearly every second byte is zero; in binary files zero bytes are anywhere.
SAMPLE_BYTES = 1024
MIN_SAMPLE_BYTES = 16
MIN_ZERO_SHARE, MAX_OTHER_ZERO_SHARE = 0.9, 0.05


class TooLarge(Exception):
    """The unpacked size of a member, or of all members together, exceeds its limit."""


@dataclass(slots=True)
class _Budget:
    """What one input may unpack to in total: thousands of small bombs are one large one."""

    stored_bytes: Callable[[], int]
    unpacked_bytes: int = 0
    members: int = 0

    def add(self, size: int) -> None:
        self.unpacked_bytes += size
        limit_bytes = MAX_DEPTH * (FREE_BYTES + MAX_RATIO * self.stored_bytes())
        if self.unpacked_bytes > limit_bytes:
            raise TooLarge(f"the whole input unpacks to more than {limit_bytes:,} bytes; the rest was not read")

    def add_member(self) -> None:
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise TooLarge(f"the whole input has more than {MAX_MEMBERS:,} members; the rest was not read")


@dataclass(slots=True)
class Stream:
    """One input: a name, and bytes that can be read once. `problem` says why it was not read to its end."""

    name: str
    source: ByteStream
    problem: str | None = None
    read_bytes: int = 0
    _pending: bytes = field(default=b"", repr=False)

    def peek(self, size: int) -> bytes:
        while len(self._pending) < size and (more := self._read(size - len(self._pending))):
            self._pending += more
        return self._pending[:size]

    def read(self, size: int, /) -> bytes:
        if self._pending:
            piece, self._pending = self._pending[:size], self._pending[size:]
            return piece
        return self._read(size)

    def _read(self, size: int) -> bytes:
        try:
            piece = self.source.read(size)
        except TooLarge as error:
            self.problem = str(error)
            return b""
        except UNREADABLE as error:
            self.problem = f"read failed after {self.read_bytes:,} bytes: {error}"
            return b""
        self.read_bytes += len(piece)
        return piece


@dataclass(slots=True)
class _LimitedStream:
    """A decompressing stream that raises TooLarge when the unpacked size exceeds its limit."""

    source: ByteStream
    stored_bytes: Callable[[], int]
    budget: _Budget
    unpacked_bytes: int = 0

    def read(self, size: int, /) -> bytes:
        piece = self.source.read(size)
        self.budget.add(len(piece))
        self.unpacked_bytes += len(piece)
        stored = self.stored_bytes()
        limit_bytes = min(MAX_MEMBER_BYTES, FREE_BYTES + MAX_RATIO * stored)
        if self.unpacked_bytes > limit_bytes:
            raise TooLarge(f"unpacks to more than {limit_bytes:,} bytes from {stored:,}; the rest was not read")
        return piece


def open_all(paths: Iterable[Path]) -> Iterator[Stream]:
    """Open every input below the paths, in a stable order; a stream is valid until the next is requested."""
    for path in paths:
        for number, file in enumerate(_files(path)):
            if number >= MAX_MEMBERS:
                yield _failed_stream(str(path), f"has more than {MAX_MEMBERS:,} files; the rest was not read")
                break
            if file is path or not file.is_symlink():
                yield from _open_file(file)


def open_stream(name: str, source: ByteStream) -> Iterator[Stream]:
    """Open standard input or any other stream, which may be an archive."""
    stream = Stream(name, source)
    yield from _open(stream, _Budget(lambda: stream.read_bytes), depth=0)


def total_bytes(paths: Iterable[Path]) -> int:
    """The stored size of all inputs in bytes, for a progress bar."""
    files = (file for path in paths for file in _files(path))
    return sum(file.stat().st_size for file in files if file.is_file())


def _files(path: Path) -> Iterator[Path]:
    """The path, or the files below a folder; links to folders are not followed: a bundle must not refer outside."""
    if not path.is_dir():
        yield path
    for base, folders, names in os.walk(path, followlinks=False):
        folders.sort()
        yield from (Path(base, name) for name in sorted(names))


def _open_file(path: Path) -> Iterator[Stream]:
    try:
        status = path.stat()
        # A pipe is accepted, because a process substitution is one.
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode)):
            yield _failed_stream(str(path), "is not a file")
            return
        file = path.open("rb")
    except OSError as error:
        yield _failed_stream(str(path), error.strerror or str(error))
        return
    with closing(file):
        stream = Stream(str(path), file)
        yield from _open(stream, _Budget(lambda: max(status.st_size, stream.read_bytes)), depth=0)


def _open(stream: Stream, budget: _Budget, *, depth: int) -> Iterator[Stream]:
    head = stream.peek(PEEK_BYTES)
    is_compressed = head.startswith((GZIP, BZIP2, XZ))
    is_archive = head.startswith(ZIP) or head[257:262] == b"ustar"
    if (is_compressed or is_archive) and depth >= MAX_DEPTH:
        yield _failed_stream(stream.name, f"is nested deeper than {MAX_DEPTH} archives and was not opened")
    elif is_compressed:
        unpacked = _LimitedStream(_decompress(head, stream), lambda: stream.read_bytes, budget)
        name = stream.name.removesuffix(".gz").removesuffix(".bz2").removesuffix(".xz")
        yield from _open(Stream(name, unpacked), budget, depth=depth + 1)
    elif head[257:262] == b"ustar":
        yield from _open_tar(stream, budget, depth=depth)
    elif head.startswith(ZIP):
        yield from _open_zip(stream, budget, depth=depth)
    else:
        yield stream


def _decompress(head: bytes, stream: Stream) -> ByteStream:
    raw = _open_as_file(stream)
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=raw)
    return bz2.BZ2File(raw) if head.startswith(BZIP2) else lzma.LZMAFile(raw)


def _open_tar(stream: Stream, budget: _Budget, *, depth: int) -> Iterator[Stream]:
    try:
        with tarfile.open(fileobj=_open_as_file(stream), mode="r|") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    yield _failed_stream(stream.name, f"has more than {MAX_MEMBERS:,} members; the rest was not read")
                    return
                budget.add_member()
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield from _open(Stream(f"{stream.name}!{member.name}", content), budget, depth=depth + 1)
    except (*UNREADABLE, TooLarge) as error:
        yield _failed_stream(stream.name, f"is a broken tar archive: {error}")


def _open_zip(stream: Stream, budget: _Budget, *, depth: int) -> Iterator[Stream]:
    """Open a zip archive, whose index is at the end: a file is read in place, other streams are held in memory."""
    source = stream.source
    seekable = source if isinstance(source, io.BufferedReader) and source.seekable() else None
    if seekable is None:
        content = stream.peek(MAX_NESTED_BYTES + 1)
        if len(content) > MAX_NESTED_BYTES:
            problem = f"is a zip archive of more than {MAX_NESTED_BYTES:,} bytes inside another archive or a stream"
            yield _failed_stream(stream.name, problem)
            return
    try:
        with zipfile.ZipFile(seekable or io.BytesIO(content)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) > MAX_MEMBERS:
                yield _failed_stream(stream.name, f"has {len(members):,} members; only {MAX_MEMBERS:,} were read")
            for member in members[:MAX_MEMBERS]:
                budget.add_member()
                with archive.open(member) as member_file:
                    member_stream = _LimitedStream(member_file, partial(int, member.compress_size), budget)
                    yield from _open(Stream(f"{stream.name}!{member.filename}", member_stream), budget, depth=depth + 1)
    # ValueError: an index that points before the beginning of the file ("negative seek value -38").
    except (*UNREADABLE, TooLarge, NotImplementedError, ValueError) as error:
        yield _failed_stream(stream.name, f"is a zip archive that cannot be read: {error}")


def _failed_stream(name: str, problem: str) -> Stream:
    return Stream(name, io.BytesIO(), problem)


def _open_as_file(stream: Stream) -> io.BufferedReader:
    """The stream as a file object, for libraries that need one."""

    class Raw(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
            piece = stream.read(len(buffer))
            buffer[: len(piece)] = piece
            return len(piece)

    return io.BufferedReader(Raw(), buffer_size=1 << 16)


def detect_utf16(start: bytes) -> str | None:
    """The UTF-16 encoding of a text; None if it is not UTF-16."""
    encoding_of_mark = BYTE_ORDER_MARKS.get(start[:2])
    sample = start[:SAMPLE_BYTES]
    if encoding_of_mark is not None or len(sample) < MIN_SAMPLE_BYTES:
        return encoding_of_mark
    for name, high_bytes, low_bytes in (
        ("utf-16-le", sample[1::2], sample[::2]),
        ("utf-16-be", sample[::2], sample[1::2]),
    ):
        high_share, low_share = high_bytes.count(0) / len(high_bytes), low_bytes.count(0) / len(low_bytes)
        if high_share >= MIN_ZERO_SHARE and low_share <= MAX_OTHER_ZERO_SHARE:
            return name
    return None


@dataclass(slots=True)
class Utf8Stream:
    source: ByteStream
    encoding: str
    _decoder: codecs.IncrementalDecoder | None = None

    def read(self, size: int, /) -> bytes:
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        while piece := self.source.read(size):
            if text := self._decoder.decode(piece):
                return text.encode("utf-8", errors="replace")
        return b""
