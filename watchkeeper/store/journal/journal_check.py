"""Is the journal what was written? The chain of entries, and the rows that each entry sealed.

`Journal._write` puts the `seal` of its rows into the entry, which puts them under the chain;
`Journal.verify` asks for the first entry that does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from watchkeeper.kit import wire
from watchkeeper.store.journal import chain
from watchkeeper.store.journal.chain import JournalEntry
from watchkeeper.store.journal.connection import Connection

CHECKPOINT = "checkpoint"
SEAL = "sha256"
# Rows of these tables are rewritten by later entries; events never are.
CHANGING_TABLES = (
    *("incident", "diagnosis", "plan", "alert", "work_order", "silence", "notice"),
    *("repair", "repair_switch"),
)
# Rows of some kilobytes each.
PAGE_ROWS = 1_000
# A copy that an older Watchkeeper made may lack these.
ADDED_TABLES = frozenset({"work_order", "silence", "notice", "repair", "repair_switch"})


def row_digests(rows: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The digest of each row, as a part of an entry's body."""
    return {SEAL: {key: chain.digest([content]) for key, content in rows.items()}}


def entry_of(row: tuple[Any, ...]) -> JournalEntry:
    """An entry from its columns; ValueError when they are not what we write."""
    seq, at, actor, kind, subject, body, epoch, prev, hash = row
    return JournalEntry(seq, wire.parse_time(at), actor, kind, subject, json.loads(body), epoch, prev, hash)


def first_invalid_entry(connection: Connection) -> int | None:
    broken = {seq for seq in (_broken_entry(connection), _broken_row(connection)) if seq is not None}
    return min(broken, default=None)


def _broken_entry(connection: Connection) -> int | None:
    expected, prev = _start(connection)
    for row in _paged(connection, "SELECT * FROM entry WHERE seq > ? ORDER BY seq LIMIT ?", after=0):
        if row[0] != expected or not _is_as_written(row, prev):
            return min(expected, int(row[0]))
        entry = entry_of(row)
        if entry.kind == "event" and _seal_of_events(connection, entry.seq) != entry.body.get(SEAL):
            return entry.seq
        expected, prev = entry.seq + 1, entry.hash
    return None


def _is_as_written(row: tuple[Any, ...], prev: str) -> bool:
    """The text of time and body is compared too: other spellings of the same value would hash alike."""
    try:
        entry = entry_of(row)
        return (
            row[1] == wire.format_time(entry.at) and row[5] == wire.dumps(entry.body) and chain.is_intact(entry, prev)
        )
    except (ValueError, TypeError, AttributeError):
        return False


def _start(connection: Connection) -> tuple[int, str]:
    """Where the chain begins: at the first entry ever, or after what the newest checkpoint dropped."""
    for (text,) in connection.execute("SELECT body FROM entry WHERE kind = ? ORDER BY seq DESC", (CHECKPOINT,)):
        try:
            body = json.loads(text)
            return int(body["after"]) + 1, str(body["hash"])
        except (ValueError, TypeError, KeyError):
            continue
    return 1, chain.GENESIS


def _seal_of_events(connection: Connection, seq: int) -> dict[str, str]:
    rows = connection.execute("SELECT key, body FROM event WHERE seq = ?", (seq,))
    return row_digests(dict(rows))[SEAL]


def _broken_row(connection: Connection) -> int | None:
    """The lowest entry number whose incident, diagnosis, plan, alert or order row is not the one it wrote."""
    first, last = connection.execute("SELECT MIN(seq), MAX(seq) FROM entry").fetchone()
    broken = []
    present = connection.tables()
    for table in (table for table in CHANGING_TABLES if table not in ADDED_TABLES or table in present):
        statement = f"SELECT key, seq, body FROM {table} WHERE key > ? ORDER BY key LIMIT ?"  # noqa: S608
        for key, seq, body in _paged(connection, statement, after=""):
            # A row older than the chain's beginning outlived a trim: nothing is left to compare it with.
            if first is not None and seq < first:
                continue
            if last is None or seq > last or _sealed(connection, seq).get(key) != chain.digest([body]):
                broken.append(int(seq))
    return min(broken, default=None)


def _sealed(connection: Connection, seq: int) -> dict[str, str]:
    row = connection.execute("SELECT body FROM entry WHERE seq = ?", (seq,)).fetchone()
    try:
        return dict(json.loads(row[0])[SEAL])
    except (ValueError, TypeError, KeyError):
        return {}


def _paged(connection: Connection, statement: str, *, after: int | str) -> Iterator[tuple[Any, ...]]:
    """Rows by their first column, a page at a time: a server's library would bring all of them into memory at once."""
    while page := connection.execute(statement, (after, PAGE_ROWS)).fetchall():
        yield from page
        after = page[-1][0]
