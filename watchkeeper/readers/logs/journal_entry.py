"""One entry of systemd's journal, as `journalctl -o json` writes it: a JSON object on one line.

`agent.kernel.journal_follow` reads them. journald takes kernel lines from /dev/kmsg and keeps the time since boot that
stands there (`_SOURCE_MONOTONIC_TIMESTAMP`), but not the record's sequence number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A kernel line in the journal. `facility` is None where the entry does not say who wrote it."""

    cursor: str
    text: str
    facility: int | None
    level: int
    since_boot_us: int


def read_entry(line: bytes) -> JournalEntry | None:
    """The entry on a line, or None if this is not one of a kernel line."""
    try:
        plain = json.loads(line)
        text = _text(plain["MESSAGE"])
        since_boot = plain.get("_SOURCE_MONOTONIC_TIMESTAMP") or plain["__MONOTONIC_TIMESTAMP"]
        level = int(plain.get("PRIORITY", 6))
        return JournalEntry(str(plain["__CURSOR"]), text, _facility(plain), level & 7, int(since_boot))
    except (ValueError, KeyError, TypeError):
        return None


def _text(message: object) -> str:
    """journalctl writes a message with bytes that are no text as a list of numbers."""
    if isinstance(message, list):
        return bytes(message).decode("utf-8", "replace")
    if not isinstance(message, str):
        raise TypeError
    return message


def _facility(plain: Mapping[str, Any]) -> int | None:
    """0 is the kernel; what a program wrote into /dev/kmsg carries the program's own facility."""
    if "SYSLOG_FACILITY" in plain:
        return int(plain["SYSLOG_FACILITY"])
    return 0 if plain.get("SYSLOG_IDENTIFIER") == "kernel" else None
