"""What the journal needs of a database: the small part of Python's database interface that SQLite and PostgreSQL share.

`journal_file.FileConnection` and `postgres.ServerConnection` are the two there are. Values go where a `?` stands.
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
    """What a statement answers."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One connection, for one thread at a time. `where` names the database in messages and holds no secret."""

    @property
    def where(self) -> Path | str: ...
    @property
    def epoch(self) -> int:
        """The epoch in which this connection writes; 0 for one that only reads."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statement: str, values: Sequence[Any] = (), /) -> ResultRows: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> ResultRows: ...
    def begin(self) -> None:
        """Begin to write; JournalConflict or NotLeader when the epoch is no longer ours."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""

    def tables(self) -> set[str]: ...
    def close(self) -> None: ...


def load_server(url_file: str) -> postgres.PostgresServer:
    """The server whose address is in a file; SettingsError where its library is not installed."""
    try:
        from watchkeeper.store.journal import postgres
    except ImportError as error:
        raise SettingsError(
            f"a journal in PostgreSQL needs psycopg: {error}",
            where="journal.url_file",
            remedy="Run `pip install 'watchkeeper[postgres]'`",
        ) from error
    return postgres.read_server(Path(url_file))


def open_read_only(url_file: str) -> Connection:
    """A connection that only reads."""
    server = load_server(url_file)
    from watchkeeper.store.journal import postgres

    return postgres.PostgresConnection(server, 0)
