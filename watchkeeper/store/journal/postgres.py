"""The journal in PostgreSQL: how it is reached, what is made of a statement, and who may write.

`leadership` opens a `Server` and gives `journal.Journal` one `ServerConnection` for each time that this hub leads or
follows. A connection writes in one epoch only: each transaction locks the leader's row and compares, so another hub
cannot become the leader in between, and one that has lost the lead cannot write. A connection that broke stays broken:
whatever was built on it is built anew from the journal.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo, pq

from watchkeeper.errors import NotLeader, SettingsError, StoreError, WireError, error_reason

T = TypeVar("T")

SCHEMA_VERSION = 1
CONNECT_SECONDS = 3
# A trim deletes half a million rows; nothing else takes a second.
ANSWER_SECONDS = 60.0
# Any number that all hubs agree on: "WKJ1", as in the header of a journal's file.
CREATE_LOCK = 0x574B4A31
# What stands in a statement that inserts, once for each row; a statement may have 65,535 values.
ONE_ROW, ROWS_AT_ONCE = "(?, ?, ?)", 500
EXAMPLE = "postgresql://watchkeeper@db.example/watchkeeper"


class _TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for an answer for so long and no longer: a stopped server keeps its sockets open."""

    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(_limited(gen, self.answer_seconds), *args, **options)


def _limited(waiting: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """The same generator, which raises after a time; psycopg wakes it with nothing several times a second."""
    deadline = time.monotonic() + seconds
    try:
        wish = next(waiting)
        while True:
            ready = yield wish
            if not ready and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer for {seconds:g} s")
            wish = waiting.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class PostgresServer:
    """A database of a PostgreSQL server. `address` is a secret: it may hold a password, and stands in no message."""

    def __init__(self, address: str) -> None:
        try:
            self._parts = conninfo.conninfo_to_dict(address)
        except psycopg.Error:
            raise SettingsError(
                "is not the address of a PostgreSQL database", where="journal.url_file", remedy=f"Write {EXAMPLE}"
            ) from None
        host, port = (self._parts.get(key) for key in ("host", "port"))
        database = self._parts.get("dbname") or self._parts.get("user") or "the user's own"
        self.name = f"PostgreSQL database {database} at {host or 'this machine'}{f':{port}' if port else ''}"

    def connect(self, *, answer_seconds: float = ANSWER_SECONDS, idle_seconds: float = 10.0) -> _TimedConnection:
        """A new connection, which the server cuts when it is left in a transaction; StoreError when there is none."""
        defaults: dict[str, Any] = {
            "application_name": "watchkeeper",
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": CONNECT_SECONDS,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": int(answer_seconds * 1000),
        }
        with self.guarded():
            connection = _TimedConnection.connect(
                conninfo.make_conninfo(**{**defaults, **self._parts}), autocommit=True
            )
            connection.answer_seconds = answer_seconds
            try:
                # A leader that was stopped inside a transaction would keep the others from taking the lead.
                limits = {"idle_in_transaction_session_timeout": idle_seconds, "statement_timeout": answer_seconds}
                for name, seconds in limits.items():
                    connection.execute("SELECT set_config(%s, %s, FALSE)", (name, f"{int(seconds * 1000)}ms"))
                # What was acknowledged must survive a power cut; stronger promises of the server stay as they are.
                connection.execute(
                    "SELECT set_config('synchronous_commit', 'on', FALSE)"
                    " WHERE current_setting('synchronous_commit') = 'off'"
                )
            except psycopg.Error:
                connection.close()
                raise
        return connection

    def create(self) -> None:
        """Make the tables and what older ones lack; StoreError for tables of a version that we do not know."""
        with self.guarded(), self.connect() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
            if connection.execute("SELECT to_regclass('leader')").fetchall() == [(None,)]:
                connection.execute(_statements("journal_postgres.sql").encode())
            rows = connection.execute("SELECT schema_version FROM leader").fetchall()
            if rows[0][0] > SCHEMA_VERSION:
                raise StoreError(
                    f"the journal has schema version {rows[0][0]}, this Watchkeeper knows up to {SCHEMA_VERSION}",
                    where=self.name,
                    now="It was not changed",
                    remedy="Start the newer Watchkeeper that wrote it",
                )
            added = _statements("journal_postgres_added.sql")
            indexes = re.findall(r"CREATE INDEX IF NOT EXISTS (\w+)", added)
            # Not at every start: the leader waits for it.
            lacking = "SELECT FROM unnest(%s::TEXT[]) AS name WHERE to_regclass(name) IS NULL"
            if connection.execute(lacking, (indexes,)).rowcount:
                connection.execute(added.encode())

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            # Of several lines the first says what is wrong; a password is in none of them.
            problem = str(error).strip().partition("\n")[0] or type(error).__name__
            raise StoreError(
                f"the journal refused: {problem}",
                where=self.name,
                now="What was being written counts as not kept",
                remedy="The hub tries again by itself; see that the server runs and can be reached",
            ) from error


def _statements(name: str) -> str:
    return resources.files("watchkeeper.store.journal").joinpath(name).read_text()


def read_server(path: Path) -> PostgresServer:
    """The server whose address is in a file; SettingsError without one."""
    try:
        address = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot be read: {error_reason(error)}",
            where=str(path),
            remedy=f"Write the address there, such as {EXAMPLE}",
        ) from error
    if not address:
        raise SettingsError("is empty", where=str(path), remedy=f"Write the address there, such as {EXAMPLE}")
    return PostgresServer(address)


