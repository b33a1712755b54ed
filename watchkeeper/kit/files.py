"""Files that are whole or not there, whether one was written since, and directories that have one owner."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import NamedTuple

from watchkeeper.errors import StartRefused

OWNER_MARK = "watchkeeper.data"
FORMAT = 1


class FileStamp(NamedTuple):
    """What differs once a file was written, or another took its name."""

    written_ns: int
    bytes: int
    inode: int


def read_stamp(path: Path) -> FileStamp | None:
    """Of a file as it is now; None while it cannot be found. Take it before reading, then no change is missed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileStamp(found.st_mtime_ns, found.st_size, found.st_ino)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644, syncs: bool = True) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new one.

    `syncs` False waits for no disk: for what may be lost, or empty, after a power cut.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    # What lies there is ours of an earlier life, or somebody waits there to read along: neither is written into.
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if syncs:
                os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make sure that names given or taken in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DataDirectory:
    """A directory that this process alone uses, marked as ours and locked while we live."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    def claim(self) -> None:
        """Create or take over the directory; refuse one that is someone else's, or in use."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._refuse_foreign()
            # Made in place, so that all who start at once have one file to lock; its owner writes what is in it.
            self._lock = os.open(self.path / OWNER_MARK, os.O_RDWR | os.O_CREAT, 0o644)
            self._refuse_used()
            self._refuse_later()
        except OSError as error:
            self.release()
            raise StartRefused(
                f"the data directory cannot be used: {error.strerror}",
                where=str(self.path),
                remedy="Choose another with --data DIR",
            ) from error
        except StartRefused:
            self.release()
            raise

    def _refuse_foreign(self) -> None:
        strangers = sorted(entry.name for entry in self.path.iterdir())
        if strangers and OWNER_MARK not in strangers:
            raise StartRefused(
                f"the data directory holds files of someone else ({', '.join(strangers[:3])})",
                where=str(self.path),
                remedy="Choose an empty or new directory with --data DIR",
            )

    def _refuse_used(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartRefused(
                "another Watchkeeper is using this data directory",
                where=str(self.path),
                remedy="Stop it first, or choose another directory with --data DIR",
            ) from error

    def _refuse_later(self) -> None:
        """A directory that a later Watchkeeper wrote would be read wrongly, or spoilt."""
        written = os.pread(self._lock, 100, 0)
        if not written:
            os.write(self._lock, b"format %d\n" % FORMAT)
            os.fsync(self._lock)
        word, _, number = written.decode("utf-8", "replace").strip().partition(" ")
        if word == "format" and number.isascii() and number.isdigit() and int(number[:9]) > FORMAT:
            raise StartRefused(
                f"the data directory has format {number[:9]}, this Watchkeeper knows up to {FORMAT}",
                where=str(self.path),
                remedy="Start the later Watchkeeper again, or restore a backup from before it into another directory",
            )

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
