"""Leader election of several hubs: a lease in one row of PostgreSQL, timed by the server's clock.

`leadership` acquires and renews the lease every few seconds. The row's epoch counts leaders:
`postgres.PostgresConnection` compares it in each transaction, so the lease decides only when another hub may try to
lead, and the epoch decides who may write.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from watchkeeper.errors import StoreError
from watchkeeper.store.journal.postgres import PostgresServer

# The row is small and locked only briefly: a longer wait means a problem of the server.
STATEMENT_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The leader, its epoch and URL, and the remaining seconds; `is_ours` if this hub leads."""

    epoch: int
    holder: str
    url: str
    seconds_left: float
    is_ours: bool

    def __str__(self) -> str:
        return f"{self.holder} at {self.url}" if self.holder else "(none)"


class Election:
    """One candidate; not thread-safe. Every method raises StoreError if the server is unreachable."""

    def __init__(self, server: PostgresServer, holder: str, *, url: str, lease_seconds: float) -> None:
        self.server, self._holder, self._url = server, holder, url
        self._lease_seconds = lease_seconds
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def read_lease(self) -> Lease:
        rows = self._execute(
            "SELECT epoch, holder, url, EXTRACT(EPOCH FROM expires_at - clock_timestamp())::float8 FROM leader"
        )
        epoch, holder, url, remaining_seconds = rows[0]
        return Lease(epoch, holder, url, remaining_seconds, is_ours=holder == self._holder)

    def acquire(self) -> int | None:
        """Acquire the lease if it has expired or was ours, and return the new epoch; None if another hub leads."""
        # After waiting for a lock, PostgreSQL checks the row and the clock again.
        rows = self._execute(
            "UPDATE leader SET epoch = epoch + 1, holder = %s, url = %s,"
            " expires_at = clock_timestamp() + %s * INTERVAL '1 second'"
            " WHERE expires_at <= clock_timestamp() OR holder = %s RETURNING epoch",
            *(self._holder, self._url, self._lease_seconds, self._holder),
        )
        return int(rows[0][0]) if rows else None

    def renew(self, epoch: int) -> bool:
        """Renew the lease; False if another hub leads. An expired lease that no other hub acquired is renewed too."""
        rows = self._execute(
            "UPDATE leader SET expires_at = clock_timestamp() + %s * INTERVAL '1 second' WHERE epoch = %s RETURNING 1",
            *(self._lease_seconds, epoch),
        )
        return bool(rows)

    def release(self, epoch: int) -> None:
        """Release the lease, so that another hub can lead at once."""
        self._execute("UPDATE leader SET expires_at = 'epoch' WHERE epoch = %s RETURNING 1", epoch)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self.server.guarded():
                if self._connection is None:
                    self._connection = self.server.connect(timeout_seconds=STATEMENT_TIMEOUT_SECONDS)
                    # A statement that we no longer wait for must not acquire the lease later.
                    self._connection.execute(f"SET lock_timeout = '{int(STATEMENT_TIMEOUT_SECONDS * 500)}ms'".encode())
                return self._connection.execute(statement.encode(), values).fetchall()
        except StoreError:
            with suppress(psycopg.Error):
                self.close()
            raise
