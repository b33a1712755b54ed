"""A kernel line in a log file that syslog writes, such as /var/log/kern.log or /var/log/messages.

    Aug 10 20:36:51 gpu-node-a kernel: [82710.917400] NVRM: …
    2026-08-10T20:36:51.123456+02:00 gpu-node-a kernel: NVRM: …

`agent.kernel.file_follow` reads them. The first form has no year and is local time; the time since boot in brackets
is there where the syslog daemon keeps it.
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
    """`since_boot_us` None: the file does not keep the kernel's own time."""

    at: datetime
    since_boot_us: int | None
    text: str


def read_line(line: str, now: datetime) -> SyslogLine | None:
    """A line that the kernel wrote, or None; `now` tells the year where the line does not."""
    match = LINE.match(line)
    if match is None:
        return None
    try:
        at = _time(match["stamp"], now)
    except ValueError:
        return None
    seconds = match["seconds"]
    since_boot = None if seconds is None else int(seconds) * 1_000_000 + int(match["micro"])
    return SyslogLine(at, since_boot, match["text"])


def _time(stamp: str, now: datetime) -> datetime:
    if stamp[0].isdigit():
        return datetime.fromisoformat(stamp).astimezone(now.tzinfo)
    year = now.astimezone().year
    at = datetime.strptime(f"{year} {stamp}", "%Y %b %d %H:%M:%S").astimezone(now.tzinfo)
    if at <= now + timedelta(days=1):
        return at
    # A line of December, read in January.
    return datetime.strptime(f"{year - 1} {stamp}", "%Y %b %d %H:%M:%S").astimezone(now.tzinfo)
