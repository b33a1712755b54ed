"""The hub's own API over a real socket."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.support.manual_clock import ManualClock
from tests.web import stories
from tests.web.kept_services import CannedSimulator, KeptIncidents
from tests.web.pushed import event
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.kit import wire
from watchkeeper.model import events
from watchkeeper.web.fleet import fleet_api


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub(simulator=CannedSimulator())) as running:
        yield running


def test_the_status_has_cluster_mode_and_rules(site: Site) -> None:
    status = site.ask("/api/status").json
    assert (status["ok"], status["cluster"], status["mode"], status["simulated"]) == (True, "main", "observe", True)
    assert "sm_active" in status["colours"]


def test_the_inventory_lists_nodes_by_rack_with_their_holders(site: Site) -> None:
    stock = site.ask("/api/fleet").json
    assert [node["name"] for node in stock["nodes"]] == ["gpu-r01-01", "gpu-r01-02", "gpu-r02-01", "gpu-r02-02"]
    assert stock["nodes"][0]["rack"] == "r01"
    assert [gpu["index"] for gpu in stock["nodes"][0]["gpus"]] == list(range(8))
    assert stock["workloads"]["GPU-r01-01-0"].count("/") == 1


def test_a_page_that_opens_accepts_an_older_snapshot() -> None:
    time = ManualClock(datetime(2026, 1, 31, tzinfo=UTC))
    with serving(SmallHub(clock=time)) as site:
        assert site.ask("/api/fleet").json["workloads"]
        site.hub.queries.failing = True
        asyncio.run_coroutine_threadsafe(time.advance(60), site.loop).result(60)
        assert site.ask("/api/fleet?max_age=120").json["workloads"]
        assert site.ask("/api/fleet").json["workloads"] is None
        assert site.ask("/api/fleet?max_age=121").status == 400


def test_holders_are_unknown_if_the_queries_fail(site: Site) -> None:
    site.hub.queries.failing = True
    assert site.ask("/api/fleet").json["workloads"] is None


def test_an_incident_has_cause_plan_and_timeline(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    card = site.ask("/api/incidents").json["incidents"][0]
    assert (card["id"], card["confidence"], card["place_name"]) == ("INC-1", 0.97, "GPU 3 on gpu-r01-02")
    assert card["next_step"] == "Cordon and drain gpu-r01-02, then reboot it"
    detail = site.ask("/api/incidents/INC-1").json
    assert detail["diagnosis"]["findings"][0]["ruled_out"][0]["cause"] == "app_illegal_access"
    assert [step["action"]["kind"] for step in detail["plan"]["receipts"]][:2] == ["cordon", "drain"]
    assert detail["timeline"][0]["kind"] == "incident.opened"


def test_a_list_at_its_limit_says_that_there_are_more_incidents(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    assert site.ask("/api/incidents?limit=1").json["has_more"] is False
    site.call(stories.heat_up, site.hub)
    limited, all_open = (site.ask(f"/api/incidents?limit={limit}").json for limit in (1, 2))
    assert (len(limited["incidents"]), limited["has_more"]) == (1, True)
    assert (len(all_open["incidents"]), all_open["has_more"]) == (2, False)


def test_list_and_page_show_the_diagnosed_cause(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    diagnosis = site.hub.journal.diagnoses["INC-1"]
    better = replace(diagnosis.findings[0], cause="driver_not_loaded", title="gpu-r01-02 has no driver")
    site.hub.journal.diagnoses["INC-1"] = replace(diagnosis, findings=(better,))
    card, page = site.ask("/api/incidents").json["incidents"][0], site.ask("/api/incidents/INC-1").json
    names = [(incident["cause"], incident["title"]) for incident in (card, page["incident"])]
    assert names == [("driver_not_loaded", "gpu-r01-02 has no driver")] * 2
    assert page["runbook"].endswith("driver-not-loaded.md")
    site.hub.journal.diagnoses["INC-1"] = replace(diagnosis, findings=(replace(better, cause="unknown"),))
    assert site.ask("/api/incidents").json["incidents"][0]["cause"] == "gpu_fell_off_bus"


def test_an_operator_acknowledges_notes_and_resolves(site: Site) -> None:
    site.call(stories.lose_gpu, site.hub)
    assert site.ask("/api/incidents/INC-1/acknowledge", method="POST", body={}).json["incident"]["assignee"] == "local"
    again = site.ask("/api/incidents/INC-1/acknowledge", method="POST", body={})
    assert (again.status, again.json["ok"]) == (409, False)
    noted = site.ask("/api/incidents/INC-1/note", method="POST", body={"text": " reseated "}).json
    assert noted["timeline"][-1]["body"] == {"text": "reseated"}
    assert site.ask("/api/incidents/INC-1/resolve", method="POST", body={}).status == 400
    closed = site.ask("/api/incidents/INC-1/resolve", method="POST", body={"why": "rebooted"}).json
    assert closed["incident"]["state"] == "resolved"
    assert site.ask("/api/incidents").json["incidents"] == []
    assert len(site.ask("/api/incidents?open=0").json["incidents"]) == 1


@pytest.mark.parametrize("path", ["/api/incidents/INC-7", "/api/gpu/GPU-7", "/api/nothing", "/nothing"])
def test_a_404_has_the_format_of_the_fleet_api(site: Site, path: str) -> None:
    reply = site.ask(path)
    assert (reply.status, reply.json["ok"], reply.json["status"]) == (404, False, 404)


def test_pushed_events_arrive_unchanged(site: Site) -> None:
    reply = site.ask("/api/events", method="POST", body=[event(1), event(2)])
    assert reply.json == {"ok": True, "kept": 2}
    assert [taken.id for taken in site.hub.journal.taken] == ["e1", "e2"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("{", 400, "not JSON"),
        ("{}", 400, "JSON array"),
        ('[{"id": "e1"}]', 400, "kind: is missing"),
        ("[" + ",".join(["{}"] * 1001) + "]", 400, "1,001 events, the limit is 1,000"),
        ("[" + " " * 1024 * 1024 + "]", 413, "1,048,578 bytes or more, the limit is 1,048,576"),
    ],
)
def test_an_invalid_batch_is_refused_with_both_numbers(site: Site, body: str, status: int, words: str) -> None:
    reply = site.ask("/api/events", method="POST", body=body, headers={"Content-Type": "application/json"})
    assert reply.status == status
    assert words in reply.json["error"]
    assert site.hub.journal.taken == []


def test_a_client_that_disconnects_is_not_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with serving(SmallHub()) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as sender:
            head = (
                "POST /api/events HTTP/1.1",
                "Host: localhost",
                "Content-Type: application/json",
                "Content-Length: 9",
            )
            sender.sendall("\r\n".join((*head, "", "[")).encode())
            assert running.ask("/api/status").status == 200
        assert running.ask("/api/status").status == 200
    assert running.hub.journal.taken == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_too_many_pushes_are_refused_with_retry_after(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_api, "MAX_PUSHES", 0)
    reply = site.ask("/api/events", method="POST", body=[event(1)])
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    assert "0 pushes of 0 bytes wait for their commit" in reply.json["error"]
    assert "the limits are 0 pushes, 67,108,864 bytes and 3 s" in reply.json["error"]


def test_pushes_that_are_too_large_together_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_api, "MAX_PUSHED_BYTES", 300)
    assert site.ask("/api/events", method="POST", body=[event(1)]).status == 200
    assert site.ask("/api/events", method="POST", body=[event(2), event(3), event(4)]).status == 429


class SlowIncidents(KeptIncidents):
    """Commits nothing until `may_commit` is set."""

    has_begun, may_commit = threading.Event(), threading.Event()

    async def ingest_events(self, batch: Sequence[events.Event]) -> int:
        self.has_begun.set()
        await asyncio.to_thread(self.may_commit.wait, 30)
        return await super().ingest_events(batch)


def test_a_push_is_refused_while_an_older_one_waits_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_api, "MAX_PUSH_WAIT_SECONDS", 0.0)
    hub = SmallHub()
    hub.incidents = slow = SlowIncidents(hub.journal, hub.clock)
    with serving(hub) as site, ThreadPoolExecutor(1) as beside:
        first = beside.submit(site.ask, "/api/events", method="POST", body=[event(1)])
        assert slow.has_begun.wait(30)
        second = site.ask("/api/events", method="POST", body=[event(2)])
        slow.may_commit.set()
        assert first.result().status == 200
    assert second.status == 429
    assert "1 pushes of" in second.json["error"]


def test_a_gpu_has_its_events_and_incidents(site: Site) -> None:
    incident = site.call(stories.lose_gpu, site.hub)
    gpu = site.ask(f"/api/gpu/{incident.place.gpu}").json
    assert (gpu["gpu"]["index"], gpu["node"]["name"], gpu["labels"]) == (3, "gpu-r01-02", None)
    assert gpu["events"][0]["incident"] == "INC-1"
    assert site.ask("/api/gpu/GPU-r01-01-0").json["labels"]["Hostname"] == "gpu-r01-01"


def test_a_gpu_that_failed_before_its_first_scrape_is_shown(site: Site) -> None:
    incident = site.call(stories.lose_gpu, site.hub)
    site.hub.fleet.fleet_gpus = [
        fleet_gpu for fleet_gpu in site.hub.fleet.fleet_gpus if fleet_gpu.gpu.uuid != incident.place.gpu
    ]
    answer = site.ask(f"/api/gpu/{incident.place.gpu}")
    assert (answer.status, answer.json["node"]["name"], answer.json["labels"]) == (200, "gpu-r01-02", None)
    assert answer.json["gpu"] == {"uuid": incident.place.gpu, "index": None, "pci": None, "model": None}
    assert [card["id"] for card in answer.json["incidents"]] == ["INC-1"]


def test_an_incident_of_a_rack_is_shown_only_for_its_gpus(site: Site) -> None:
    site.call(stories.lose_rack, site.hub)
    incidents_by_node = {node["name"]: node["incidents"] for node in site.ask("/api/nodes").json["nodes"]}
    assert (incidents_by_node["gpu-r01-01"], incidents_by_node["gpu-r02-01"]) == (["INC-9"], [])
    assert [card["id"] for card in site.ask("/api/gpu/GPU-r01-01-0").json["incidents"]] == ["INC-9"]
    assert site.ask("/api/gpu/GPU-r02-01-0").json["incidents"] == []


def test_a_drill_request_is_forwarded_to_the_simulator(site: Site) -> None:
    assert site.ask("/api/sim/scenarios").json[0]["name"] == "xid-79"
    site.ask("/api/sim/faults", method="POST", body={"scenario": "xid-79"})
    assert site.ask("/api/sim/faults/f1", method="DELETE").status == 200
    assert site.hub.simulator.drills[1:] == [b'POST /faults {"scenario": "xid-79"}', b"DELETE /faults/f1 "]


def test_a_real_fleet_has_no_drills() -> None:
    with serving(SmallHub()) as site:
        reply = site.ask("/api/sim/scenarios")
    assert (reply.status, "this hub has no simulator" in reply.json["error"]) == (404, True)


def test_an_event_survives_encoding_and_decoding() -> None:
    body = wire.dumps([wire.from_plain(events.Event, event(1))]).encode()
    assert wire.to_plain(fleet_api.read_events(body)) == [event(1)]
    assert asyncio.run(SmallHub().incidents.ingest_events(fleet_api.read_events(body))) == 1
