"""Times as people type them: `now`, `-2h`, RFC 3339, or seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from watchkeeper.client.hub import Client
from watchkeeper.kit import durations

WORDS = "RFC 3339, seconds since 1970, `now`, or a duration ago such as -2h"


def read(text: str, now: datetime) -> datetime:
    """The moment that a text means; UsageError if it means none."""
    if text == "now":
        return now
    ago = text.removeprefix("now")
    try:
        if ago.startswith("-"):
            return now - timedelta(milliseconds=durations.parse_ms(ago[1:]))
        if text.replace(".", "", 1).isdigit():
            return datetime.fromtimestamp(float(text), UTC)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"`{text[:40]}` is not a time: {WORDS}") from error
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)


def moment(text: str, hub: Client) -> datetime:
    """The same on the hub's own clock, which may be a simulated one."""
    return read(text, hub.status().now if _is_relative(text) else datetime.now(UTC))


def window(start: str, end: str, hub: Client) -> tuple[datetime, datetime]:
    since, until = moment(start, hub), moment(end, hub)
    if since >= until:
        raise click.UsageError(f"--from ({since:%Y-%m-%dT%H:%M:%SZ}) must be before --to ({until:%Y-%m-%dT%H:%M:%SZ})")
    return since, until


def _is_relative(text: str) -> bool:
    return text.startswith(("now", "-"))


def utc(at: datetime) -> str:
    """As tables and sentences have it, to the second."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def seconds(at: datetime) -> str:
    """As every Prometheus API reads it, to the millisecond."""
    return f"{at.timestamp():.3f}"
