"""Who of several hubs leads: one row in PostgreSQL, taken by whoever finds it expired, and told by the server's clock.

`leadership` asks here every few seconds. The row's epoch counts leaders: `postgres.ServerConnection` compares it in
each transaction, so the time here decides only when another may try, never who may write.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from watchkeeper.errors import StoreError
from watchkeeper.store.journal.postgres import PostgresServer

# The row is small and locked for moments: who waits longer has a server in trouble.
ANSWER_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads, in which epoch, for how long yet, and where it is; `is_ours` when we took it."""

    epoch: int
    holder: str
    url: str
    seconds_left: float
    is_ours: bool

    def __str__(self) -> str:
        return f"{self.holder} at {self.url}" if self.holder else "(none)"


class Election:
    """One candidate. Not for several threads at once; every method raises StoreError when the server is away."""

    def __init__(self, server: PostgresServer, holder: str, *, url: str, lease_seconds: float) -> None:
        self.server, self._holder, self._url = server, holder, url
        self._lease = lease_seconds
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def read_lease(self) -> Lease:
        rows = self._ask(
            "SELECT epoch, holder, url, EXTRACT(EPOCH FROM expires_at - clock_timestamp())::float8 FROM leader"
        )
        epoch, holder, url, left = rows[0]
        return Lease(epoch, holder, url, left, is_ours=holder == self._holder)

    def acquire(self) -> int | None:
        """Begin a new epoch where the last one has run out or was ours; None when another hub leads."""
        # The server looks at the row again after it has waited for another's lock, and at its clock anew.
        rows = self._ask(
            "UPDATE leader SET epoch = epoch + 1, holder = %s, url = %s,"
            " expires_at = clock_timestamp() + %s * INTERVAL '1 second'"
            " WHERE expires_at <= clock_timestamp() OR holder = %s RETURNING epoch",
            *(self._holder, self._url, self._lease, self._holder),
        )
        return int(rows[0][0]) if rows else None

    def renew(self, epoch: int) -> bool:
        """Lead for another lease; False when the epoch is no longer ours. One that ran out unnoticed is renewed."""
        rows = self._ask(
            "UPDATE leader SET expires_at = clock_timestamp() + %s * INTERVAL '1 second' WHERE epoch = %s RETURNING 1",
            *(self._lease, epoch),
        )
        return bool(rows)

    def release(self, epoch: int) -> None:
        """Let another hub lead at once."""
        self._ask("UPDATE leader SET expires_at = 'epoch' WHERE epoch = %s RETURNING 1", epoch)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self.server.guarded():
                if self._connection is None:
                    self._connection = self.server.connect(answer_seconds=ANSWER_SECONDS)
                    # Given up by us, a statement that waits for the row must not take the lead for nobody.
                    self._connection.execute(f"SET lock_timeout = '{int(ANSWER_SECONDS * 500)}ms'".encode())
                return self._connection.execute(statement.encode(), values).fetchall()
        except StoreError:
            with suppress(psycopg.Error):
                self.close()
            raise
