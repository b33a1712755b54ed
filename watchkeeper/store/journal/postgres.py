"""The journal in PostgreSQL: connections, translated statements, and fencing of hubs that lost leadership.

A connection writes in one epoch: each transaction locks the leader's row and compares the epoch, so another hub cannot
acquire leadership in between, and a hub that lost it cannot write. A failed connection is never reused: everything that
was built on it is rebuilt from the journal.
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
# A trim deletes half a million rows; no other statement takes a second.
STATEMENT_TIMEOUT_SECONDS = 60.0
# The same number for all hubs: "WKJ1", as in the header of a journal file.
CREATE_LOCK = 0x574B4A31
# The placeholder of one row in an INSERT; a statement may have 65,535 values.
ROW_PLACEHOLDER, ROWS_PER_STATEMENT = "(?, ?, ?)", 500
EXAMPLE = "postgresql://watchkeeper@db.example/watchkeeper"


class _TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with a timeout for each answer, because a stopped server keeps its sockets open."""

    timeout_seconds = STATEMENT_TIMEOUT_SECONDS

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(_with_timeout(gen, self.timeout_seconds), *args, **options)


def _with_timeout(driver: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """The same generator, but it raises after a time; psycopg resumes it several times a second."""
    deadline = time.monotonic() + seconds
    try:
        request = next(driver)
        while True:
            ready = yield request
            if not ready and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer within {seconds:g} s")
            request = driver.send(ready)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class PostgresServer:
    """A PostgreSQL database. `address` is a secret, because it may contain a password; messages never include it."""

    def __init__(self, address: str) -> None:
        try:
            self._parts = conninfo.conninfo_to_dict(address)
        except psycopg.Error:
            raise SettingsError("is not a PostgreSQL URL", where="journal.url_file", remedy=f"Use {EXAMPLE}") from None
        host, port = (self._parts.get(key) for key in ("host", "port"))
        database = self._parts.get("dbname") or self._parts.get("user") or "of the user"
        self.name = f"PostgreSQL database {database} at {host or 'this machine'}{f':{port}' if port else ''}"

    def connect(
        self, *, timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS, idle_seconds: float = 10.0
    ) -> _TimedConnection:
        """A new connection, which the server closes if a transaction stays idle; StoreError if connecting fails."""
        defaults: dict[str, Any] = {
            "application_name": "watchkeeper",
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": CONNECT_SECONDS,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": int(timeout_seconds * 1000),
        }
        with self.guarded():
            parameters = conninfo.make_conninfo(**{**defaults, **self._parts})
            connection = _TimedConnection.connect(parameters, autocommit=True)
            connection.timeout_seconds = timeout_seconds
            try:
                # A leader that was paused inside a transaction would block the election of another.
                timeouts = {"idle_in_transaction_session_timeout": idle_seconds, "statement_timeout": timeout_seconds}
                for name, seconds in timeouts.items():
                    connection.execute("SELECT set_config(%s, %s, FALSE)", (name, f"{int(seconds * 1000)}ms"))
                # Acknowledged writes must survive a power failure; stronger settings of the server are kept.
                connection.execute(
                    "SELECT set_config('synchronous_commit', 'on', FALSE)"
                    " WHERE current_setting('synchronous_commit') = 'off'"
                )
            except psycopg.Error:
                connection.close()
                raise
        return connection

    def create(self) -> None:
        """Create missing tables and columns; StoreError if the tables are from a newer version."""
        with self.guarded(), self.connect() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
            if connection.execute("SELECT to_regclass('leader')").fetchall() == [(None,)]:
                connection.execute(_read_script("journal_postgres.sql").encode())
            rows = connection.execute("SELECT schema_version FROM leader").fetchall()
            if rows[0][0] > SCHEMA_VERSION:
                raise StoreError(
                    f"the journal has schema version {rows[0][0]}, this Watchkeeper supports up to {SCHEMA_VERSION}",
                    where=self.name,
                    now="It was not changed",
                    remedy="Start the newer Watchkeeper that wrote it",
                )
            added_statements = _read_script("journal_postgres_added.sql")
            indexes = re.findall(r"CREATE INDEX IF NOT EXISTS (\w+)", added_statements)
            # Not at every start, because the leader has to wait for it.
            missing_query = "SELECT FROM unnest(%s::TEXT[]) AS name WHERE to_regclass(name) IS NULL"
            if connection.execute(missing_query, (indexes,)).rowcount:
                connection.execute(added_statements.encode())

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            # The first line names the problem; no line contains a password.
            problem = str(error).strip().partition("\n")[0] or type(error).__name__
            raise StoreError(
                f"the journal cannot be read or written: {problem}",
                where=self.name,
                now="The change may not be saved",
                remedy="The hub retries automatically; check that the server runs and is reachable",
            ) from error


def _read_script(name: str) -> str:
    return resources.files("watchkeeper.store.journal").joinpath(name).read_text()


def read_server(path: Path) -> PostgresServer:
    """The server whose URL is in a file; SettingsError if the file cannot be read or is empty."""
    try:
        address = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot be read: {error_reason(error)}",
            where=str(path),
            remedy=f"Write the URL to this file, such as {EXAMPLE}",
        ) from error
    if not address:
        raise SettingsError("is empty", where=str(path), remedy=f"Write the URL to this file, such as {EXAMPLE}")
    return PostgresServer(address)


