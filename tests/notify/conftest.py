from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.incident_stories import Room


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    room.journal.close()
