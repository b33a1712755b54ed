"""Every test of the journal runs for each place that a journal can have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.journal import places
from watchkeeper.store.journal.journal import Journal


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> places.Place:
    if request.param == "file":
        return places.File(tmp_path / "journal.db")
    return places.Database(request.getfixturevalue("postgres").database())


@pytest.fixture
def journal(place: places.Place) -> Iterator[Journal]:
    journal = place.lead()
    yield journal
    journal.close()
