"""Read a kernel line of a syslog file, such as /var/log/kern.log or /var/log/messages.

    Aug 10 20:36:51 gpu-node-a kernel: [82710.917400] NVRM: …
    2026-08-10T20:36:51.123456+02:00 gpu-node-a kernel: NVRM: …

`agent.kernel.file_follow` uses it. The first format has no year and is in local time; the time since boot in brackets
is present if the syslog daemon keeps it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

LINE = re.compile(
    r"(?:<\d+>)?(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\S+) "
    r"\S+ kernel: ?(?:\[\s*(?P<seconds>\d{1,12})\.(?P<micro>\d{6})\] ?)?(?P<text>.*)"
)


@dataclass(frozen=True, slots=True)
class SyslogLine:
    """A kernel line; `since_boot_us` is None if the file does not keep the kernel's time."""

    at: datetime
    since_boot_us: int | None
    text: str


def read_line(line: str, now: datetime) -> SyslogLine | None:
    """Parse a kernel line; None for any other line. `now` gives the year if the line has none."""
    match = LINE.match(line)
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
