"""The chain of the journal: each entry carries the hash of the one before it.

Pure: `link` makes the next entry, `is_intact` checks one against its predecessor. `journal.py` keeps
them in SQLite; whoever changes a byte of an old entry changes its hash and breaks every later one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from watchkeeper.kit import wire

# The `prev` of the first entry: 64 zeros, as long as a SHA-256 in hexadecimal.
GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of the audit: who did what to which subject, when, and under which leader epoch."""

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
        """The sentence for the timeline, or an empty text."""
        return str(self.body.get("text", ""))


def digest(texts: Iterable[str]) -> str:
    """One SHA-256 over several texts; their lengths are part of it, so no two lists look alike."""
    total = hashlib.sha256()
    for text in texts:
        content = text.encode()
        total.update(len(content).to_bytes(8, "big"))
        total.update(content)
    return total.hexdigest()


def entry_hash(entry: JournalEntry, body: str | None = None) -> str:
    """The digest of everything but the hash; `body` is the body's text for whoever has written it already."""
    # The text that `wire.dumps` makes of all fields, put together so that a large body is written once.
    at, body = wire.format_time(entry.at), wire.dumps(entry.body) if body is None else body
    actor, kind, prev, subject = (wire.dumps(text) for text in (entry.actor, entry.kind, entry.prev, entry.subject))
    first = f'{{"actor":{actor},"at":"{at}","body":{body},"epoch":{entry.epoch:d},"kind":{kind}'
    return digest([f'{first},"prev":{prev},"seq":{entry.seq:d},"subject":{subject}}}'])


def is_intact(entry: JournalEntry, prev: str) -> bool:
    return entry.prev == prev and entry.hash == entry_hash(entry)
