"""Settings: one file in, one value out, or every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest

from watchkeeper.config import loading
from watchkeeper.config.settings import DriverName, HubSettings, Settings
from watchkeeper.errors import SettingsError
from watchkeeper.model.trust import Mode


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "watchkeeper.toml"


def error_of(path: Path | None, overrides: dict[str, object] | None = None) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        loading.load(path, overrides)
    return caught.value


def test_without_a_file_the_defaults_are_harmless() -> None:
    settings = loading.load()
    assert settings == Settings()
    assert (settings.hub.host, settings.hub.port) == ("127.0.0.1", 9480)
    assert (settings.remediate.mode, settings.remediate.driver) == (Mode.OBSERVE, DriverName.DRY_RUN)


def test_a_file_changes_what_it_names_and_leaves_the_rest(file: Path) -> None:
    file.write_text('[fleet]\nscrape_interval = "5s"\nsd_urls = ["http://127.0.0.1:9481/sd"]\n')
    settings = loading.load(file)
    assert settings.fleet.scrape_interval_seconds == 5.0
    assert settings.fleet.sd_urls == ("http://127.0.0.1:9481/sd",)
    assert settings.hub == Settings().hub


def test_the_command_line_overrides_the_file_unless_it_is_none(file: Path) -> None:
    file.write_text('[hub]\nport = 1000\nhost = "::1"\n')
    settings = loading.load(file, {"hub.port": 9490, "hub.host": None, "query.retention": "30m"})
    assert (settings.hub.port, settings.hub.host) == (9490, "::1")
    assert settings.query.retention_seconds == 1800.0


def names(section: type) -> str:
    return ", ".join(get_type_hints(section))


def test_every_problem_is_reported_with_its_origin_and_key(file: Path) -> None:
    file.write_text('[hub]\nport = "x"\nprt = 1\n[fleet]\nscrape_interval = "15"\ncluster = ""\n[zoo]\n')
    error = error_of(file, {"query.max_series": 0})
    assert error.problems == (
        f"{file}: zoo: unknown key; valid keys: {names(Settings)}",
        f"{file}: hub.prt: unknown key; valid keys: {names(HubSettings)}",
        f"{file}: hub.port: expected a whole number, found 'x'",
        f"{file}: fleet.cluster: must not be empty",
        f"{file}: fleet.scrape_interval: `15` has no unit; write `15s` for seconds or `15m` for minutes",
        "command line: query.max_series: 0 is below the minimum, 1",
    )
    assert str(error).startswith("6 problems in the settings. See docs/reference/settings.md for every key\n  ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hub = 3", "hub: expected a table, found 3"),
        ('remediate = { mode = "yolo" }', "remediate.mode: expected one of observe, suggest, ask, act, found 'yolo'"),
        ("hub = { port = 70000 }", "hub.port: 70000 is not a port; use 1 to 65535, or 0 for any free port"),
        ('rules = { interval = "0s" }', "rules.interval: `0s` must be longer than 0s"),
        ("hub = { port = true }", "hub.port: expected a whole number, found True"),
        ("rules = { files = [1] }", "rules.files[0]: expected text, found 1"),
    ],
)
def test_an_invalid_value_is_explained(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    assert error_of(file).problems == (f"{file}: {problem}",)


def test_invalid_toml_is_reported_with_its_line(file: Path) -> None:
    file.write_text("[hub]\nport = 1\nhost =\n")
    assert str(error_of(file)).startswith(f"{file}:3: not valid TOML: Invalid value")


def test_truncated_toml_is_reported_with_its_last_line(file: Path) -> None:
    file.write_text('[hub]\nhost = """never ends')
    assert str(error_of(file)).startswith(f"{file}:2: not valid TOML: ")


def test_an_unreadable_file_is_reported_with_the_reason(tmp_path: Path, file: Path) -> None:
    assert "missing.toml: the settings file cannot be read: No such file" in str(error_of(tmp_path / "missing.toml"))
    assert "the settings file cannot be read: Is a directory" in str(error_of(tmp_path))
    file.write_bytes(b"\xff\xfe")
    assert "it is not UTF-8 text (byte 0)" in str(error_of(file))


def test_a_relative_path_starts_at_the_file_and_an_absolute_path_stays(file: Path) -> None:
    file.write_text('[hub]\ndata = "state"\ntokens = "/etc/tokens"\n[rules]\nfiles = ["rules/gpu.yaml"]\n')
    settings = loading.load(file)
    assert settings.hub.data == str(file.parent / "state")
    assert settings.hub.tokens == "/etc/tokens"
    assert settings.rules.files == (str(file.parent / "rules/gpu.yaml"),)
    assert settings.journal_path == file.parent / "state" / "journal.sqlite"


def test_a_path_on_the_command_line_starts_at_the_working_directory(file: Path) -> None:
    file.write_text("")
    assert loading.load(file, {"hub.data": "here"}).hub.data == "here"


def test_a_timeout_is_never_longer_than_the_interval() -> None:
    fleet = loading.load(None, {"fleet.scrape_interval": "5s", "fleet.scrape_timeout": "10s"}).fleet
    assert fleet.scrape_timeout_seconds == 5.0
