"""Opening the journal's file: ours and of a version we know, or refused with words.

`journal.Journal` calls `open_journal` once; everything after that goes through its connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from watchkeeper.errors import JournalConflict, StoreError

# Written into the file's header, so that a database of another program is recognised: "WKJ1".
APPLICATION_ID = 0x574B4A31
SCHEMA_VERSION = 1
# How long a second process may wait for the first one's transaction, which takes milliseconds.
BUSY_SECONDS = 5.0


class FileConnection(sqlite3.Connection):
    """A journal's file, as `connection.Connection` wants it."""

    where: Path
    epoch: int

    def begin(self) -> None:
        """Begin to write, unless another hub has opened the file since."""
        self.execute("BEGIN IMMEDIATE")
        current = self.current_epoch()
        if current != self.epoch:
            self.execute("ROLLBACK")
            raise JournalConflict(
                f"this writer's epoch {self.epoch} is not the current one, {current}",
                where=str(self.where),
                now="Another hub leads; nothing was written",
                remedy="Stop one of the two hubs, or give it a data directory of its own",
            )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside is of one moment."""
        self.execute("BEGIN")
        try:
            yield
        finally:
            self.execute("ROLLBACK")

    def tables(self) -> set[str]:
        return {row[0] for row in self.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def current_epoch(self) -> int:
        return int(self.execute("SELECT value FROM number WHERE name = 'epoch'").fetchone()[0])


def open_journal(path: Path) -> FileConnection:
    """A connection in which every commit is on the disk when it returns, and which leads from now on."""
    try:
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=FileConnection
        )
    except sqlite3.Error as error:
        raise _unusable(path, error) from error
    try:
        _refuse_foreign(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: an acknowledged event must survive a power cut, not only a crash of this process.
        connection.execute("PRAGMA synchronous = FULL")
        _create(connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE number SET value = value + 1 WHERE name = 'epoch'")
        connection.where, connection.epoch = path, connection.current_epoch()
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise _unusable(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise StoreError(
            "this SQLite file belongs to another program",
            where=str(path),
            now="It was not changed",
            remedy="Choose another data directory",
        )
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the journal has schema version {version}, this Watchkeeper knows up to {SCHEMA_VERSION}",
            where=str(path),
            now="It was not changed",
            remedy="Start the newer Watchkeeper that wrote it",
        )


def _create(connection: sqlite3.Connection) -> None:
    """Write the schema into an empty file, and what an older one lacks; all of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
        _execute(connection, "journal_schema.sql")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    _execute(connection, "journal_added.sql")
    connection.execute("COMMIT")


def _execute(connection: sqlite3.Connection, name: str) -> None:
    for statement in resources.files("watchkeeper.store.journal").joinpath(name).read_text().split(";\n"):
        connection.execute(statement)


def _unusable(path: Path, error: sqlite3.Error) -> StoreError:
    return StoreError(
        f"the journal cannot be opened: {error}",
        where=str(path),
        now="It was not changed",
        remedy="Check that the directory is writable and the file is ours; a damaged one must be restored from a copy",
    )
