"""Each test has a room of its own."""

from __future__ import annotations

from tests.support.incident_stories import rack, room

__all__ = ["rack", "room"]
