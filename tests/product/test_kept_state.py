"""A data directory that an earlier Watchkeeper left, killed in the middle of its work, opens in this one as it was.

tests/product/kept has one archive for each version, and beside it what that version answered before it was killed. A
release adds its own: `watchkeeper up --gpus 8 --speed 20`, a fault, a note, a silence, kill -9, tar.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.opened import opened as open_hub
from watchkeeper import errors
from watchkeeper.cli.hub import up
from watchkeeper.config import settings as config
from watchkeeper.hub import hub
from watchkeeper.kit import files

KEPT = sorted(Path(__file__).with_name("kept").glob("*.tar.xz"))


@pytest.fixture(scope="module", params=KEPT, ids=lambda path: path.name.removesuffix(".tar.xz"))
def state(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("kept")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    expected: dict[str, Any] = json.loads(request.param.with_suffix("").with_suffix(".json").read_text())
    return folder / "kept", expected


@pytest.fixture(scope="module")
def opened(state: tuple[Path, dict[str, Any]]) -> Iterator[hub.Hub]:
    folder, expected = state
    demo = up.demo_settings("127.0.0.1", 0, directory=str(folder), tokens=None)
    calm = dataclasses.replace(demo.remediate, driver=config.DriverName.DRY_RUN)
    now = datetime.fromtimestamp(expected["at"] + 120, UTC)
    made = open_hub(dataclasses.replace(demo, remediate=calm), time=ManualClock(now))
    yield made
    made.close()


def test_its_samples_answer_as_they_did(state: tuple[Path, dict[str, Any]], opened: hub.Hub) -> None:
    expected = state[1]
    for expr, rows in expected["queries"].items():
        values = opened.samples.engine.instant(expr, round(expected["at"] * 1000)).latest()
        plain = {tuple(map(tuple, pairs)): float(value) for pairs, value in rows}
        assert {tuple(sorted(labels.items())): value for labels, value in values.items()} == pytest.approx(plain), expr
        assert all(math.isfinite(value) for value in values.values())


def test_its_incidents_silences_and_notes_are_there(state: tuple[Path, dict[str, Any]], opened: hub.Hub) -> None:
    expected = state[1]
    for kept_incident in expected["incidents"]:
        incident = opened.services.journal.incident(kept_incident["id"])
        assert incident is not None
        assert kept_incident["title"].startswith(incident.title)
        assert (incident.severity, incident.state) == (kept_incident["severity"], kept_incident["state"])
        diagnosed = opened.services.journal.diagnosis(kept_incident["id"])
        assert diagnosed is not None
        assert diagnosed.findings[0].cause == kept_incident["cause"]
    assert {row["id"] for row in expected["silences"]} <= {row.id for row in opened.services.silences.silences()}
    first = expected["incidents"][-1]["id"]
    assert len(opened.services.journal.timeline(first)) >= expected["timeline"]
    assert "kept from before" in str(opened.services.journal.timeline(first))


def test_its_alerts_go_on_where_they_were(opened: hub.Hub) -> None:
    assert any(alert.state == "firing" for alert in opened.current.stages.journal.alerts())


def test_its_journal_is_unbroken(opened: hub.Hub) -> None:
    assert opened.current.stages.journal.verify() is None


def test_a_later_watchkeepers_directory_is_refused_with_both_numbers(tmp_path: Path) -> None:
    (tmp_path / files.OWNER_MARK).write_text(f"format {files.FORMAT + 1}\n")
    demo = up.demo_settings("127.0.0.1", 0, directory=str(tmp_path), tokens=None)
    calm = dataclasses.replace(demo.remediate, driver=config.DriverName.DRY_RUN)
    with pytest.raises(
        errors.StartRefused, match=f"format {files.FORMAT + 1}, this Watchkeeper supports up to {files.FORMAT}"
    ):
        open_hub(dataclasses.replace(demo, remediate=calm), time=ManualClock(datetime.now(UTC)))
