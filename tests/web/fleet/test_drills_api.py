"""Drills over a real socket: the verdict of each fault, and the score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from tests.web import stories
from tests.web.kept_services import START, CannedSimulator
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.fleet import accuracy
from watchkeeper.config.settings import Settings
from watchkeeper.kit import wire
from watchkeeper.model import fleet
from watchkeeper.model.alerts import Severity

TRUTH = {"cause": "gpu_fell_off_bus", "severity": "critical", "place": "gpu", "action": "reboot"}
FAULT = {"id": "f1", "scenario": "xid-79", "node": "gpu-r01-02", "gpu": 3, "uuid": "GPU-r01-02-3", "truth": TRUTH}
FAULT |= {"place": "sim/node=gpu-r01-02/gpu=GPU-r01-02-3"}


FAULTS = orjson.dumps([{**FAULT, "at": wire.format_time(START)}])


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub(simulator=CannedSimulator(faults=FAULTS))) as running:
        yield running


def test_a_fault_without_an_incident_has_no_verdict(site: Site) -> None:
    answer = site.ask("/api/drills").json
    assert answer["drills"][0]["verdict"]["incident"] is None
    assert answer["score"] == {"drills": 1, "detected": 0, "right": 0, "median_seconds": None, "slowest_seconds": None}


@pytest.mark.parametrize("answer", [b"", b"{", b"7", b'{"ok":true}', b'[{"id":"f1"}]', b'[{"id":"f1","truth":null}]'])
def test_an_invalid_list_of_faults_is_an_error(site: Site, answer: bytes) -> None:
    site.hub.simulator.faults = answer
    reply = site.ask("/api/drills")
    assert reply.status == 503
    assert "the simulator did not return a list of faults" in reply.json["error"]


def test_a_detected_fault_is_judged_by_cause_place_and_severity(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    lost = site.hub.journal.kept["INC-1"]
    site.hub.journal.kept["INC-1"] = replace(lost, opened_at=max(lost.opened_at, START))
    answer = site.ask("/api/drills").json
    verdict = answer["drills"][0]["verdict"]
    assert (verdict["incident"], verdict["cause"]) == ("INC-1", "gpu_fell_off_bus")
    assert [verdict[name] for name in ("cause_right", "place_right", "severity_right")] == [True, True, True]
    assert answer["score"]["right"] == 1


def test_an_earlier_incident_or_one_of_another_gpu_does_not_match(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    other = {
        **FAULT,
        "uuid": "GPU-r02-02-1",
        "node": "gpu-r02-02",
        "place": "sim/node=gpu-r02-02",
        "at": wire.format_time(START),
    }
    site.hub.simulator.faults = orjson.dumps([other])
    assert site.ask("/api/drills").json["score"]["detected"] == 0


JOB = {"cause": "training_stalled", "severity": "warning", "place": "job", "action": "inspect"}


@pytest.mark.parametrize(("job", "is_credited"), [("llm", True), ("llm-2", False), (None, False)])
def test_a_fault_of_a_job_is_credited_to_the_incident_of_that_job_only(
    site: Site, job: str | None, is_credited: bool
) -> None:
    place = fleet.Place("main", domain=job and f"job={job}")
    site.call(stories.lose_gpu, site.hub)
    lost = site.hub.journal.kept["INC-1"]
    changes = {"place": place, "cause": "training_stalled", "family": "training", "severity": Severity.WARNING}
    site.hub.journal.kept["INC-1"] = replace(lost, opened_at=max(lost.opened_at, START), **changes)
    fault = {**FAULT, "uuid": None, "truth": JOB, "place": "sim/domain=job%3Dllm", "at": wire.format_time(START)}
    site.hub.simulator.faults = orjson.dumps([fault])
    (drill,) = site.ask("/api/drills").json["drills"]
    assert drill["verdict"]["incident"] == ("INC-1" if is_credited else None)
    assert drill["verdict"]["place_right"] is (True if is_credited else None)


def test_a_drill_that_has_ended_stays_in_the_list(site: Site) -> None:
    site.ask("/api/drills")
    site.hub.simulator.faults = b"[]"
    (drill,) = site.ask("/api/drills").json["drills"]
    assert (drill["id"], drill["ended_at"] is not None) == ("f1", True)


def test_drills_with_a_verdict_are_counted_by_cause(site: Site) -> None:
    assert site.ask("/api/drills/accuracy").json["drills"] == []
    site.call(stories.lose_gpu, site.hub)
    lost = site.hub.journal.kept["INC-1"]
    site.hub.journal.kept["INC-1"] = replace(lost, opened_at=max(lost.opened_at, START))
    (line,) = site.ask("/api/drills/accuracy").json["drills"]
    assert (line["cause"], line["drills"], line["found"], line["right"]) == ("gpu_fell_off_bus", 1, 1, 1)
    assert 'watchkeeper_drill_causes{cause="gpu_fell_off_bus",verdict="right"} 1' in site.hub.metrics.render()


def score_of(*scenarios: tuple[str, str | None]) -> dict[str, object]:
    named = [{"name": "x", "cause": cause, "detected": named is not None, "named": named} for cause, named in scenarios]
    return {"scenarios": named, "false_pages": 0}


def test_the_score_of_a_game_day_is_saved_for_a_real_fleet_too(tmp_path: Path) -> None:
    settings = Settings()
    kept = SmallHub(settings=replace(settings, hub=replace(settings.hub, data=str(tmp_path))))
    body = score_of(("node_down", "node_down"), ("node_down", "agent_down"), ("power_brake", None))
    with serving(kept) as site:
        assert site.ask("/api/drills/score", method="POST", body=body).status == 200
    again = SmallHub(settings=kept.settings)
    with serving(again) as site:
        answer = site.ask("/api/drills/accuracy").json
        shown = CliRunner().invoke(accuracy.command, ["--hub", site.url]).output
    assert [(row["cause"], row["right"], row["drills"], row["instead"]) for row in answer["drills"]] == [
        ("power_brake", 0, 1, []),
        ("node_down", 1, 2, ["agent_down"]),
    ]
    assert answer["game_day_at"] is not None
    assert "1 of 2" in shown
    assert 'watchkeeper_drill_causes{cause="power_brake",verdict="missed"} 1' in again.metrics.render()


NO_CAUSE = {"cause": None, "detected": True, "named": None}


@pytest.mark.parametrize(
    "scenarios", [None, [1], [{"cause": "gremlins"}], [{}], [NO_CAUSE], [NO_CAUSE | {"cause": ["node_down"]}]]
)
def test_an_invalid_score_is_refused(site: Site, scenarios: object) -> None:
    body = {} if scenarios is None else {"scenarios": scenarios}
    assert site.ask("/api/drills/score", method="POST", body=body).status == 400


def test_a_damaged_score_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "drills.json").write_text("[1, 2")
    settings = Settings()
    with serving(SmallHub(settings=replace(settings, hub=replace(settings.hub, data=str(tmp_path))))) as site:
        assert site.ask("/api/drills/accuracy").json["drills"] == []


def test_a_real_fleet_has_no_drills() -> None:
    with serving(SmallHub()) as running:
        reply = running.ask("/api/drills")
    assert reply.status == 404
    assert "this hub has no simulator" in reply.json["error"]
