"""The connections of the journal: what SQLite and PostgreSQL share of Python's DB-API, and the SQLite file.

`FileConnection` and `postgres.PostgresConnection` implement `JournalConnection`. The placeholder for values is `?`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from watchkeeper.errors import JournalConflict, SettingsError, StoreError

if TYPE_CHECKING:
    from watchkeeper.store.journal import postgres


class ResultRows(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class JournalConnection(Protocol):
    """One connection, for one thread at a time. `where` names the database in messages, without secrets."""

    @property
    def where(self) -> Path | str: ...
    @property
    def epoch(self) -> int:
        """The leader epoch in which this connection writes; 0 for a read-only connection."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statement: str, values: Sequence[Any] = (), /) -> ResultRows: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> ResultRows: ...
    def begin(self) -> None:
        """Begin a write transaction; JournalConflict or NotLeader if our epoch has ended."""

    def snapshot(self) -> AbstractContextManager[None]:
        """A read transaction: all reads inside have the same state."""

    def tables(self) -> set[str]: ...
    def close(self) -> None: ...


def load_server(url_file: str) -> postgres.PostgresServer:
    """The PostgreSQL server whose URL is in a file; SettingsError if psycopg is not installed."""
    try:
        from watchkeeper.store.journal import postgres
    except ImportError as error:
        raise SettingsError(
            f"a journal in PostgreSQL requires psycopg: {error}",
            where="journal.url_file",
            remedy="Run `pip install 'watchkeeper[postgres]'`",
        ) from error
    return postgres.read_server(Path(url_file))


def open_read_only(url_file: str) -> JournalConnection:
    server = load_server(url_file)
    from watchkeeper.store.journal import postgres

    return postgres.PostgresConnection(server, 0)


# In the file's header, to recognise databases of other programs: "WKJ1".
APPLICATION_ID = 0x574B4A31
SCHEMA_VERSION = 1
# How long to wait for a transaction of another process, which takes milliseconds.
BUSY_SECONDS = 5.0


class FileConnection(sqlite3.Connection):
    """The connection to a journal file; implements `JournalConnection`."""

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
