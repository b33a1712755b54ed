"""Hours of the week in which nothing begins by itself: `22:00-06:00`, or `Sat-Sun 00:00-24:00`, in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Mon-Fri 22:00-06:00
PATTERN = re.compile(r"(?:([A-Z][a-z]{2})(?:-([A-Z][a-z]{2}))? )?(\d\d):(\d\d)-(\d\d):(\d\d)\Z")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """`until` at or before `since` means the next morning, which belongs to the day it began on."""

    text: str
    days: frozenset[int]
    since: timedelta
    until: timedelta

    def holds(self, now: datetime) -> bool:
        time = timedelta(hours=now.hour, minutes=now.minute, seconds=now.second)
        today, yesterday = now.weekday() in self.days, (now.weekday() - 1) % 7 in self.days
        if self.since < self.until:
            return today and self.since <= time < self.until
        return (today and time >= self.since) or (yesterday and time < self.until)

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> QuietHours:
    """ValueError says what is wrong with the text."""
    match = PATTERN.match(text)
    if match is None:
        raise ValueError(f"`{text[:40]}` is not a time such as 22:00-06:00 or Sat-Sun 00:00-24:00")
    first, last, *numbers = match.groups()
    since, until = (
        timedelta(hours=int(hour), minutes=int(minute))
        for hour, minute in zip(numbers[::2], numbers[1::2], strict=True)
    )
    if max(since, until) > timedelta(days=1) or int(numbers[1]) > 59 or int(numbers[3]) > 59:
        raise ValueError(f"`{text}` has a time that no day has")
    return QuietHours(text, _days(first, last, text), since, until)


def _days(first: str | None, last: str | None, text: str) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    if first not in DAYS or (last or first) not in DAYS:
        raise ValueError(f"`{text}`: days are {', '.join(DAYS)}")
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return frozenset((begin + at) % 7 for at in range((end - begin) % 7 + 1))
