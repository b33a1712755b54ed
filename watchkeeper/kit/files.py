"""Write files atomically, detect changed files, read keys, and lock a data directory for one process."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from pathlib import Path
from typing import NamedTuple

from watchkeeper.errors import StartRefused

OWNER_MARK = "watchkeeper.data"
FORMAT = 1
# 128 bits in hexadecimal.
MIN_KEY_LENGTH = 32
# A random key of this length has about 14 different characters; an all-zero one has one.
MIN_KEY_CHARACTERS = 8


class FileStamp(NamedTuple):
    """Identifies one version of a file; it differs after the file was written or replaced."""

    modified_ns: int
    size_bytes: int
    inode: int


def read_stamp(path: Path) -> FileStamp | None:
    """The stamp of a file, None if it cannot be read. Get it before you read the file, so that no change is missed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileStamp(status.st_mtime_ns, status.st_size, status.st_ino)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644, syncs: bool = True) -> None:
    """Replace a file so that after a crash and for every reader it has either the old content or the new.

    With `syncs` False it does not wait for the disk: for files that may be lost or empty after a power failure.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    # An existing file is left from an earlier run, or was placed there to read our content: never write into it.
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
    """Make sure that created, renamed and removed files of a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_key_file(path: Path) -> bytes:
    """The first line that is not a comment; StartRefused if it is missing, too short, or readable by other users."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StartRefused(f"the key cannot be read: {problem}", where=str(path)) from error
    if mode & stat.S_IRWXO:
        problem = f"every user of this machine can access the key (mode {stat.S_IMODE(mode):04o})"
        raise StartRefused(problem, where=str(path), remedy=f"Run `chmod o= {path}`")
    secret = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if len(secret) < MIN_KEY_LENGTH:
        problem = f"the key has {len(secret)} characters, the minimum is {MIN_KEY_LENGTH}"
        raise StartRefused(problem, where=str(path), remedy="Create one with `openssl rand -hex 32`")
    if (count := len(set(secret))) < MIN_KEY_CHARACTERS:
        problem = f"the key has {count} different characters, the minimum is {MIN_KEY_CHARACTERS}: it is not random"
        raise StartRefused(problem, where=str(path), remedy="Create one with `openssl rand -hex 32`")
    return secret.encode()


def lock_folder(folder: Path) -> int:
    """Lock a folder until the descriptor is closed; StartRefused if another process has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        remedy = "Stop it first, or choose another folder with `query.data`"
        raise StartRefused("another hub stores its samples in this folder", where=str(folder), remedy=remedy) from error
    return descriptor


class DataDirectory:
    """A directory that only this process uses, marked as ours and locked while we run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    def claim(self) -> None:
        """Create and lock the directory; refuse one that belongs to another program or is in use."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._refuse_foreign_files()
            # Created in place, so that processes that start together lock the same file; the lock owner writes to it.
            self._lock = os.open(self.path / OWNER_MARK, os.O_RDWR | os.O_CREAT, 0o644)
            self._refuse_in_use()
            self._refuse_newer_format()
        except OSError as error:
            self.release()
            raise self._refusal(
                f"the data directory cannot be used: {error.strerror}", "Choose another with --data DIR"
            ) from error
        except StartRefused:
            self.release()
            raise

    def _refuse_foreign_files(self) -> None:
        names = sorted(entry.name for entry in self.path.iterdir())
        if names and OWNER_MARK not in names:
            problem = f"the data directory has files of another program ({', '.join(names[:3])})"
            raise self._refusal(problem, "Choose an empty or new directory with --data DIR")

    def _refuse_in_use(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            remedy = "Stop it first, or choose another directory with --data DIR"
            raise self._refusal("another Watchkeeper is using this data directory", remedy) from error

    def _refuse_newer_format(self) -> None:
        """Refuse a directory that a newer Watchkeeper wrote: this one could misread or damage it."""
        mark = os.pread(self._lock, 100, 0)
        if not mark:
            os.write(self._lock, b"format %d\n" % FORMAT)
            os.fsync(self._lock)
        word, _, number = mark.decode("utf-8", "replace").strip().partition(" ")
        if word == "format" and number.isascii() and number.isdigit() and int(number[:9]) > FORMAT:
            problem = f"the data directory has format {number[:9]}, this Watchkeeper supports up to {FORMAT}"
            remedy = "Start the newer Watchkeeper, or restore an older backup into another directory"
            raise self._refusal(problem, remedy)

    def _refusal(self, problem: str, remedy: str) -> StartRefused:
        return StartRefused(problem, where=str(self.path), remedy=remedy)

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
