"""Containers on one machine: Compose accepts the file, every file it mounts is there, and nothing is told twice."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import servers
from tests.render import fleet_settings
from watchkeeper.config import loading
from watchkeeper.render import compose
from watchkeeper.web.auth import auth


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    out = tmp_path / "out"
    for file in compose.files(fleet_settings.load(tmp_path)):
        path = out / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        path.chmod(0o755 if file.is_executable else 0o644)
    return out


def prepared(tree: Path) -> str:
    return subprocess.run([tree / "prepare.sh"], capture_output=True, text=True, check=True).stdout


def services(tree: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((tree / "compose.yaml").read_text())["services"]
    return found


@pytest.mark.servers
def test_compose_accepts_the_file_with_all_its_profiles(tree: Path) -> None:
    prepared(tree)
    line = [servers.require("docker-compose"), "--profile", "gpu", "config"]
    ran = subprocess.run(line, cwd=tree, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert sorted(yaml.safe_load(ran.stdout)["services"]) == ["agent", "alertmanager", "grafana", "hub", "prometheus"]


@pytest.mark.servers
def test_shellcheck_has_nothing_to_say_about_the_preparation(tree: Path) -> None:
    line = [servers.require("shellcheck"), tree / "prepare.sh"]
    assert subprocess.run(line, capture_output=True, check=False).stdout == b""


def test_every_file_that_is_mounted_is_rendered_or_prepared(tree: Path) -> None:
    prepared(tree)
    plain = yaml.safe_load((tree / "compose.yaml").read_text())
    mounts = [mount for one in services(tree).values() for mount in one.get("volumes", [])]
    paths = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    paths += [secret["file"] for secret in plain["secrets"].values()]
    paths += [path for one in services(tree).values() for path in one.get("env_file", [])]
    assert len(paths) >= 9
    assert not [path for path in paths if not (tree / path).exists()]


def test_secrets_are_made_once_and_let_each_in_as_what_it_is(tree: Path) -> None:
    assert "made secrets/tokens" in prepared(tree)
    before = (tree / "secrets" / "tokens").read_text()
    assert prepared(tree) == ""
    assert (tree / "secrets" / "tokens").read_text() == before
    doors = auth.load_tokens(tree / "secrets" / "tokens")
    for name, role in (("scrape", "viewer"), ("webhook", "agent")):
        token = doors.find_token((tree / "secrets" / name).read_text())
        assert token is not None
        assert token.role == role
    assert (tree / "secrets").stat().st_mode & 0o777 == 0o700


def test_the_hub_reads_its_settings_and_alone_tells_alertmanager(tree: Path) -> None:
    settings = loading.load(tree / "hub.toml")
    assert settings.notify.alertmanager_urls == ("http://alertmanager:9093",)
    prometheus = yaml.safe_load((tree / "prometheus" / "prometheus.yml").read_text())
    assert "alertmanagers" not in prometheus["alerting"]
    jobs = {job["job_name"]: job for job in prometheus["scrape_configs"]}
    assert "agent:9400" in jobs["gpu"]["static_configs"][0]["targets"]
    assert jobs["watchkeeper-hub"]["static_configs"] == [{"targets": ["hub:9480"]}]


def test_no_container_may_gain_rights_or_is_open_to_other_machines(tree: Path) -> None:
    for name, one in services(tree).items():
        assert (one["cap_drop"], one["read_only"]) == (["ALL"], True), name
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", [])), name


def test_grafana_finds_its_dashboards_where_they_are_mounted(tree: Path) -> None:
    (path,) = (tree / "grafana" / "provisioning" / "dashboards").iterdir()
    (provider,) = yaml.safe_load(path.read_text())["providers"]
    assert provider["options"]["path"] == compose.DASHBOARDS
    (source,) = (tree / "grafana" / "provisioning" / "datasources").iterdir()
    assert "url: http://hub:9480" in source.read_text()
