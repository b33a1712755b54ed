"""What `render alertmanager` writes tells the same people as the hub would, and Alertmanager takes it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import servers
from tests.render import fleet_settings
from watchkeeper.catalogue import causes
from watchkeeper.config import settings as config
from watchkeeper.notify import routing
from watchkeeper.render import alertmanager

# A Wednesday morning: every route of the fleet is open.
NOW = datetime(2026, 11, 18, 10, tzinfo=UTC)


def amtool(*arguments: str | Path) -> str:
    line = [servers.require("amtool"), *arguments]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def written(folder: Path, settings: config.Settings) -> Path:
    path = folder / "alertmanager.yml"
    path.write_text(alertmanager.config_text(settings))
    return path


@pytest.mark.servers
@pytest.mark.parametrize("is_configured", [True, False])
def test_amtool_accepts_the_configuration(tmp_path: Path, is_configured: bool) -> None:
    settings = fleet_settings.load(tmp_path) if is_configured else config.Settings()
    assert "SUCCESS" in amtool("check-config", written(tmp_path, settings))


@pytest.mark.servers
@pytest.mark.parametrize(
    "labels",
    [
        {"severity": "critical", "team": "language", "cause": "ecc_uncorrectable"},
        {"severity": "critical", "team": "other", "cause": "nvlink_error"},
        {"severity": "warning", "team": "vision", "cause": "pcie_degraded"},
        {"severity": "critical", "team": "vision", "cause": "fabric_manager_down"},
        {"severity": "info", "team": "language", "cause": "gpu_idle_waste"},
    ],
)
def test_an_alert_takes_the_same_routes_as_the_incident_would(tmp_path: Path, labels: dict[str, str]) -> None:
    settings = fleet_settings.load(tmp_path)
    subject = {**labels, "family": causes.lookup(labels["cause"]).family}
    book = routing.load(tmp_path / "notify.toml")
    routes = book.routes_for({name: frozenset({value}) for name, value in subject.items()}, NOW)
    wanted = [name for route in routes for name in route.receivers] or [alertmanager.NO_RECEIVER]
    path = written(tmp_path, settings)
    said = amtool("config", "routes", "test", f"--config.file={path}", *(f"{name}={labels[name]}" for name in labels))
    assert [name.strip().removesuffix("-without-resolved") for name in said.split(",")] == wanted


@pytest.mark.servers
@pytest.mark.parametrize(("team", "is_told"), [(r"a.b", True), (r"axb", False), ('c"d', True), (r"e\f", True)])
def test_a_value_with_quotes_and_backslashes_means_the_same_to_alertmanager(
    tmp_path: Path, team: str, is_told: bool
) -> None:
    settings = fleet_settings.load(tmp_path)
    routes = '[[receivers]]\nname = "t"\nwebhook = "http://t/"\n[[routes]]\nreceivers = ["t"]\nmatch = [{}]\n'
    pattern = r"""'team=~"a\.b|c\"d|e\\f"'"""
    (tmp_path / "notify.toml").write_text(routes.format(pattern))
    path = written(tmp_path, settings)
    quoted = team.replace("\\", "\\\\").replace('"', '\\"')
    said = amtool("config", "routes", "test", f"--config.file={path}", f'team="{quoted}"')
    assert said.strip() == ("t" if is_told else alertmanager.NO_RECEIVER)


def test_what_cannot_be_expressed_is_said_where_it_belongs(tmp_path: Path) -> None:
    text = alertmanager.config_text(fleet_settings.load(tmp_path))
    for lost in (
        "Not expressible: the weekly digest.",
        "Not expressible: after 15m without acknowledgement the hub also notifies tickets.",
        "Not expressible: at most 6 messages a minute.",
        "Not expressible: mailto. It is sent to the hub",
        "Outside these hours the hub continues with the next routes",
    ):
        assert text.count(lost) >= 1, lost


def test_a_cause_silences_its_effects_at_the_same_place_and_nothing_else() -> None:
    rules = yaml.safe_load(alertmanager.config_text(config.Settings()))["inhibit_rules"]
    told = {rule["source_matchers"][0].split('"')[1]: rule for rule in rules}
    assert set(told) == {
        row.cause for row in causes.all_causes() if causes.affected_families(row.cause) and row.scope != "workload"
    }
    down = told["node_down"]
    assert (down["equal"], down["target_matchers"][1]) == (["cluster", "node"], 'node!=""')
    assert "node_down" not in down["target_matchers"][0]
    assert told["gpu_fell_off_bus"]["equal"] == ["cluster", "node", "gpu"]


def test_hours_keep_their_days_and_zone(tmp_path: Path) -> None:
    plain: dict[str, Any] = yaml.safe_load(alertmanager.config_text(fleet_settings.load(tmp_path)))
    (interval,) = plain["time_intervals"]
    week, saturday = interval["time_intervals"]
    assert (week["weekdays"][0], week["weekdays"][-1], week["location"]) == ("monday", "friday", "Europe/Berlin")
    assert week["times"] == [{"start_time": "08:00", "end_time": "18:00"}]
    assert (saturday["weekdays"], "times" in saturday) == (["saturday"], False)
