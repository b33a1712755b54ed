"""Fixtures for tests of incidents."""

from __future__ import annotations

from tests.support.incident_stories import rack, room

__all__ = ["rack", "room"]
