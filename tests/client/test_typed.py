"""The client against an application on a real socket."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web import stories
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.client.reading import read_answer
from watchkeeper.client.typed import Client
from watchkeeper.errors import HubError
from watchkeeper.kit import api_version, wire
from watchkeeper.model import alerts, fleet


@pytest.fixture
def site() -> Iterator[Site]:
    hub = SmallHub()
    stories.lose_gpu(hub)
    with serving(hub) as running:
        yield running


def test_an_incident_comes_as_a_value_with_its_diagnosis_and_plan(site: Site) -> None:
    client = Client(site.url)
    (card,) = client.incidents()
    assert (card.id, card.severity, card.confidence) == ("INC-1", alerts.Severity.CRITICAL, 0.97)
    detail = client.incident(card.id)
    assert detail.diagnosis is not None
    assert detail.diagnosis.findings[0].cause == detail.incident.cause
    assert detail.plan is not None
    assert detail.timeline[0].kind == "incident.opened"


def test_what_a_person_does_to_an_incident_comes_back_as_the_changed_one(site: Site) -> None:
    client = Client(site.url)
    assert client.acknowledge("INC-1").incident.state == "acknowledged"
    client.note("INC-1", text="a new riser is on its way")
    assert client.resolve("INC-1", why="replaced").incident.state == "resolved"
    assert client.incidents() == ()
    assert [card.id for card in client.incidents(all=True)] == ["INC-1"]


def test_the_fleet_has_every_node_and_gpu(site: Site) -> None:
    client = Client(site.url)
    found = client.fleet()
    assert sum(len(node.gpus) for node in found.nodes) == 32
    assert [node.name for node in client.nodes()] == [node.name for node in found.nodes]
    gpu = found.nodes[0].gpus[0]
    assert gpu is not None
    assert found.workloads is not None
    assert gpu.workload == found.workloads[gpu.uuid]
    assert client.gpu(gpu.uuid).node.name == found.nodes[0].name


def test_a_silence_begins_and_ends(site: Site) -> None:
    client = Client(site.url)
    made = client.silence(['node="gpu-r01-02"'], reason="riser", duration="2h")
    assert made.matchers == ('node="gpu-r01-02"',)
    assert made.id in [one.id for one in client.silences()]
    client.end_silence(made.id)


def test_a_question_in_promql_comes_as_series(site: Site) -> None:
    found = Client(site.url).query("DCGM_FI_DEV_GPU_UTIL", limit=4)
    assert len(found.series) == 4
    assert found.series[0].newest is not None
    assert found.warnings


def test_what_the_hub_refuses_is_an_error_in_its_words(site: Site) -> None:
    with pytest.raises(HubError, match="incident INC-9 not found") as caught:
        Client(site.url).incident("INC-9")
    assert caught.value.status == 404


class Newer(http.server.BaseHTTPRequestHandler):
    """A hub of the next version."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header(api_version.HEADER, "2")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test is quiet."""


def test_a_hub_of_another_version_is_named_as_such() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Newer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(HubError, match="speaks version 2 of its API, this client version 1"):
            Client(f"http://127.0.0.1:{server.server_port}").incidents()
        thread.join()


@given(st.dictionaries(st.text().filter(lambda name: name not in ("uuid", "index", "pci", "model")), st.integers()))
def test_what_a_newer_hub_adds_is_passed_over(added: dict[str, int]) -> None:
    gpu = fleet.Gpu("GPU-1", 3)
    assert read_answer(fleet.Gpu, {**added, **wire.to_plain(gpu)}) == gpu


def test_what_an_answer_lacks_is_said_and_not_guessed() -> None:
    with pytest.raises(HubError, match="the hub's answer has no `uuid`: the hub is older than this command"):
        read_answer(fleet.Gpu, {"index": 3})
