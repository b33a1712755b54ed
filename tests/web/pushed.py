"""An event as an agent pushes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from watchkeeper.kit import wire
from watchkeeper.model import events, fleet


def event(number: int) -> dict[str, Any]:
    place, at = fleet.Place("main", node="gpu-r01-01"), datetime(2026, 1, 31, tzinfo=UTC)
    plain: dict[str, Any] = wire.to_plain(events.Event(f"e{number}", events.EventKind.XID, 79, place, at, "NVRM: Xid"))
    return plain
