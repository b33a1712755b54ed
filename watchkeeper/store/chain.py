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
class Entry:
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


def entry_hash(entry: Entry) -> str:
    content = {name: value for name, value in wire.to_plain(entry).items() if name != "hash"}
    return digest([wire.dumps(content)])


def is_intact(entry: Entry, prev: str) -> bool:
    return entry.prev == prev and entry.hash == entry_hash(entry)
