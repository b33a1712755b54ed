"""Work orders over HTTP: long polls without threads, receipts after the commit, and node tokens."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.waiting import until, until_async
from tests.web.running import Reply, Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.errors import SettingsError
from watchkeeper.kit import wire
from watchkeeper.model import orders
from watchkeeper.model.actions import Result
from watchkeeper.remediate.orders import OrderQueue, OrderRequest
from watchkeeper.store.journal.journal import Journal
from watchkeeper.web.auth import auth
from watchkeeper.web.auth.auth import Auth, Role, Token
from watchkeeper.web.fleet import orders_api

HUB_KEY = b"h" * 32
SECRET = "s" * 32


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    hub = SmallHub()
    with closing(Journal(tmp_path / "journal.db")) as journal:
        hub.orders = OrderQueue(journal, HUB_KEY, now=hub.clock.now())
        with serving(hub) as running:
            yield running


def give(site: Site, node: str = "n1", kind: str = "scan", **more: object) -> Reply:
    return site.ask("/api/orders", method="POST", body={"node": node, "kind": kind, **more})


def answer(site: Site, id: str, node: str = "n1", result: Result = Result.DONE) -> Reply:
    key = orders.node_key(HUB_KEY, "main", node)
    receipt = orders.Receipt(orders.OrderId(id), site.hub.clock.now(), result, "words", '{"verdict": "healthy"}')
    return site.ask(f"/api/orders/{id}/receipt", method="POST", body=wire.to_plain(orders.seal(receipt, key)))


def polls(site: Site) -> float:
    return site.hub.metrics.gauge("watchkeeper_web_order_polls", "").get()


def test_an_order_goes_to_its_node_and_its_receipt_comes_back(site: Site) -> None:
    given = give(site).json
    assert (given["state"], given["actor"], "nonce" in given["order"]) == ("waiting", "local", False)
    (envelope,) = site.ask("/api/orders?node=n1").json["orders"]
    key = orders.node_key(HUB_KEY, "main", "n1")
    assert orders.is_sealed(orders.Envelope(**envelope), key, purpose=orders.SealPurpose.ORDER)
    assert site.ask(f"/api/orders/{given['order']['id']}").json["state"] == "fetched"
    assert answer(site, given["order"]["id"]).status == 200
    shown = site.ask("/api/orders/recent").json["orders"][0]
    assert (shown["state"], shown["receipt"]["output"]) == ("answered", '{"verdict": "healthy"}')
    assert site.ask("/api/orders?node=n1").json["orders"] == []


def test_a_waiting_poll_returns_when_an_order_is_issued(site: Site) -> None:
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(site.ask, "/api/orders?node=n1&wait=60")
        until(lambda: polls(site) == 1)
        give(site, node="n2")
        give(site)
        # Half of what the poll would wait otherwise.
        assert len(waiting.result(30).json["orders"]) == 1


@pytest.mark.slow
def test_a_poll_returns_empty_after_its_time(site: Site) -> None:
    assert site.ask("/api/orders?node=n1&wait=1").json == {"ok": True, "orders": []}


def test_a_new_poll_of_a_node_ends_its_earlier_poll(site: Site) -> None:
    with ThreadPoolExecutor(2) as others:
        first = others.submit(site.ask, "/api/orders?node=n1&wait=60")
        until(lambda: polls(site) == 1)
        second = others.submit(site.ask, "/api/orders?node=n1&wait=60")
        assert first.result(30).json["orders"] == []
        give(site)
        assert len(second.result(30).json["orders"]) == 1


def test_a_hub_that_stops_answers_all_polls(site: Site) -> None:
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(site.ask, "/api/orders?node=n1&wait=60")
        until(lambda: polls(site) == 1)
        site.call(site.hub.orders.close)
        assert waiting.result(30).json["orders"] == []


@pytest.mark.slow
def test_a_thousand_waiting_agents_use_no_thread(site: Site) -> None:
    async def ask(node: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(f"GET /api/orders?node={node}&wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        response = await reader.readuntil(b"]}")
        writer.close()
        await writer.wait_closed()
        return response

    async def story() -> None:
        await asyncio.to_thread(site.ask, "/api/orders?node=n1")
        before = threading.active_count()
        waiting = [asyncio.create_task(ask(f"n{number}")) for number in range(1000)]
        await until_async(lambda: polls(site) >= 1000)
        # The hub's own loops may take another one of the pool meanwhile.
        assert threading.active_count() <= before + 4
        await asyncio.to_thread(give, site, "n7")
        assert b"WO-" in await waiting[7]
        assert sum(task.done() for task in waiting) == 1
        site.call(site.hub.orders.close)
        await asyncio.gather(*waiting)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/orders", "`node` is required"),
        ("/api/orders?node=n1&wait=61", "from 0 to 60"),
        ("/api/orders?node=n1&wait=-1", "from 0 to 60"),
        ("/api/orders/recent?limit=0", "from 1 to 1000"),
    ],
)
def test_an_invalid_request_gets_the_valid_range(site: Site, path: str, words: str) -> None:
    reply = site.ask(path)
    assert (reply.status, words in reply.json["error"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "node: is missing"),
        ({"node": "n1", "kind": "melt"}, "unknown order `melt`"),
        ({"node": "n1", "kind": "scan", "seconds": 1e12}, "the limit is 1 day"),
        ({"node": "n1", "kind": "scan", "seconds": -5}, "the lifetime is 0:00:00"),
        ({"node": "n1", "kind": "profiling_pause", "arguments": {"seconds": 5}}, "expected text, found 5"),
    ],
)
def test_an_invalid_order_is_refused_with_its_reason(site: Site, body: dict[str, object], words: str) -> None:
    reply = site.ask("/api/orders", method="POST", body=body)
    assert (reply.status, words in reply.json["error"]) == (400, True), reply.body


def test_an_order_that_changes_a_node_cannot_be_issued_by_hand(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(orders.KINDS, "reboot", orders.OrderKind(is_harmless=False, seconds=60))  # type: ignore[arg-type]
    assert give(site, kind="reboot").json["error"] == "reboot changes the node: only a repair plan may issue it"
    request = OrderRequest("main", "n1", "reboot")
    assert site.hub.orders.issue(request, now=site.hub.clock.now(), actor="plan").order.kind == "reboot"


def test_a_receipt_without_proof_is_refused(site: Site) -> None:
    id = give(site).json["order"]["id"]
    assert answer(site, id, node="n2").status == 422
    assert answer(site, "WO-unknown").status == 404
    assert site.ask(f"/api/orders/{id}/receipt", method="POST", body={"text": "x"}).status == 400
    assert site.ask(f"/api/orders/{id}").json["receipt"] is None


def test_too_many_polls_are_refused_with_both_numbers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_api, "MAX_POLLS", 0)
    reply = site.ask("/api/orders?node=n1&wait=5")
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    assert "0 agents wait for orders, the limit is 0" in reply.json["error"]


def test_a_hub_without_an_order_key_names_the_setting() -> None:
    with serving(SmallHub()) as site:
        for reply in (site.ask("/api/orders?node=n1"), give(site), answer(site, "WO-1")):
            assert (reply.status, "set `order_key_file` in" in reply.json["error"]) == (409, True)


def bound(pattern: str | None) -> Auth:
    return Auth((Token("rack 1", Role.AGENT, hashlib.sha256(SECRET.encode()).digest(), pattern),))


def test_a_node_token_is_valid_only_for_its_nodes(tmp_path: Path) -> None:
    hub = SmallHub()
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    event = {"id": "e", "kind": "xid", "code": 79, "place": {"cluster": "main", "node": "r2-n1"}, "text": ""}
    event["at"] = wire.format_time(hub.clock.now())
    with closing(Journal(tmp_path / "journal.db")) as journal:
        hub.orders = OrderQueue(journal, HUB_KEY, now=hub.clock.now())
        with serving(hub, bound("r1-*")) as site:
            assert site.ask("/api/orders?node=r1-n1", headers=headers).status == 200
            refused = site.ask("/api/orders?node=r2-n1", headers=headers)
            assert refused.json["error"] == "token rack 1 is only valid for nodes r1-*; this request is for r2-n1"
            for path, body in (("/api/events", [event]), ("/api/nodes", {"cluster": "main", "node": "r2-n1"})):
                assert site.ask(path, method="POST", body=body, headers=headers).status == 403, path
            nowhere = {**event, "place": {"cluster": "main"}}
            assert site.ask("/api/events", method="POST", body=[nowhere], headers=headers).status == 403
            assert site.ask("/api/v1/write", method="POST", body=b"", headers=headers).status == 403
            own = {**event, "place": {"cluster": "main", "node": "r1-n1"}}
            assert site.ask("/api/events", method="POST", body=[own], headers=headers).status == 200
            given = hub.orders.issue(OrderRequest("main", "r2-n1", "scan"), now=hub.clock.now(), actor="ann")
            receipt = {"text": "", "seal": ""}
            path = f"/api/orders/{given.order.id}/receipt"
            assert site.ask(path, method="POST", body=receipt, headers=headers).status == 403


def test_a_token_line_may_bind_only_an_agent_to_nodes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"n1 agent {SECRET} node=gpu-*\nall agent {SECRET}2\n")
    assert [token.nodes for token in auth.load_tokens(path).tokens] == ["gpu-*", None]
    path.write_text(f"ann admin {SECRET} node=n1\nn1 agent {SECRET}1 node=\nn2 agent {SECRET}2 nodes=x\n")
    with pytest.raises(SettingsError) as raised:
        auth.load_tokens(path)
    assert [
        words in problem
        for problem, words in zip(
            raised.value.problems,
            ("only the token of an agent", "needs a node name", "expected `name role"),
            strict=True,
        )
    ] == [True] * 3
