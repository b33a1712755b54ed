"""Drills over a real socket: each fault of the simulator beside what the hub has made of it, and the score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest

from tests.web import stories
from tests.web.fake_hub import START, FakeHub
from tests.web.running import Site, serving
from watchkeeper.kit import wire

TRUTH = {"cause": "gpu_fell_off_bus", "severity": "critical", "place": "gpu", "action": "reboot"}
FAULT = {"id": "f1", "scenario": "xid-79", "node": "gpu-r01-02", "gpu": 3, "uuid": "GPU-r01-02-3", "truth": TRUTH}


class BrokenHub(FakeHub):
    """A hub in front of a simulator with these faults."""

    faults: tuple[dict[str, object], ...] = ({**FAULT, "at": wire.format_time(START)},)

    async def simulator_request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        return (
            (200, orjson.dumps(self.faults))
            if path == "/faults"
            else await super().simulator_request(method, path, body)
        )


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(BrokenHub(simulator_url="http://127.0.0.1:1")) as running:
        yield running


def test_a_fault_that_nobody_has_found_has_no_verdict(site: Site) -> None:
    answer = site.ask("/api/drills").json
    assert answer["drills"][0]["verdict"]["incident"] is None
    assert answer["score"] == {"drills": 1, "detected": 0, "right": 0, "median_seconds": None, "slowest_seconds": None}


def test_a_fault_that_was_found_is_judged_by_cause_place_and_severity(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    lost = site.hub.kept["INC-1"]
    site.hub.kept["INC-1"] = replace(lost, opened_at=max(lost.opened_at, START))
    answer = site.ask("/api/drills").json
    verdict = answer["drills"][0]["verdict"]
    assert (verdict["incident"], verdict["cause"]) == ("INC-1", "gpu_fell_off_bus")
    assert [verdict[name] for name in ("cause_right", "place_right", "severity_right")] == [True, True, True]
    assert answer["score"]["right"] == 1


def test_an_incident_of_before_or_of_another_gpu_is_no_answer(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    site.hub.faults = ({**FAULT, "uuid": "GPU-r02-02-1", "node": "gpu-r02-02", "at": wire.format_time(START)},)
    assert site.ask("/api/drills").json["score"]["detected"] == 0


def test_a_drill_that_has_ended_stays_in_the_list(site: Site) -> None:
    site.ask("/api/drills")
    site.hub.faults = ()
    (drill,) = site.ask("/api/drills").json["drills"]
    assert (drill["id"], drill["ended_at"] is not None) == ("f1", True)


def test_a_real_fleet_has_no_drills() -> None:
    with serving(FakeHub()) as running:
        reply = running.ask("/api/drills")
    assert reply.status == 404
    assert "this fleet is real" in reply.json["error"]
