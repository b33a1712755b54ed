"""Read receivers and routes from a TOML file (`notify.routes`), and route incidents to receivers.

A route selects incidents by matchers and hours, and names the receivers, the wait, the repeat interval, and the
receivers for escalation. The first matching route is used; with `goes_on`, later routes are used too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from watchkeeper.errors import SettingsError, WireError, error_reason
from watchkeeper.incidents.incident_labels import IncidentLabels, check_matcher, matches_labels
from watchkeeper.kit import durations, wire
from watchkeeper.model.silences import Matcher, parse_matcher

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# Mon-Fri 08:00-18:00, Sat 10:00-14:00
HOURS = re.compile(r"(?P<first>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))?(?: (?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d))?")
MAX_ROUTES = 500


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of messages: Apprise addresses (in a file, because they contain secrets), or a plain webhook."""

    name: str
    apprise_file: str | None = None
    webhook: str | None = None
    # Sent as a bearer token with the webhook.
    token_file: str | None = None
    # The rate limit in messages per minute; notices that are due together share a message.
    per_minute: int = 10

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or "/" in self.name:
            raise ValueError("a receiver needs a printable name without `/`")
        if len(self.transports) != 1:
            raise ValueError(f"receiver {self.name} needs exactly one of `apprise_file` and `webhook`")
        if self.webhook is not None and urlsplit(self.webhook).scheme not in ("http", "https"):
            raise ValueError(f"receiver {self.name}: `webhook` is not an http or https URL")
        if not 1 <= self.per_minute <= 600:
            raise ValueError(f"receiver {self.name}: `per_minute` is {self.per_minute}, expected 1 to 600")

    @property
    def transports(self) -> tuple[str, ...]:
        """The transport keys that are set, exactly one; `receivers.SENDERS` has a sender for each."""
        addresses = {
            "apprise_file": self.apprise_file,
            "webhook": self.webhook,
        }
        return tuple(key for key, address in addresses.items() if address is not None)


@dataclass(frozen=True, slots=True)
class WeekHours:
    days: frozenset[int]
    begin: time = time.min
    # None: until midnight.
    end: time | None = None

    def includes(self, local: datetime) -> bool:
        at = local.time()
        return local.weekday() in self.days and self.begin <= at and (self.end is None or at < self.end)


@dataclass(frozen=True, slots=True)
class Route:
    """A route; `wait` groups incidents that open together, `repeat` applies to unacknowledged incidents."""

    receivers: tuple[str, ...]
    match: tuple[str, ...] = ()
    hours: tuple[str, ...] = ()
    zone: str = "UTC"
    wait: str = "10s"
    repeat: str = "4h"
    notifies_resolved: bool = wire.json_key("tells_resolved", default=True)
    escalate_after: str | None = None
    escalate_to: tuple[str, ...] = ()
    continues: bool = wire.json_key("goes_on", default=False)
    matchers: tuple[Matcher, ...] = field(init=False)
    open_hours: tuple[WeekHours, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.receivers:
            raise ValueError("a route needs `receivers`")
        if (self.escalate_after is None) != (not self.escalate_to):
            raise ValueError("set both `escalate_after` and `escalate_to`, or neither")
        for name in ("wait", "repeat", "escalate_after"):
            if getattr(self, name) is not None:
                durations.parse_ms(getattr(self, name))
        if durations.parse_ms(self.repeat) < 60_000:
            raise ValueError(f"`repeat` is {self.repeat}, the minimum is 1m")
        check_zone(self.zone)
        matchers = tuple(parse_matcher(text) for text in self.match)
        for matcher in matchers:
            check_matcher(matcher)
        object.__setattr__(self, "matchers", matchers)
        object.__setattr__(self, "open_hours", tuple(parse_week_hours(text) for text in self.hours))

    @property
    def wait_seconds(self) -> float:
        return durations.parse_seconds(self.wait)

    @property
    def repeat_seconds(self) -> float:
        return durations.parse_seconds(self.repeat)

    @property
    def escalate_seconds(self) -> float | None:
        return None if self.escalate_after is None else durations.parse_seconds(self.escalate_after)

    def is_open(self, now: datetime) -> bool:
        local = now.astimezone(ZoneInfo(self.zone))
        return not self.open_hours or any(hours.includes(local) for hours in self.open_hours)


@dataclass(frozen=True, slots=True)
class DigestSchedule:
    receivers: tuple[str, ...]
    at: str = "Mon 09:00"
    zone: str = "UTC"
    days: int = 7

    def __post_init__(self) -> None:
        if not self.receivers:
            raise ValueError("a digest needs `receivers`")
        if not 1 <= self.days <= 366:
            raise ValueError(f"`days` is {self.days}, expected 1 to 366")
        parse_week_time(self.at)
        check_zone(self.zone)

    def last_due(self, now: datetime) -> datetime:
        day, at = parse_week_time(self.at)
        local = now.astimezone(ZoneInfo(self.zone))
        due = datetime.combine(local.date() - timedelta(days=(local.weekday() - day) % 7), at, local.tzinfo)
        return (due if due <= local else due - timedelta(days=7)).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Routing:
    """The receivers and routes; without routes, every receiver gets every incident above `info`."""

    receivers: tuple[Receiver, ...] = ()
    routes: tuple[Route, ...] = ()
    digest: DigestSchedule | None = None

    def __post_init__(self) -> None:
        if len(self.routes) > MAX_ROUTES:
            raise ValueError(f"{len(self.routes)} routes, the limit is {MAX_ROUTES}")
        names = [receiver.name for receiver in self.receivers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"duplicate receiver name {name}")
        for at, route in enumerate(self.routes, 1):
            for name in (*route.receivers, *route.escalate_to):
                if name not in names:
                    raise ValueError(f"route {at}: receiver {name} is not defined in this file")
        for name in self.digest.receivers if self.digest is not None else ():
            if name not in names:
                raise ValueError(f"digest: receiver {name} is not defined in this file")

    def routes_for(self, subject: IncidentLabels, now: datetime) -> Iterator[Route]:
        names = tuple(receiver.name for receiver in self.receivers)
        default_routes = (Route(names, match=('severity!="info"',)),) if names and not self.routes else ()
        for route in self.routes or default_routes:
            if matches_labels(route.matchers, subject) and route.is_open(now):
                yield route
                if not route.continues:
                    return


def check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"`{name}` is not a time zone such as Europe/Berlin") from error


