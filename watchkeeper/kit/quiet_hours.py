"""Hours of the week in which no repair starts automatically: `22:00-06:00` or `Sat-Sun 00:00-24:00`, in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Mon-Fri 22:00-06:00
PATTERN = re.compile(r"(?:([A-Z][a-z]{2})(?:-([A-Z][a-z]{2}))? )?(\d\d):(\d\d)-(\d\d):(\d\d)\Z")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """One window of quiet hours; `until` at or before `since` means that it ends on the next day."""

    text: str
    days: frozenset[int]
    since: timedelta
    until: timedelta

    def contains(self, now: datetime) -> bool:
        time = timedelta(hours=now.hour, minutes=now.minute, seconds=now.second)
        today, yesterday = now.weekday() in self.days, (now.weekday() - 1) % 7 in self.days
        if self.since < self.until:
            return today and self.since <= time < self.until
        return (today and time >= self.since) or (yesterday and time < self.until)

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> QuietHours:
    """Parse quiet hours; ValueError says what is invalid."""
    match = PATTERN.match(text)
    if match is None:
        raise ValueError(f"`{text[:40]}` is not a time such as 22:00-06:00 or Sat-Sun 00:00-24:00")
    first, last, *clock_parts = match.groups()
    since, until = (
        timedelta(hours=int(hour), minutes=int(minute))
        for hour, minute in zip(clock_parts[::2], clock_parts[1::2], strict=True)
    )
    if max(since, until) > timedelta(days=1) or int(clock_parts[1]) > 59 or int(clock_parts[3]) > 59:
        raise ValueError(f"`{text}` has an invalid time; times go from 00:00 to 24:00")
    return QuietHours(text, _days(first, last, text), since, until)


def _days(first: str | None, last: str | None, text: str) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    if first not in DAYS or (last or first) not in DAYS:
        raise ValueError(f"`{text}`: days are {', '.join(DAYS)}")
    first_index, last_index = DAYS.index(first), DAYS.index(last or first)
    return frozenset((first_index + offset) % 7 for offset in range((last_index - first_index) % 7 + 1))
