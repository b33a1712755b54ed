"""Search and verify the journal while a hub writes it: entries by kind, subject, actor, words and time.

Each call has its own read-only connection, so a search never blocks a commit. A search reads a limited number of
entries, newest first, and returns how far it got.
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
from watchkeeper.store.journal import chain, connection
from watchkeeper.store.journal.chain import JournalEntry
from watchkeeper.store.journal.connection import JournalConnection

# Entries that one search reads; with a kilobyte each, about 20 MB.
MAX_SEARCHED_ENTRIES = 20_000


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries to find; empty fields match all. `before` is an entry number, for the next page."""

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
    """Entries, newest first; `looked_back_to` is the oldest entry read, `first` and `last` are those of the journal."""

    entries: tuple[JournalEntry, ...]
    first: int
    last: int
    looked_back_to: int
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class JournalLocation:
    """The SQLite file of a journal, or the file with the URL of its PostgreSQL database."""

    path: Path
    url_file: str | None = None


def search(location: JournalLocation, entry_filter: EntryFilter) -> EntryPage:
    with _open_reader(location) as reader:
        first, last = reader.execute("SELECT COALESCE(MIN(seq), 0), COALESCE(MAX(seq), 0) FROM entry").fetchone()
        newest = int(last) if entry_filter.before is None else min(int(last), entry_filter.before - 1)
        oldest = max(int(first), newest - MAX_SEARCHED_ENTRIES + 1)
        conditions, values = _conditions(entry_filter)
        seq_range = "seq BETWEEN ? AND ?"
        rows = reader.execute(
            f"SELECT * FROM entry WHERE {' AND '.join([seq_range, *conditions])} ORDER BY seq DESC LIMIT ?",  # noqa: S608
            (oldest, newest, *values, entry_filter.limit),
        ).fetchall()
        statement = f"SELECT kind, COUNT(*) FROM entry WHERE {seq_range} GROUP BY kind"  # noqa: S608
        kind_counts = reader.execute(statement, (oldest, newest))
        kinds = {str(kind): int(count) for kind, count in kind_counts.fetchall()}
    entries = tuple(_entry(row, location) for row in rows)
    is_full = len(entries) >= entry_filter.limit
    oldest_read = entries[-1].seq if is_full else oldest
    return EntryPage(entries, int(first), int(last), oldest_read, dict(sorted(kinds.items())))


def first_invalid_entry(location: JournalLocation) -> tuple[int | None, int]:
    """The number of the first invalid entry, None if all are valid; and how many were read."""
    with _open_reader(location) as reader, reader.snapshot():
        invalid_seq = chain.first_invalid_entry(reader)
        return invalid_seq, int(reader.execute("SELECT COUNT(*) FROM entry").fetchone()[0])


def _conditions(entry_filter: EntryFilter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    if entry_filter.kinds:
        conditions.append(f"kind IN ({', '.join('?' * len(entry_filter.kinds))})")
        values += entry_filter.kinds
    for column, text in (("subject", entry_filter.subject), ("actor", entry_filter.actor)):
        if text:
            conditions.append(f"{column} = ?")
            values.append(text)
    for condition, at in (("at >= ?", entry_filter.since), ("at <= ?", entry_filter.until)):
        if at is not None:
            conditions.append(condition)
            values.append(wire.format_time(at))
    for word in entry_filter.words:
        columns = "lower(body) LIKE ? ESCAPE '!' OR lower(subject) LIKE ? ESCAPE '!' OR lower(actor) LIKE ? ESCAPE '!'"
        conditions.append(f"({columns} OR lower(kind) LIKE ? ESCAPE '!')")
        values += [f"%{_escape_like(word.lower())}%"] * 4
    return conditions, values


def _escape_like(word: str) -> str:
    return word.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _entry(row: tuple[Any, ...], location: JournalLocation) -> JournalEntry:
    try:
        return chain.entry_of(row)
    except ValueError as error:
        raise StoreError(f"entry {row[0]} cannot be read", where=str(location.path)) from error


@contextmanager
def _open_reader(location: JournalLocation) -> Iterator[JournalConnection]:
    if location.url_file is not None:
        with closing(connection.open_read_only(location.url_file)) as server:
            yield server
        return
    if not location.path.is_file():
        raise StoreError("no journal found", where=str(location.path))
    try:
        file = sqlite3.connect(f"file:{location.path}?mode=ro", uri=True, factory=connection.FileConnection)
        with closing(file) as reader:
            yield reader
    except sqlite3.Error as error:
        raise StoreError(f"the journal cannot be read: {error}", where=str(location.path)) from error
