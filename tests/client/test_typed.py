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


def test_an_incident_has_its_diagnosis_and_plan(site: Site) -> None:
    client = Client(site.url)
    (card,) = client.incidents()
    assert (card.id, card.severity, card.confidence) == ("INC-1", alerts.Severity.CRITICAL, 0.97)
    detail = client.incident(card.id)
    assert detail.diagnosis is not None
    assert detail.diagnosis.findings[0].cause == detail.incident.cause
    assert detail.plan is not None
    assert detail.timeline[0].kind == "incident.opened"


def test_a_change_of_an_incident_returns_the_changed_incident(site: Site) -> None:
    client = Client(site.url)
    assert client.acknowledge("INC-1").incident.state == "acknowledged"
    client.note("INC-1", text="a new riser is on its way")
    assert client.resolve("INC-1", why="replaced").incident.state == "resolved"
    assert client.incidents() == ()
    assert [card.id for card in client.incidents(all=True)] == ["INC-1"]


def test_the_fleet_has_every_node_and_gpu(site: Site) -> None:
    client = Client(site.url)
    inventory = client.fleet()
    assert sum(len(node.gpus) for node in inventory.nodes) == 32
    assert [node.name for node in client.nodes()] == [node.name for node in inventory.nodes]
    gpu = inventory.nodes[0].gpus[0]
    assert gpu is not None
    assert inventory.workloads is not None
    assert gpu.workload == inventory.workloads[gpu.uuid]
    assert client.gpu(gpu.uuid).node.name == inventory.nodes[0].name


def test_a_silence_starts_and_ends(site: Site) -> None:
    client = Client(site.url)
    made = client.silence(['node="gpu-r01-02"'], reason="riser", duration="2h")
    assert made.matchers == ('node="gpu-r01-02"',)
    assert made.id in [silence.id for silence in client.silences()]
    client.end_silence(made.id)


def test_a_query_returns_series(site: Site) -> None:
    result = Client(site.url).query("DCGM_FI_DEV_GPU_UTIL", limit=4)
    assert len(result.series) == 4
    assert result.series[0].newest is not None
    assert result.warnings


def test_a_refusal_of_the_hub_is_an_error_with_its_text(site: Site) -> None:
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


def test_a_hub_with_another_api_version_is_an_error() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Newer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(HubError, match="has API version 2, this client has API version 1"):
            Client(f"http://127.0.0.1:{server.server_port}").incidents()
        thread.join()


@given(st.dictionaries(st.text().filter(lambda name: name not in ("uuid", "index", "pci", "model")), st.integers()))
def test_fields_of_a_newer_hub_are_ignored(added: dict[str, int]) -> None:
    gpu = fleet.Gpu("GPU-1", 3)
    assert read_answer(fleet.Gpu, {**added, **wire.to_plain(gpu)}) == gpu


def test_a_missing_required_field_is_an_error() -> None:
    with pytest.raises(HubError, match="the hub's answer has no `uuid`: the hub is older than this client"):
        read_answer(fleet.Gpu, {"index": 3})