class PostgresConnection:
    """A connection for one leader epoch; 0 is read-only. `leader` names the hub that leads instead of this one."""

    def __init__(self, server: PostgresServer, epoch: int, *, leader: str = "", idle_seconds: float = 10.0) -> None:
        self.where, self.epoch, self._leader = server.name, epoch, leader
        self._server, self._is_aborted = server, False
        self._connection = server.connect(idle_seconds=idle_seconds)

    @property
    def is_broken(self) -> bool:
        return self._is_aborted or self._connection.closed

    @property
    def in_transaction(self) -> bool:
        status = self._connection.info.transaction_status
        return status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        with self._guarded():
            return self._connection.execute(to_postgres(statement).encode(), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> psycopg.Cursor[tuple[Any, ...]]:
        """psycopg's `executemany` is not used: after it, PostgreSQL 15 no longer closes idle connections."""
        remaining, cursor = list(rows), self._connection.cursor()
        while remaining:
            batch = remaining[:ROWS_PER_STATEMENT] if ROW_PLACEHOLDER in statement else remaining[:1]
            del remaining[: len(batch)]
            batch_statement = statement.replace(ROW_PLACEHOLDER, ", ".join([ROW_PLACEHOLDER] * len(batch)))
            cursor = self.execute(batch_statement, [value for row in batch for value in row])
        return cursor

    def begin(self) -> None:
        """Begin a write transaction and lock the leadership until its end; NotLeader if another hub leads."""
        if not self.epoch:
            raise self._not_leader_error()
        self.execute("BEGIN")
        current = self.execute("SELECT epoch FROM leader FOR SHARE").fetchall()
        if current != [(self.epoch,)]:
            self.execute("ROLLBACK")
            # Closed permanently: the new leader must repeat all decisions of this epoch.
            self.close()
            raise self._not_leader_error(f"epoch {self.epoch} has ended, the current epoch is {current[0][0]}: ")

    def _not_leader_error(self, why: str = "") -> NotLeader:
        return NotLeader(
            f"{why}another hub leads{f': {self._leader}' if self._leader else ''}",
            where=self.where,
            now="Nothing was written; this hub is read-only",
            remedy=f"Send the request to {self._leader}"
            if self._leader
            else "Send the request to the leader; see /readyz",
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

    def abort(self) -> None:
        """Abort the connection from another thread: a call that waits for an answer gets StoreError now."""
        self._is_aborted = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._server.guarded():
            try:
                yield
            except psycopg.DataError as error:
                raise WireError((f"PostgreSQL cannot store this: {error}",)) from error
            except psycopg.OperationalError:
                # A late answer must not be read as the answer to the next statement.
                self._connection.close()
                raise


@functools.lru_cache(maxsize=256)
def to_postgres(statement: str) -> str:
    """A statement of the journal in the syntax of PostgreSQL."""
    # PostgreSQL has no INDEXED BY.
    return re.sub(r" INDEXED BY \w+", "", statement).replace("?", "%s")
