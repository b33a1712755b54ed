"""Open the SQLite file of the journal; refuse a file of another program or a newer version.

`journal.Journal` calls `open_journal` once and uses its connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from watchkeeper.errors import JournalConflict, StoreError

# In the file's header, to recognise databases of other programs: "WKJ1".
APPLICATION_ID = 0x574B4A31
SCHEMA_VERSION = 1
# How long to wait for a transaction of another process, which takes milliseconds.
BUSY_SECONDS = 5.0


class FileConnection(sqlite3.Connection):
    """The connection to a journal file; implements `connection.JournalConnection`."""

    where: Path
    epoch: int

    def begin(self) -> None:
        """Begin a write transaction; JournalConflict if another hub has opened the file since."""
        self.execute("BEGIN IMMEDIATE")
        current = self.current_epoch()
        if current != self.epoch:
            self.execute("ROLLBACK")
            raise JournalConflict(
                f"epoch {self.epoch} has ended, the current epoch is {current}",
                where=str(self.where),
                now="Another hub uses this journal; nothing was written",
                remedy="Stop one of the two hubs, or use another data directory for it",
            )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
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
    """Open the file for writing in a new epoch; each commit is on disk when it returns."""
    try:
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=FileConnection
        )
    except sqlite3.Error as error:
        raise _unusable_error(path, error) from error
    try:
        _refuse_unusable(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: an acknowledged event must survive a power failure, not only a crash of this process.
        connection.execute("PRAGMA synchronous = FULL")
        _create_tables(connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE number SET value = value + 1 WHERE name = 'epoch'")
        connection.where, connection.epoch = path, connection.current_epoch()
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise _unusable_error(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _refuse_unusable(connection: sqlite3.Connection, path: Path) -> None:
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
            f"the journal has schema version {version}, this Watchkeeper supports up to {SCHEMA_VERSION}",
            where=str(path),
            now="It was not changed",
            remedy="Start the newer Watchkeeper that wrote it",
        )


def _create_tables(connection: sqlite3.Connection) -> None:
    """Create missing tables in one transaction, in an empty file or in one of an older version."""
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
        _execute_script(connection, "journal_schema.sql")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    _execute_script(connection, "journal_added.sql")
    connection.execute("COMMIT")


def _execute_script(connection: sqlite3.Connection, name: str) -> None:
    for statement in resources.files("watchkeeper.store.journal").joinpath(name).read_text().split(";\n"):
        connection.execute(statement)


def _unusable_error(path: Path, error: sqlite3.Error) -> StoreError:
    return StoreError(
        f"the journal cannot be opened: {error}",
        where=str(path),
        now="It was not changed",
        remedy="Check that this user may write to the directory and the file; restore a damaged file from a backup",
    )