class PostgresConnection:
    """`connection.Connection` on a server, in one epoch; 0 reads only. `leader` says who leads instead of us."""

    def __init__(self, server: PostgresServer, epoch: int, *, leader: str = "", idle_seconds: float = 10.0) -> None:
        self.where, self.epoch, self._leader = server.name, epoch, leader
        self._server, self._is_cut = server, False
        self._connection = server.connect(idle_seconds=idle_seconds)

    @property
    def is_broken(self) -> bool:
        return self._is_cut or self._connection.closed

    @property
    def in_transaction(self) -> bool:
        status = self._connection.info.transaction_status
        return status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        with self._guarded():
            return self._connection.execute(translated(statement).encode(), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> psycopg.Cursor[tuple[Any, ...]]:
        """Several rows in one statement where it inserts; one statement for each where it does not.

        Not psycopg's own: it uses a pipeline, after which PostgreSQL 15 forgets to cut a connection that stays idle.
        """
        left, found = list(rows), self._connection.cursor()
        while left:
            some = left[:ROWS_AT_ONCE] if ONE_ROW in statement else left[:1]
            del left[: len(some)]
            whole = statement.replace(ONE_ROW, ", ".join([ONE_ROW] * len(some)))
            found = self.execute(whole, [value for row in some for value in row])
        return found

    def begin(self) -> None:
        """Begin to write, and hold the lead until the end of the transaction."""
        if not self.epoch:
            raise self._not_leading()
        self.execute("BEGIN")
        current = self.execute("SELECT epoch FROM leader FOR SHARE").fetchall()
        if current != [(self.epoch,)]:
            self.execute("ROLLBACK")
            # For good: whatever was concluded in this epoch is to be concluded anew by whoever leads.
            self.close()
            raise self._not_leading(f"epoch {self.epoch} is over, {current[0][0]} is the current one: ")

    def _not_leading(self, why: str = "") -> NotLeader:
        return NotLeader(
            f"{why}another hub leads{f': {self._leader}' if self._leader else ''}",
            where=self.where,
            now="Nothing was written; this hub answers questions only",
            remedy=f"Send it to {self._leader}" if self._leader else "See /readyz for the leader, and send it there",
        )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if self.in_transaction:
                self.execute("ROLLBACK")

    def tables(self) -> set[str]:
        rows = self.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = CURRENT_SCHEMA")
        return {row[0] for row in rows}

    def cut(self) -> None:
        """End it from another thread: whoever waits for an answer gets StoreError now."""
        self._is_cut = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._server.guarded():
            try:
                yield
            except psycopg.DataError as error:
                raise WireError((f"PostgreSQL cannot keep this: {error}",)) from error
            except psycopg.OperationalError:
                # An answer that came too late must not be taken for the next one.
                self._connection.close()
                raise


@functools.lru_cache(maxsize=256)
def translated(statement: str) -> str:
    """A statement of the journal as PostgreSQL wants it."""
    # PostgreSQL chooses an index by itself.
    return re.sub(r" INDEXED BY \w+", "", statement).replace("?", "%s")
