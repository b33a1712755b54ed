"""Working on incidents over HTTP: assign, silence, report, digest, notices, and Alertmanager's webhook."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.web import stories
from tests.web.running import Reply, Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.errors import JournalConflict, StoreError
from watchkeeper.model.silences import ALERTMANAGER, Matcher, Silence

LABELS = {"alertname": "Theirs", "Hostname": "n9", "severity": "critical"}
STARTED = "2026-05-04T11:59:00Z"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        running.call(stories.lose_gpu, running.hub)
        yield running


def post(site: Site, path: str, body: Any) -> Reply:
    return site.ask(path, method="POST", body=body)


def test_an_incident_is_assigned_to_a_person(site: Site) -> None:
    assert post(site, "/api/incidents/INC-1/assign", {"to": " ada "}).json["incident"]["assignee"] == "ada"
    assert post(site, "/api/incidents/INC-9/assign", {"to": "ada"}).status == 404


@pytest.mark.parametrize("body", [{}, {"to": ""}, {"to": 3}, {"to": "x" * 5000}, []])
def test_an_assignment_without_a_valid_name_is_refused(site: Site, body: Any) -> None:
    assert post(site, "/api/incidents/INC-1/assign", body).status == 400


def test_the_place_of_an_incident_is_silenced_and_the_silence_is_listed_and_ended(site: Site) -> None:
    made = post(site, "/api/incidents/INC-1/silence", {"for": "4h", "reason": "new riser"}).json["silence"]
    (listed,) = site.ask("/api/silences").json["silences"]
    assert (listed["active"], listed["reason"]) == (True, "new riser")
    assert 'node="gpu-r01-02"' in made["matchers"]
    (silence,) = site.hub.silences.silences()
    assert silence.ends_at - silence.starts_at == timedelta(hours=4)
    assert site.ask("/api/incidents").json["incidents"][0]["silenced_by"]["reason"] == "new riser"
    assert site.ask(f"/api/silences/{made['id']}", method="DELETE").json["silence"]["ended_by"] == "local"
    assert site.ask("/api/silences").json["silences"] == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"reason": "x"}, "set `for`, such as 2h"),
        ({"for": "4 hours", "reason": "x"}, "set `for`, such as 2h"),
        ({"for": "4h"}, "reason"),
        ({"ends_at": "tomorrow", "reason": "x"}, "set `for`, such as 2h"),
        ({"ends_at": "0001-01-01T00:00:00+09:00", "reason": "x"}, "set `for`, such as 2h"),
    ],
)
def test_a_silence_without_end_or_reason_is_refused(site: Site, body: Any, problem: str) -> None:
    answer = post(site, "/api/incidents/INC-1/silence", body)
    assert answer.status == 400
    assert problem in answer.json["error"]


def test_matchers_are_checked_before_anything_is_silenced(site: Site) -> None:
    for matchers in ([], ["node"], "node=n1", [f"l{at}=x" for at in range(21)]):
        assert post(site, "/api/silences", {"matchers": matchers, "for": "1h", "reason": "x"}).status == 400
    assert site.hub.silences.silences() == []


def test_the_report_is_markdown_or_json(site: Site) -> None:
    text = site.ask("/api/incidents/INC-1/report")
    assert text.headers["content-type"] == "text/markdown; charset=utf-8"
    assert text.body.decode().startswith("# INC-1: ")
    plain = site.ask("/api/incidents/INC-1/report?format=json").json
    assert (plain["incident"]["id"], plain["runbook"]) == ("INC-1", "docs/runbooks/gpu-fell-off-bus.md")


def test_a_digest_covers_up_to_a_year(site: Site) -> None:
    assert site.ask("/api/digest").json["digest"]["incidents"] == 1
    assert [site.ask(f"/api/digest?days={days}").status for days in ("0", "367", "x")] == [400, 400, 400]


def test_valid_alerts_of_another_prometheus_are_accepted_and_invalid_ones_reported(site: Site) -> None:
    good = {"status": "firing", "labels": LABELS, "annotations": {}, "startsAt": STARTED}
    answer = post(site, "/api/alertmanager", {"version": "4", "alerts": [good, {"labels": {}}]}).json
    assert (answer["taken"], answer["problems"]) == (1, ["alerts[1]: labels.alertname is missing"])
    assert [alert.name for alert in site.hub.incidents.foreign] == ["Theirs"]
    assert post(site, "/api/alertmanager", {"alerts": "none"}).status == 400


@pytest.mark.parametrize("error", [StoreError("disk is full"), JournalConflict("another hub leads")])
def test_a_webhook_that_cannot_be_stored_is_answered_so_that_alertmanager_retries(
    site: Site, error: StoreError
) -> None:
    alert = {"status": "firing", "labels": LABELS, "annotations": {}, "startsAt": STARTED}
    site.hub.incidents.cannot_write = error
    refused = post(site, "/api/alertmanager", {"version": "4", "alerts": [alert]})
    assert (refused.status, refused.json["error"]) == (503, str(error))
    site.hub.incidents.cannot_write = None
    assert post(site, "/api/alertmanager", {"version": "4", "alerts": [alert]}).json["taken"] == 1


def test_silences_of_alertmanager_are_marked_and_a_failed_read_is_reported(site: Site) -> None:
    now = site.hub.clock.now()
    matchers = (Matcher("cluster", "main"),)
    site.hub.silences.silenced = [
        Silence("alertmanager:5a7d", matchers, "ada", "new riser", now, now + timedelta(hours=1), keeper=ALERTMANAGER)
    ]
    site.hub.silences.problem = "http://am: answered 500"
    listed = site.ask("/api/silences").json
    assert [(silence["id"], silence["keeper"], silence["active"]) for silence in listed["silences"]] == [
        ("alertmanager:5a7d", "alertmanager", True)
    ]
    assert listed["problem"] == "http://am: answered 500"
    shown = site.ask("/api/incidents/INC-1").json["silenced_by"]
    assert (shown["author"], shown["keeper"]) == ("ada (in alertmanager)", "alertmanager")
