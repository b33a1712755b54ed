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
        "Not expressible: tgram. It is sent to the hub",
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


# Apprise's own documentation of e-mail has these notations: https://github.com/caronc/apprise/wiki/Notify_email
MAIL = [
    (
        "mailtos://user:s3cret@example.com?to=ops@corp.com,two@corp.com&from=Watch",
        {"smarthost": "example.com:587", "from": "Watch <user@example.com>", "to": "ops@corp.com, two@corp.com"}
        | {"require_tls": True, "auth_username": "user"},
    ),
    (
        "mailto://mail.corp.lan:2525?from=wk@corp.lan&to=ops@corp.lan",
        {"smarthost": "mail.corp.lan:2525", "from": "wk@corp.lan", "to": "ops@corp.lan", "require_tls": False},
    ),
    (
        "mailtos://_?user=me@d.com&pass=s3cret&smtp=smtp.d.com&from=no@d.com&to=a@b.com&cc=c@d.com&bcc=e@f.com",
        {"smarthost": "smtp.d.com:587", "from": "no@d.com", "to": "a@b.com, c@d.com, e@f.com", "require_tls": True}
        | {"auth_username": "me@d.com", "headers": {"To": "a@b.com", "Cc": "c@d.com"}},
    ),
    (
        "mailtos://me:s3cret@corp.com:465?mode=ssl&verify=no&to=a@b.com",
        {"smarthost": "corp.com:465", "to": "a@b.com", "from": "Apprise <me@corp.com>", "require_tls": False}
        | {"auth_username": "me", "tls_config": {"insecure_skip_verify": True}},
    ),
]


def mail_receiver(folder: Path, *addresses: str) -> Path:
    settings = fleet_settings.load(folder)
    (folder / "oncall").write_text("\n".join(addresses))
    return written(folder, settings)


@pytest.mark.parametrize(("address", "entry"), MAIL)
def test_an_email_address_becomes_an_email_receiver_without_its_password(
    tmp_path: Path, address: str, entry: dict[str, Any]
) -> None:
    path = mail_receiver(tmp_path, address)
    receivers = {row["name"]: row for row in yaml.safe_load(path.read_text())["receivers"]}
    expected = entry | {"send_resolved": True}
    if "auth_username" in entry:
        expected["auth_password_file"] = "/etc/alertmanager/secrets/oncall.mailto"
    assert receivers["oncall"]["email_configs"] == [expected]
    assert receivers["oncall-without-resolved"]["email_configs"][0]["send_resolved"] is False
    assert "s3cret" not in path.read_text()


@pytest.mark.servers
def test_amtool_accepts_email_receivers(tmp_path: Path) -> None:
    path = mail_receiver(tmp_path, *(address for address, _ in MAIL))
    assert "SUCCESS" in amtool("check-config", path)
    (oncall,) = (row for row in yaml.safe_load(path.read_text())["receivers"] if row["name"] == "oncall")
    files = [entry.get("auth_password_file", "") for entry in oncall["email_configs"]]
    assert [name.rpartition("/")[2] for name in files] == ["oncall.mailto", "", "oncall.mailto3", "oncall.mailto4"]


@pytest.mark.parametrize("address", ["mailtos://me:s3cret@corp.com:1465?mode=ssl", "mailto://", "t0psecret"])
def test_email_that_alertmanager_cannot_send_goes_to_the_hub(tmp_path: Path, address: str) -> None:
    text = mail_receiver(tmp_path, address).read_text()
    assert "email_configs" not in text
    assert "It is sent to the hub, which notifies oncall" in text
    assert not [secret for secret in ("s3cret", "t0psecret") if secret in text]


def test_hours_keep_their_days_and_zone(tmp_path: Path) -> None:
    plain: dict[str, Any] = yaml.safe_load(alertmanager.config_text(fleet_settings.load(tmp_path)))
    (interval,) = plain["time_intervals"]
    week, saturday = interval["time_intervals"]
    assert (week["weekdays"][0], week["weekdays"][-1], week["location"]) == ("monday", "friday", "Europe/Berlin")
    assert week["times"] == [{"start_time": "08:00", "end_time": "18:00"}]
    assert (saturday["weekdays"], "times" in saturday) == (["saturday"], False)