def parse_week_time(text: str) -> tuple[int, time]:
    """Parse `Mon 09:00` into the number of the day and the time."""
    day, _, at = text.partition(" ")
    if day.lower() not in DAYS or re.fullmatch(r"\d\d:\d\d", at) is None:
        raise ValueError(f"`{text[:40]}` is not a time of the week such as `Mon 09:00`")
    return DAYS.index(day.lower()), time.fromisoformat(at)


def parse_week_hours(text: str) -> WeekHours:
    """Parse `Mon-Fri 08:00-18:00` or `Sat`; raise ValueError with the problem."""
    match = HOURS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"`{text[:40]}` is not a range of hours such as `Mon-Fri 08:00-18:00`")
    days = [match["first"].lower(), (match["last"] or match["first"]).lower()]
    unknown = [day for day in days if day not in DAYS]
    if unknown:
        raise ValueError(f"`{unknown[0]}` in `{text[:40]}` is not a day; days are {', '.join(DAYS)}")
    first, last = (DAYS.index(day) for day in days)
    # Sat-Mon wraps around the end of the week.
    days_of_week = frozenset((first + step) % 7 for step in range((last - first) % 7 + 1))
    if match["begin"] is None:
        return WeekHours(days_of_week)
    begin = time.fromisoformat(match["begin"])
    end = None if match["end"] == "24:00" else time.fromisoformat(match["end"])
    if end is not None and end <= begin:
        raise ValueError(f"`{text[:40]}` ends before it begins; split hours at midnight into two entries")
    return WeekHours(days_of_week, begin, end)


def load(path: Path) -> Routing:
    """Load the receivers and routes of a file; SettingsError lists every problem."""
    try:
        plain: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            f"reading the routes file failed: {error_reason(error)}",
            where=str(path),
            remedy="Check the path and the TOML",
        ) from error
    for receiver in plain.get("receivers", []) if isinstance(plain.get("receivers"), list) else []:
        for key in ("apprise_file", "token_file"):
            if isinstance(receiver, dict) and isinstance(receiver.get(key), str):
                receiver[key] = str(path.parent / receiver[key])
    try:
        return wire.from_plain(Routing, plain)
    except WireError as error:
        raise SettingsError(
            f"{len(error.problems)} problem{'s' if len(error.problems) > 1 else ''} in the routes file",
            where=str(path),
            problems=error.problems,
            remedy="See docs/howto/notifications.md for an example",
        ) from error
