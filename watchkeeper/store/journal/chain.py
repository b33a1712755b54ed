"""The hash chain of the journal: each entry includes the hash of the one before, and the digests of its rows.

Changing a byte of an old entry or its rows invalidates every later entry. `journal` stores the entries, and
`Journal.verify` returns the first invalid entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from watchkeeper.kit import wire
from watchkeeper.store.journal import journal_head
from watchkeeper.store.journal.connection import JournalConnection

# The `prev` of the first entry: 64 zeros, the length of a SHA-256 in hexadecimal.
GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry of the journal: who did what to which subject, when, and in which leader epoch."""

    seq: int
    at: datetime
    actor: str
    kind: str
    subject: str
    body: Mapping[str, Any]
    epoch: int
    prev: str
    hash: str

    @property
    def text(self) -> str:
        """The text for the timeline, or an empty text."""
        return str(self.body.get("text", ""))


def digest(texts: Iterable[str]) -> str:
    """The SHA-256 of several texts and their lengths, so that different lists have different digests."""
    total = hashlib.sha256()
    for text in texts:
        content = text.encode()
        total.update(len(content).to_bytes(8, "big"))
        total.update(content)
    return total.hexdigest()


def entry_hash(entry: JournalEntry, body: str | None = None) -> str:
    """The digest of all fields except the hash; pass `body` if the body is already encoded."""
    # The same text as `wire.dumps` of all fields, but a large body is encoded only once.
    at_text, body = wire.format_time(entry.at), wire.dumps(entry.body) if body is None else body
    actor, kind, prev, subject = (wire.dumps(text) for text in (entry.actor, entry.kind, entry.prev, entry.subject))
    first_part = f'{{"actor":{actor},"at":"{at_text}","body":{body},"epoch":{entry.epoch:d},"kind":{kind}'
    return digest([f'{first_part},"prev":{prev},"seq":{entry.seq:d},"subject":{subject}}}'])


def is_intact(entry: JournalEntry, prev: str) -> bool:
    return entry.prev == prev and entry.hash == entry_hash(entry)


CHECKPOINT = "checkpoint"
DIGESTS_KEY = "sha256"
# Later entries rewrite rows of these tables; events are never rewritten.
CHANGING_TABLES = (
    *("incident", "diagnosis", "plan", "alert", "work_order", "silence", "notice"),
    *("repair", "repair_switch"),
)
# Rows have a few kilobytes each.
PAGE_ROWS = 1_000
# A copy from an older version may lack these tables.
ADDED_TABLES = frozenset({"work_order", "silence", "notice", "repair", "repair_switch"})


def row_digests(rows: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The digests of rows by key, for the body of an entry."""
    return {DIGESTS_KEY: {key: digest([content]) for key, content in rows.items()}}


def entry_of(row: tuple[Any, ...]) -> JournalEntry:
    """The entry of a database row; ValueError if its columns are invalid."""
    seq, at, actor, kind, subject, body, epoch, prev, hash = row
    return JournalEntry(seq, wire.parse_time(at), actor, kind, subject, json.loads(body), epoch, prev, hash)


def first_invalid_entry(connection: JournalConnection) -> int | None:
    invalid_seqs = _first_invalid_link(connection), _first_invalid_row(connection)
    return min((seq for seq in invalid_seqs if seq is not None), default=None)


def _first_invalid_link(connection: JournalConnection) -> int | None:
    expected_seq, prev = _chain_start(connection)
    accepted_gaps = _accepted_gaps(connection)
    for row in _read_pages(connection, "SELECT * FROM entry WHERE seq > ? ORDER BY seq LIMIT ?", after=0):
        expected_seq, prev = accepted_gaps.get((expected_seq, row[0]), (expected_seq, prev))
        if row[0] != expected_seq or not _is_unchanged(row, prev):
            return min(expected_seq, int(row[0]))
        entry = entry_of(row)
        if entry.kind == "event":
            events = connection.execute("SELECT key, body FROM event WHERE seq = ?", (entry.seq,))
            if row_digests(dict(events))[DIGESTS_KEY] != entry.body.get(DIGESTS_KEY):
                return entry.seq
        expected_seq, prev = entry.seq + 1, entry.hash
    return None


def _is_unchanged(row: tuple[Any, ...], prev: str) -> bool:
    """Whether a row is exactly as written; texts are compared too, because other spellings would have equal hashes."""
    try:
        entry = entry_of(row)
        texts = wire.format_time(entry.at), wire.dumps(entry.body)
        return (row[1], row[5]) == texts and is_intact(entry, prev)
    except (ValueError, TypeError, AttributeError):
        return False


def _chain_start(connection: JournalConnection) -> tuple[int, str]:
    """Where the chain begins: at the first entry, or after the entries that the newest checkpoint dropped."""
    for (text,) in connection.execute("SELECT body FROM entry WHERE kind = ? ORDER BY seq DESC", (CHECKPOINT,)):
        try:
            body = json.loads(text)
            return int(body["after"]) + 1, str(body["hash"])
        except (ValueError, TypeError, KeyError):
            continue
    return 1, GENESIS


def _accepted_gaps(connection: JournalConnection) -> dict[tuple[int, int], tuple[int, str]]:
    """Gaps of lost entries that a person accepted: expected and present number → where the chain continues."""
    gaps = {}
    statement = "SELECT body FROM entry WHERE kind = ?"
    for (text,) in connection.execute(statement, (journal_head.LOSS_ACCEPTED,)):
        with suppress(ValueError, TypeError, KeyError):
            body = json.loads(text)
            first, following = int(body["first"]), int(body["last"]) + 1
            gaps[first, following] = following, str(body["hash"])
    return gaps


def _first_invalid_row(connection: JournalConnection) -> int | None:
    """The lowest number of an entry whose row in one of the changing tables is not the one it wrote."""
    first, last = connection.execute("SELECT MIN(seq), MAX(seq) FROM entry").fetchone()
    invalid_seqs = []
    present = connection.tables()
    for table in (table for table in CHANGING_TABLES if table not in ADDED_TABLES or table in present):
        statement = f"SELECT key, seq, body FROM {table} WHERE key > ? ORDER BY key LIMIT ?"  # noqa: S608
        for key, seq, body in _read_pages(connection, statement, after=""):
            # A row from before the start of the chain survived a trim: its entry no longer exists.
            if first is not None and seq < first:
                continue
            if last is None or seq > last or _recorded_digests(connection, seq).get(key) != digest([body]):
                invalid_seqs.append(int(seq))
    return min(invalid_seqs, default=None)


def _recorded_digests(connection: JournalConnection, seq: int) -> dict[str, str]:
    row = connection.execute("SELECT body FROM entry WHERE seq = ?", (seq,)).fetchone()
    try:
        return dict(json.loads(row[0])[DIGESTS_KEY])
    except (ValueError, TypeError, KeyError):
        return {}


def _read_pages(connection: JournalConnection, statement: str, *, after: int | str) -> Iterator[tuple[Any, ...]]:
    """Rows by their first column, one page at a time, because psycopg would load all of them into memory."""
    while page := connection.execute(statement, (after, PAGE_ROWS)).fetchall():
        yield from page
        after = page[-1][0]
