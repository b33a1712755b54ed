"""Units: systemd accepts them, they are closed to what they do not need, and the hub's settings go along."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import servers
from tests.render import fleet_settings
from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.render import mig, systemd


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """All units with commands that exist, as systemd wants to see them."""
    command = tmp_path / "watchkeeper"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    settings = loading.load(None, {"render.command": str(command)})
    found = []
    for file in (*systemd.files(settings), *mig.files(settings)):
        if "/system/" in file.path:
            path = tmp_path / Path(file.path).name
            text = file.text
            for tool in ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-mig-parted"):
                text = text.replace(tool, str(command))
            path.write_text(text)
            found.append(path)
    return found


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [servers.require("systemd-analyze"), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.servers
def test_systemd_has_nothing_to_say_about_the_units(units: list[Path]) -> None:
    verified = analyze("verify", "--man=no", *units)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    assert len(units) == 5


@pytest.mark.servers
@pytest.mark.parametrize(("name", "most"), [("watchkeeper-hub.service", 20), ("watchkeeper-diag.service", 40)])
def test_the_units_are_closed_to_what_they_do_not_need(units: list[Path], name: str, most: int) -> None:
    (unit,) = [path for path in units if path.name == name]
    # From 0 to 100; what a service without any protection has is 96. Diagnostics need the devices of the driver.
    judged = analyze("security", "--offline=yes", f"--threshold={most}", "--no-pager", unit)
    assert judged.returncode == 0, judged.stdout[-1500:]


def test_no_placeholder_is_left_anywhere() -> None:
    for file in (*systemd.files(config.Settings()), *mig.files(config.Settings())):
        assert "@" not in file.text.replace("@system-service", ""), file.path


def test_the_hub_starts_with_the_settings_that_were_rendered(tmp_path: Path) -> None:
    settings = fleet_settings.load(tmp_path)
    rendered = {Path(file.path).name: file.text for file in systemd.files(settings)}
    path = tmp_path / "rendered.toml"
    path.write_text(rendered["hub.toml"])
    again = loading.load(path)
    assert (again.fleet, again.notify) == (settings.fleet, settings.notify)
    assert again.hub.data == "/var/lib/watchkeeper-hub"
    assert "WATCHKEEPER_HUB=http://watchkeeper-hub:9480" in rendered["agent.env"]
