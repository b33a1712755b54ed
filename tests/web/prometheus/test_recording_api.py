"""A recording from a hub, and the same recording as a hub."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.running_product import await_that
from tests.support.web.stored_hub import StoredHub
from tests.web.running import Site, serving
from tests.web.stories import lose_gpu
from watchkeeper.config.settings import Settings
from watchkeeper.kit import clock
from watchkeeper.store import recording
from watchkeeper.web import replay_hub
from watchkeeper.web.prometheus import prometheus_exchange


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> recording.Recording:
    hub = StoredHub()
    lose_gpu(hub)
    path = tmp_path_factory.mktemp("tapes") / "t.wkrec"
    with serving(hub) as site:
        now = hub.now_ms / 1000
        reply = site.ask(f"/api/recording?from={now - 600}&to={now + 5}")
        assert (reply.status, reply.headers["content-type"]) == (200, "application/gzip")
        path.write_bytes(reply.body)
    return recording.read(path)


@pytest.fixture(scope="module")
def replayed(tape: recording.Recording) -> Iterator[Site]:
    offered = replay_hub.recorded_services(tape, replay_hub.load_engine(tape), settings=Settings(), speed=None)
    with serving(offered) as site:
        yield site


def test_a_recording_holds_series_nodes_gpus_metadata_and_incidents(tape: recording.Recording) -> None:
    counts = tape.counts()
    assert (counts["nodes"], counts["gpus"], counts["series"], counts["incidents"]) == (4, 32, 3, 1)
    assert [metric.name for metric in tape.metrics] == ["temp"]
    assert tape.incidents[0].diagnosis is not None


def test_a_recording_with_selectors_holds_only_these_series(tmp_path: Path) -> None:
    with serving(StoredHub()) as site:
        now = site.hub.now_ms / 1000
        reply = site.ask(f"/api/recording?from={now - 600}&to={now}&match[]=watts&match[]=%7Bnode=%22n1%22%7D")
    path = tmp_path / "r"
    path.write_bytes(reply.body)
    series = [(labels.name, labels["node"]) for labels, _, _ in recording.read(path).series]
    assert series == [("temp", "n1"), ("watts", "n1")]


def test_a_client_that_disconnects_before_the_first_byte_is_no_longer_counted() -> None:
    with serving(StoredHub()) as site:
        now = site.hub.now_ms / 1000
        path = f"/api/recording?from={now - 600}&to={now}"
        for _ in range(2 * prometheus_exchange.MAX_CONCURRENT_RECORDINGS):
            with socket.create_connection(("127.0.0.1", site.port), timeout=60) as line:
                line.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        await_that(lambda: site.ask(path).status == 200)


@pytest.mark.parametrize("form", ["from=1", "from=2&to=1", "from=1&to=2&match[]=sum(up)", "from=x&to=2"])
def test_an_invalid_window_is_refused(form: str) -> None:
    with serving(StoredHub()) as site:
        reply = site.ask(f"/api/recording?{form}")
    assert (reply.status, reply.json["ok"]) == (400, False)


def test_a_replayed_recording_answers_queries_and_shows_incidents(replayed: Site) -> None:
    result = replayed.ask("/api/v1/query?query=temp").json["data"]["result"]
    assert [(row["metric"]["node"], row["value"][1]) for row in result] == [("n1", "51")]
    incidents = replayed.ask("/api/incidents?open=0").json["incidents"]
    assert [row["cause"] for row in incidents] == ["gpu_fell_off_bus"]
    assert len(replayed.ask("/api/fleet").json["nodes"]) == 4
    detail = replayed.ask(f"/api/incidents/{incidents[0]['id']}").json
    assert detail["timeline"]


def test_nothing_in_a_recording_can_be_changed(replayed: Site) -> None:
    id = replayed.ask("/api/incidents?open=0").json["incidents"][0]["id"]
    reply = replayed.ask(f"/api/incidents/{id}/resolve", method="POST", body={"why": "x"})
    assert (reply.status, "this is a recording" in reply.json["error"]) == (409, True)
    assert replayed.ask("/api/events", method="POST", body=[]).status == 409


def test_the_clock_of_a_recording_stands_at_its_end_or_runs_up_to_it() -> None:
    start = clock.from_ms(0)
    end = start + timedelta(hours=1)
    assert replay_hub.RecordingClock(start, end, speed=None).now() == end
    slow, fast = (replay_hub.RecordingClock(start, end, speed=speed) for speed in (1.0, 1e9))
    assert start <= slow.now() < start + timedelta(minutes=1)
    assert fast.now() == end
