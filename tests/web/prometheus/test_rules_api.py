"""Rules over a real socket: their states with bounded alerts, and what one would have fired before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.web.hot_hub import NOW_MS, RULES, HotHub
from tests.web.running import Reply, Site, serving
from watchkeeper.rules import evaluate
from watchkeeper.web.prometheus import rules_api


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(HotHub()) as running:
        yield running


def replayed(site: Site, **body: Any) -> Reply:
    return site.ask("/api/rules/replay", method="POST", body={"from": (NOW_MS - 3_600_000) / 1000, **body})


def test_alerting_rules_are_listed_with_a_bounded_number_of_alerts_firing_ones_first(site: Site) -> None:
    answer = site.ask("/api/rules").json
    (rule,) = answer["rules"]
    assert (rule["name"], rule["for_seconds"], rule["cause"]) == ("GpuHot", 120, "cooling_failure")
    assert (rule["file"], rule["health"], rule["evaluated_at"]) == ("heat.yaml", "unknown", None)
    assert (len(answer["alerts"]), answer["alerts_total"]) == (rules_api.MAX_ALERTS, 300)
    assert answer["alerts"][0]["labels"] == {"gpu": "299"}


def test_a_replay_tells_what_would_have_fired_and_what_only_waited(site: Site) -> None:
    answer = replayed(site, expr="temperature > 85", **{"for": "5m"}).json
    assert (answer["fired"], answer["waited"], answer["failures"]) == (1, 1, [])
    fired = answer["episodes"][0]
    assert (fired["labels"]["gpu"], fired["value"]) == ("0", 95.0)
    assert fired["ended_at"] is not None


def test_a_shorter_hold_fires_for_both_and_nothing_is_written(site: Site) -> None:
    before = site.hub.engine.label_values("__name__", [], start_ms=0, end_ms=NOW_MS)
    assert replayed(site, rules=RULES.replace("2m", "0s")).json["fired"] == 2
    assert site.hub.engine.label_values("__name__", [], start_ms=0, end_ms=NOW_MS) == before


def test_a_mistake_has_its_place(site: Site) -> None:
    reply = replayed(site, expr="temperature >")
    assert reply.status == 400
    assert "1:14: unexpected end of input" in reply.json["error"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "the rule is missing"),
        ({"expr": "up", "from": NOW_MS / 1000 - 9 * 86_400}, "at most 7 days"),
        ({"expr": "up", "interval": "100ms"}, "steps, the limit is"),
        ({"expr": "up", "from": "soon"}, "from"),
        ({"rules": "groups: []"}, "0 rules; a replay needs 1 to"),
        ({"rules": "[" * 60_000}, "nested deeper than 100"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_both_numbers(site: Site, body: dict[str, Any], problem: str) -> None:
    reply = replayed(site, **body)
    assert reply.status == 400
    assert problem in reply.json["error"]


def test_a_rule_that_cannot_be_asked_is_a_failure_and_no_error(site: Site) -> None:
    answer = replayed(site, expr="temperature * on() group_left temperature").json
    assert answer["failures"][0]["rule"] == "Replayed"
    assert evaluate.ALERTS not in site.hub.engine.label_values("__name__", [], start_ms=0, end_ms=NOW_MS)
