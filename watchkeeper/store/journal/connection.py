"""The database interface of the journal: the small part of Python's DB-API that SQLite and PostgreSQL share.

`journal_file.FileConnection` and `postgres.PostgresConnection` implement it. The placeholder for values is `?`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from watchkeeper.errors import SettingsError

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
