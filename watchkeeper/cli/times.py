"""Times on the command line: `now`, `-2h`, RFC 3339, or seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from watchkeeper.client.hub import Client
from watchkeeper.kit import durations

FORMATS = "RFC 3339, seconds since 1970, `now`, or a duration ago such as -2h"


def parse(text: str, now: datetime) -> datetime:
    """Parse a time; UsageError if the text has no accepted format."""
    if text == "now":
        return now
    offset = text.removeprefix("now")
    try:
        if offset.startswith("-"):
            return now - timedelta(milliseconds=durations.parse_ms(offset[1:]))
        if text.replace(".", "", 1).isdigit():
            return datetime.fromtimestamp(float(text), UTC)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"`{text[:40]}` is not a time: {FORMATS}") from error
    return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)


def parse_on_hub_clock(text: str, hub: Client) -> datetime:
    """Parse a time relative to the hub's clock, which may be simulated."""
    return parse(text, hub.status().now if text.startswith(("now", "-")) else datetime.now(UTC))


def parse_window(start: str, end: str, hub: Client) -> tuple[datetime, datetime]:
    return check_order(parse_on_hub_clock(start, hub), parse_on_hub_clock(end, hub))


def check_order(since: datetime, until: datetime) -> tuple[datetime, datetime]:
    """The two times; UsageError if --from is not before --to."""
    if since >= until:
        raise click.UsageError(f"--from ({utc(since)}) must be before --to ({utc(until)})")
    return since, until


def utc(at: datetime) -> str:
    """RFC 3339 in UTC, to the second, for tables and sentences."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def seconds(at: datetime) -> str:
    """Seconds since 1970, to the millisecond, as Prometheus APIs read them."""
    return f"{at.timestamp():.3f}"
