"""The hash chain of the journal: each entry includes the hash of the one before.

Pure functions: `entry_hash` hashes an entry, `is_intact` checks it against the hash of the previous one. `journal.py`
stores the entries; changing a byte of an old entry changes its hash and invalidates every later entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from watchkeeper.kit import wire

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
