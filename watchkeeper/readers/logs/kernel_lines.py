"""Read kernel lines from systemd's journal (`journalctl -o json`) and from syslog files such as /var/log/kern.log.

journald keeps the time since boot of a kernel line, but not its sequence number; a syslog daemon may keep neither.
`agent.kernel.journal_follow` and `agent.kernel.file_follow` use it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

# Aug 10 20:36:51 gpu-node-a kernel: [82710.917400] NVRM: …
# 2026-08-10T20:36:51.123456+02:00 gpu-node-a kernel: NVRM: …
SYSLOG_LINE = re.compile(
    r"(?:<\d+>)?(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\S+) "
    r"\S+ kernel: ?(?:\[\s*(?P<seconds>\d{1,12})\.(?P<micro>\d{6})\] ?)?(?P<text>.*)"
)


@dataclass(frozen=True, slots=True)
class JournaldEntry:
    """A kernel line in the journal. `facility` is None if the entry does not name its writer."""

    cursor: str
    text: str
    facility: int | None
    level: int
    since_boot_us: int


def read_journal_entry(line: bytes) -> JournaldEntry | None:
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


@dataclass(frozen=True, slots=True)
class SyslogLine:
    """A kernel line; `since_boot_us` is None if the file does not keep the kernel's time."""

    at: datetime
    since_boot_us: int | None
    text: str


def read_syslog_line(line: str, now: datetime) -> SyslogLine | None:
    """Parse a kernel line; None for any other line. `now` gives the year if the line has none."""
    match = SYSLOG_LINE.match(line)
    if match is None:
        return None
    try:
        at = _parse_time(match["stamp"], now)
    except ValueError:
        return None
    seconds = match["seconds"]
    since_boot_us = None if seconds is None else int(seconds) * 1_000_000 + int(match["micro"])
    return SyslogLine(at, since_boot_us, match["text"])


def _parse_time(stamp: str, now: datetime) -> datetime:
    if stamp[0].isdigit():
        return datetime.fromisoformat(stamp).astimezone(now.tzinfo)
    year = now.astimezone().year
    at = datetime.strptime(f"{year} {stamp}", "%Y %b %d %H:%M:%S").astimezone(now.tzinfo)
    if at <= now + timedelta(days=1):
        return at
    # A line from December, read in January.
    return datetime.strptime(f"{year - 1} {stamp}", "%Y %b %d %H:%M:%S").astimezone(now.tzinfo)
