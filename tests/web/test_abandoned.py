"""Queries whose clients have gone: they end, leave their places, and delay nobody."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.support import waiting
from tests.support.web.stored_hub import FORM, StoredHub
from tests.web.running import Site, serving

# A minute of CPU for one window, sample by sample.
HEAVY = "double_exponential_smoothing(vector(time())[20d:1s], 0.5, 0.5)"
CLIENTS = 40
# A busy machine may need longer than the loops between two checks.
SOON_SECONDS = 30.0


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(StoredHub()) as running:
        yield running


@contextlib.contextmanager
def heavy_clients(site: Site, *, method: str, address: str = "127.0.0.1") -> Iterator[None]:
    """Clients that send a heavy query and are gone at the end of the block, without having read an answer."""
    form = urlencode({"query": HEAVY})
    with contextlib.ExitStack() as open_clients:
        for _ in range(CLIENTS):
            client = socket.create_connection(("127.0.0.1", site.port), source_address=(address, 0))
            open_clients.enter_context(client)
            head = [f"{method} /api/v1/query{'?' + form if method == 'GET' else ''} HTTP/1.1", "Host: 127.0.0.1"]
            body = form if method == "POST" else ""
            head += [f"{name}: {value}" for name, value in FORM.items()] + [f"Content-Length: {len(body)}", "", body]
            client.sendall("\r\n".join(head).encode())
        waiting.until(lambda: panels(site, "running") > 0, what="a heavy query runs", timeout_seconds=SOON_SECONDS)
        yield


def metric(site: Site, line: str) -> float:
    lines = site.hub.metrics.render().splitlines()
    return next((float(each.rpartition(" ")[2]) for each in lines if each.startswith(line)), 0.0)


def panels(site: Site, state: str) -> float:
    return metric(site, f'watchkeeper_web_panels{{state="{state}"}}')


@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_abandoned_queries_end_and_leave_the_queue(site: Site, method: str) -> None:
    cancelled_before = metric(site, "watchkeeper_web_cancelled_total")
    with heavy_clients(site, method=method):
        waiting.until(
            lambda: panels(site, "running") + panels(site, "waiting") == CLIENTS,
            what="all queries have arrived",
            timeout_seconds=SOON_SECONDS,
        )
    began = time.monotonic()
    assert site.ask("/api/v1/query?query=1").json["data"]["result"][1] == "1"
    assert time.monotonic() - began < SOON_SECONDS
    waiting.until(
        lambda: panels(site, "running") + panels(site, "waiting") == 0,
        what="no panel runs or waits",
        timeout_seconds=SOON_SECONDS,
    )
    assert metric(site, "watchkeeper_web_cancelled_total") - cancelled_before == CLIENTS


@pytest.mark.timeout(240)
def test_heavy_queries_of_one_client_do_not_delay_those_of_another(site: Site) -> None:
    with heavy_clients(site, method="GET", address="127.0.0.2"):
        began = time.monotonic()
        for _ in range(5):
            assert site.ask("/api/v1/query?query=1").status == 200
        assert time.monotonic() - began < SOON_SECONDS
        assert panels(site, "running") > 0, "the heavy queries still run"


def test_a_query_too_large_for_memory_is_an_execution_error(site: Site) -> None:
    expr = 'label_join(temp,"a","","node","node")'
    for _ in range(15):
        expr = f'label_join({expr},"a","","a","a","a")'
    reply = site.ask("/api/v1/query", method="POST", body=urlencode({"query": expr}), headers=FORM)
    assert (reply.status, reply.json["errorType"]) == (422, "execution")
    assert "the limit is 16,384" in reply.json["error"]


def test_too_many_selectors_are_refused(site: Site) -> None:
    form = urlencode([("match[]", f'{{node="{number}"}}') for number in range(1001)])
    for path in ("/api/v1/series", "/api/v1/labels"):
        reply = site.ask(path, method="POST", body=form, headers=FORM)
        assert (reply.status, reply.json["errorType"]) == (400, "bad_data")
        assert "more than 1,000 parameters" in reply.json["error"]
