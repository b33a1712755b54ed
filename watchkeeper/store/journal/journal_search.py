"""Reading the audit while a hub writes it: entries by kind, subject, actor, words and time, and if the chain holds.

Each call has a connection of its own that only reads, so that a search never stands in the way of a commit. A search
looks at a bounded number of entries, newest first, and says how far it got. `web/journal_api` asks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from watchkeeper.errors import StoreError
from watchkeeper.kit import wire
from watchkeeper.store.journal import connection, journal_check, journal_file
from watchkeeper.store.journal.chain import JournalEntry
from watchkeeper.store.journal.connection import Connection

# Entries that one search looks at; a kilobyte each, so some 20 MB.
MOST_SEARCHED = 20_000


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """What is looked for; empty is everything. `before` is the number of an entry, for the next page."""

    kinds: tuple[str, ...] = ()
    subject: str = ""
    actor: str = ""
    words: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None
    limit: int = 200


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries, newest first; `looked_back_to` is the oldest number looked at, `first` and `last` what there is."""

    entries: tuple[JournalEntry, ...]
    first: int
    last: int
    looked_back_to: int
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class JournalLocation:
    """A journal's file, or the file of the address of its database."""

    path: Path
    url_file: str | None = None


def search(where: JournalLocation, wanted: EntryFilter) -> EntryPage:
    with _opened(where) as reader:
        first, last = reader.execute("SELECT COALESCE(MIN(seq), 0), COALESCE(MAX(seq), 0) FROM entry").fetchone()
        newest = int(last) if wanted.before is None else min(int(last), wanted.before - 1)
        oldest = max(int(first), newest - MOST_SEARCHED + 1)
        conditions, values = _conditions(wanted)
        span = "seq BETWEEN ? AND ?"
        rows = reader.execute(
            f"SELECT * FROM entry WHERE {' AND '.join([span, *conditions])} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (oldest, newest, *values, wanted.limit),
        ).fetchall()
        counted = reader.execute(f"SELECT kind, COUNT(*) FROM entry WHERE {span} GROUP BY kind", (oldest, newest))  # noqa: S608
        kinds = {str(kind): int(count) for kind, count in counted.fetchall()}
    entries = tuple(_entry(row, where) for row in rows)
    is_full = len(entries) >= wanted.limit
    return EntryPage(
        entries, int(first), int(last), entries[-1].seq if is_full else oldest, dict(sorted(kinds.items()))
    )


def first_invalid_entry(where: JournalLocation) -> tuple[int | None, int]:
    """The number of the first entry that is not as it was written, None if all are; and how many were read."""
    with _opened(where) as reader, reader.snapshot():
        broken = journal_check.first_invalid_entry(reader)
        return broken, int(reader.execute("SELECT COUNT(*) FROM entry").fetchone()[0])


def _conditions(wanted: EntryFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    if wanted.kinds:
        conditions.append(f"kind IN ({', '.join('?' * len(wanted.kinds))})")
        values += wanted.kinds
    for column, text in (("subject", wanted.subject), ("actor", wanted.actor)):
        if text:
            conditions.append(f"{column} = ?")
            values.append(text)
    if wanted.since is not None:
        conditions.append("at >= ?")
        values.append(wire.format_time(wanted.since))
    if wanted.until is not None:
        conditions.append("at <= ?")
        values.append(wire.format_time(wanted.until))
    for word in wanted.words:
        columns = "lower(body) LIKE ? ESCAPE '!' OR lower(subject) LIKE ? ESCAPE '!' OR lower(actor) LIKE ? ESCAPE '!'"
        conditions.append(f"({columns} OR lower(kind) LIKE ? ESCAPE '!')")
        values += [f"%{_escaped(word.lower())}%"] * 4
    return conditions, values


def _escaped(word: str) -> str:
    return word.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _entry(row: tuple[Any, ...], where: JournalLocation) -> JournalEntry:
    try:
        return journal_check.entry_of(row)
    except ValueError as error:
        raise StoreError(f"entry {row[0]} is not readable", where=str(where.path)) from error


@contextmanager
def _opened(where: JournalLocation) -> Iterator[Connection]:
    if where.url_file is not None:
        with closing(connection.open_read_only(where.url_file)) as server:
            yield server
        return
    if not where.path.is_file():
        raise StoreError("there is no journal here", where=str(where.path))
    try:
        opened = sqlite3.connect(f"file:{where.path}?mode=ro", uri=True, factory=journal_file.FileConnection)
        with closing(opened) as reader:
            yield reader
    except sqlite3.Error as error:
        raise StoreError(f"the journal cannot be read: {error}", where=str(where.path)) from error
