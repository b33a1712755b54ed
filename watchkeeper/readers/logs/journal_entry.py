"""Read one entry of systemd's journal from `journalctl -o json`: a JSON object on one line.

`agent.kernel.journal_follow` uses it. journald reads kernel lines from /dev/kmsg and keeps their time since boot
(`_SOURCE_MONOTONIC_TIMESTAMP`), but not their sequence number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JournaldEntry:
    """A kernel line in the journal. `facility` is None if the entry does not name its writer."""

    cursor: str
    text: str
    facility: int | None
    level: int
    since_boot_us: int


def read_entry(line: bytes) -> JournaldEntry | None:
    """Parse a line; None if it is not a journal entry."""
    try:
        entry = json.loads(line)
        text = _text(entry["MESSAGE"])
        since_boot_us = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"]
        level = int(entry.get("PRIORITY", 6))
        return JournaldEntry(str(entry["__CURSOR"]), text, _facility(entry), level & 7, int(since_boot_us))
    except (ValueError, KeyError, TypeError):
        return None


def _text(message: object) -> str:
    """The message; journalctl writes one that is not valid text as a list of byte values."""
    if isinstance(message, list):
        return bytes(message).decode("utf-8", "replace")
    if not isinstance(message, str):
        raise TypeError
    return message


def _facility(entry: Mapping[str, Any]) -> int | None:
    """The facility: 0 is the kernel, other numbers are programs that write to /dev/kmsg."""
    if "SYSLOG_FACILITY" in entry:
        return int(entry["SYSLOG_FACILITY"])
    return 0 if entry.get("SYSLOG_IDENTIFIER") == "kernel" else None
