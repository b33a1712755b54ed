"""Receivers and routes as data: what a file may say, and which routes an incident takes at which hour."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from watchkeeper.errors import SettingsError
from watchkeeper.model.silences import Matcher, parse_matcher
from watchkeeper.notify import routing

MONDAY_NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SUBJECT = {"severity": frozenset({"critical"}), "team": frozenset({"research", "vision"})}
FILE = """
[[receivers]]
name = "oncall"
apprise_file = "secrets/oncall"

[[receivers]]
name = "hook"
webhook = "https://example.net/hook?x=1"
token_file = "secrets/hook"

[[routes]]
receivers = ["oncall"]
match = ['severity="critical"', 'team=~"research|nlp"']
escalate_after = "15m"
escalate_to = ["hook"]
goes_on = true

[[routes]]
receivers = ["hook"]
hours = ["Mon-Fri 08:00-18:00", "Sat"]
zone = "Europe/Berlin"
repeat = "8h"
"""


def write(folder: Path, text: str) -> Path:
    (folder / "notify.toml").write_text(text)
    return folder / "notify.toml"


def test_a_file_becomes_receivers_and_routes_with_paths_relative_to_it(tmp_path: Path) -> None:
    table = routing.load(write(tmp_path, FILE))
    assert [receiver.name for receiver in table.receivers] == ["oncall", "hook"]
    assert table.receivers[0].apprise_file == str(tmp_path / "secrets/oncall")
    assert [route.receivers for route in table.routes_for(SUBJECT, MONDAY_NOON)] == [("oncall",), ("hook",)]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (MONDAY_NOON, 1),
        (MONDAY_NOON.replace(hour=6, minute=0), 1),
        (MONDAY_NOON.replace(hour=5, minute=59), 0),
        (MONDAY_NOON.replace(hour=16), 0),
        (MONDAY_NOON.replace(day=9, hour=20), 1),
        (MONDAY_NOON.replace(day=10), 0),
    ],
)
def test_hours_use_the_zone_of_the_route(tmp_path: Path, when: datetime, expected: int) -> None:
    table = routing.load(write(tmp_path, FILE))
    assert len(list(table.routes_for({"severity": frozenset({"warning"})}, when))) == expected


def test_without_routes_every_receiver_gets_incidents_above_info() -> None:
    table = routing.Routing((routing.Receiver("hook", webhook="http://127.0.0.1:1/"),))
    assert [route.receivers for route in table.routes_for(SUBJECT, MONDAY_NOON)] == [("hook",)]
    assert not list(table.routes_for({"severity": frozenset({"info"})}, MONDAY_NOON))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[routes]]\nreceivers = ['lost']", "receiver lost is not defined"),
        ("[[receivers]]\nname = 'a'", "needs exactly one of `apprise_file` and `webhook`"),
        ("[[receivers]]\nname = 'a'\nwebhook = 'ftp://x'", "not an http or https URL"),
        ("[[receivers]]\nname = 'a'\nwebhook = 'http://x'\ncolour = 1", "unknown key"),
        ("[[routes]]\nreceivers = []", "needs `receivers`"),
        ("[[routes]]\nreceivers = ['a']\nmatch = ['team=~\"(\"']", "is not a regular expression"),
        ("[[routes]]\nreceivers = ['a']\nmatch = ['team']", "is not a matcher"),
        ("[[routes]]\nreceivers = ['a']\nhours = ['Mon 18:00-08:00']", "ends before it begins"),
        ("[[routes]]\nreceivers = ['a']\nhours = ['Someday']", "is not a range of hours"),
        (
            "[[routes]]\nreceivers = ['a']\nhours = ['Mon-Fre 08:00-18:00']",
            "`fre` in `Mon-Fre 08:00-18:00` is not a day",
        ),
        ("[[routes]]\nreceivers = ['a']\nzone = 'Mars/Base'", "is not a time zone"),
        ("[[routes]]\nreceivers = ['a']\nrepeat = '5s'", "the minimum is 1m"),
        ("[[routes]]\nreceivers = ['a']\nescalate_after = '5m'", "or neither"),
        ("[[routes", "reading the routes file failed"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place_of_the_problem(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        routing.load(path)
    assert problem in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node=n1", Matcher("node", "n1")),
        (' team =~ "a|b" ', Matcher("team", "a|b", is_regex=True)),
        ("severity!=info", Matcher("severity", "info", is_equal=False)),
        ("cause!~'power.*'", Matcher("cause", "power.*", is_regex=True, is_equal=False)),
    ],
)
def test_matchers_are_parsed(text: str, expected: Matcher) -> None:
    assert parse_matcher(text) == expected
    assert parse_matcher(str(expected)) == expected
