"""The places of a journal for tests of all of them: a file, or a PostgreSQL database."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from watchkeeper.store.journal import election, postgres
from watchkeeper.store.journal.journal import Journal


class Place(Protocol):
    """`lead` opens the journal as its newest leader; `spoil` changes it behind its back."""

    def lead(self) -> Journal: ...
    def spoil(self, statement: str) -> None: ...


class File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def lead(self) -> Journal:
        return Journal(self._path)

    def spoil(self, statement: str) -> None:
        with closing(self.lead()) as journal:
            journal._connection.execute(statement)


class Database:
    def __init__(self, address: str) -> None:
        self.server = postgres.PostgresServer(address)
        self.server.create()
        self._turn: Iterator[int] = itertools.count(1)

    def candidate(self, lease_seconds: float = 0.0) -> election.Election:
        name = f"hub-{next(self._turn)}"
        return election.Election(self.server, name, url=f"http://{name}:9480", lease_seconds=lease_seconds)

    def lead(self) -> Journal:
        """A lease of no time: the next one who wants it gets it."""
        with closing(self.candidate()) as election:
            epoch = election.acquire()
        assert epoch is not None
        return Journal(postgres.PostgresConnection(self.server, epoch, leader="hub-1 at http://hub-1:9480"))

    def spoil(self, statement: str) -> None:
        with self.server.connect() as connection:
            connection.execute(statement.encode())
