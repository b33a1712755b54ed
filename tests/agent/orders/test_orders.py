"""The agent's side of work orders: refusals, orders that run once, and the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.loopback import Heard, reply, serve
from tests.support.manual_clock import ManualClock
from tests.support.node_orders import NOON
from tests.support.waiting import until_async
from watchkeeper.agent import profiling, push
from watchkeeper.agent.orders import order_ledger, order_work, orders
from watchkeeper.kit import wire
from watchkeeper.kit.own_metrics import Metric
from watchkeeper.model.actions import Result
from watchkeeper.model.orders import KINDS, Envelope, Order, OrderId, Receipt, SealPurpose, is_sealed, node_key, seal

KEY = node_key(b"h" * 32, "main", "n1")
NODE = orders.AgentIdentity("main", "n1", KEY)
PAUSE = Order(
    OrderId("WO-1"), "main", "n1", "profiling_pause", NOON, NOON + timedelta(minutes=10), "nonce-1", {"seconds": "60"}
)


class Setup:
    """One agent's desk over a directory, which the next one finds as it was left."""

    def __init__(self, root: Path, node: orders.AgentIdentity = NODE) -> None:
        self.clock = ManualClock(NOON)
        self.pause = profiling.PauseFile(root)
        self.count = Metric("orders", "counter", "")
        self.ledger = order_ledger.OrderLedger(root / "orders", now=NOON)
        bench = order_work.OrderContext(self.pause)
        self.worker = orders.OrderWorker(node, self.ledger, bench, time=self.clock, counter=self.count)

    def take(self, envelope: Envelope) -> Receipt:
        ((_, sealed),) = asyncio.run(self.worker.handle(envelope)).items()
        assert is_sealed(sealed, self.worker.node.key, purpose=SealPurpose.RECEIPT)
        return wire.loads(Receipt, sealed.text)


def test_every_kind_of_order_has_a_function() -> None:
    assert order_work.ORDER_FUNCTIONS.keys() == KINDS.keys()


def test_an_order_is_run_and_answered_with_a_receipt(tmp_path: Path) -> None:
    agent = Setup(tmp_path)
    receipt = agent.take(seal(PAUSE, KEY))
    assert (receipt.order, receipt.result) == ("WO-1", Result.DONE)
    assert agent.pause.read() == profiling.Pause(NOON, NOON + timedelta(seconds=60), "an order")
    assert agent.count.get(kind="profiling_pause", result="done") == 1


def test_an_order_stays_in_the_ledger_for_a_day_after_it_expired(tmp_path: Path) -> None:
    agent = Setup(tmp_path)
    agent.take(seal(PAUSE, KEY))
    for hours, is_known in ((23, True), (0, True), (25, False)):
        agent.ledger.remove_expired(PAUSE.expires_at + timedelta(hours=hours))
        assert ("WO-1" in agent.ledger.content.entries) is is_known


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"node": "n2"}, "the order is for n2 in cluster main, this is n1 in cluster main"),
        ({"cluster": "other"}, "the order is for n1 in cluster other"),
        ({"kind": "melt"}, "does not support `melt`"),
        ({"kind": "reboot"}, "reboot is not allowed on this node; allowed: profiling_pause"),
        ({"kind": "scan"}, "scan is not allowed on this node; allowed: profiling_pause"),
        (
            {"issued_at": NOON - timedelta(hours=2), "expires_at": NOON - timedelta(hours=1)},
            "the order expired at 2026-05-04",
        ),
        ({"issued_at": NOON + timedelta(minutes=6), "expires_at": NOON + timedelta(minutes=9)}, "360 s in the future"),
    ],
)
def test_an_order_that_is_not_allowed_is_refused_in_log_and_receipt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: Mapping[str, object], words: str
) -> None:
    agent = Setup(tmp_path, replace(NODE, allowed_kinds=frozenset({"profiling_pause"})))
    receipt = agent.take(seal(replace(PAUSE, **changed), KEY))  # type: ignore[arg-type]
    assert receipt.result is Result.REFUSED
    assert words in receipt.text
    assert caplog.records[-1].fields["reason"] == receipt.text  # type: ignore[attr-defined]
    assert agent.pause.read() is None


@pytest.mark.parametrize("seal_text", ["", "00" * 32, "é"])
def test_an_order_with_a_wrong_signature_is_refused_first(tmp_path: Path, seal_text: str) -> None:
    agent = Setup(tmp_path)
    receipt = agent.take(replace(seal(PAUSE, KEY), seal=seal_text))
    assert (receipt.result, receipt.text) == (
        Result.REFUSED,
        "the signature was not made with this node's key",
    )
    assert not agent.ledger.content.entries


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"id": "WO-1"}', "\ud800"[:0] + "not json"])
def test_an_invalid_order_is_logged_and_not_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    assert asyncio.run(Setup(tmp_path).worker.handle(Envelope(text, "00"))) == {}
    assert "order refused" in caplog.text


def test_a_repeated_order_is_answered_again_and_not_run_again(tmp_path: Path) -> None:
    agent = Setup(tmp_path)
    first = agent.take(seal(PAUSE, KEY))
    agent.pause.clear()
    assert Setup(tmp_path).take(seal(PAUSE, KEY)) == first, "also after a restart"
    Setup(tmp_path).ledger.remove_receipt("WO-1")
    assert Setup(tmp_path).take(seal(PAUSE, KEY)).result is Result.ALREADY_SO
    assert agent.pause.read() is None


def test_a_nonce_is_valid_for_one_order_also_after_a_restart(tmp_path: Path) -> None:
    Setup(tmp_path).take(seal(PAUSE, KEY))
    again = Setup(tmp_path).take(seal(replace(PAUSE, id=OrderId("WO-2")), KEY))
    assert (again.result, "an order with this id or nonce was received before" in again.text) == (Result.REFUSED, True)
    renewed = Setup(tmp_path).take(seal(replace(PAUSE, nonce="nonce-2"), KEY))
    assert renewed.result is Result.REFUSED, "an id is good for once as well"
    other = Setup(tmp_path).take(seal(replace(PAUSE, id=OrderId("WO-3"), nonce="nonce-3"), KEY))
    assert other.result is Result.DONE


def test_an_order_that_a_crash_interrupted_is_not_repeated(tmp_path: Path) -> None:
    Setup(tmp_path).ledger.begin(PAUSE, now=NOON)
    agent = Setup(tmp_path)
    agent.worker.resume()
    receipt = wire.loads(Receipt, agent.ledger.read_receipts()["WO-1"].text)
    assert receipt.result is Result.FAILED
    assert "it is unknown whether the work was done" in receipt.text
    assert agent.take(seal(PAUSE, KEY)).result is Result.FAILED
    assert agent.pause.read() is None


def test_a_broken_ledger_refuses_orders_that_may_have_been_done(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "ledger.json").write_text('{"lines": {"WO-')
    agent = Setup(tmp_path)
    assert "may have been done already" in agent.take(seal(PAUSE, KEY)).text
    later = replace(PAUSE, issued_at=NOON + timedelta(seconds=1), id=OrderId("WO-2"), nonce="2")
    assert agent.take(seal(later, KEY)).result is Result.DONE


def test_an_order_that_cannot_be_recorded_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Setup(tmp_path)
    (tmp_path / "orders").rmdir()
    receipt = agent.take(seal(PAUSE, KEY))
    assert receipt.text == "the order could not be recorded in the ledger: No such file or directory"
    assert agent.pause.read() is None


def test_a_full_ledger_refuses_with_both_numbers_and_removes_only_old_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "MAX_ORDERS", 2)
    agent = Setup(tmp_path)
    for n in (1, 2, 3):
        last = agent.take(seal(replace(PAUSE, id=OrderId(f"WO-{n}"), nonce=str(n)), KEY))
    assert last.text == "the ledger has 2 orders, the limit is 2"
    asyncio.run(agent.clock.advance(25 * 3600))
    fresh = replace(PAUSE, issued_at=agent.clock.now(), expires_at=agent.clock.now() + timedelta(minutes=1), nonce="4")
    assert agent.take(seal(replace(fresh, id=OrderId("WO-4")), KEY)).result is Result.DONE
    assert (len(agent.ledger.content.entries), list(agent.ledger.read_receipts())) == (1, ["WO-4"])


def test_an_order_times_out_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> order_work.OrderOutcome:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setitem(orders.ORDER_FUNCTIONS, "profiling_pause", never)  # type: ignore[arg-type]
    monkeypatch.setitem(KINDS, "profiling_pause", replace(KINDS["profiling_pause"], seconds=0.01))  # type: ignore[arg-type]
    receipt = Setup(tmp_path).take(seal(PAUSE, KEY))
    assert (receipt.result, receipt.text) == (Result.FAILED, "timed out after 0.01 s")


@pytest.mark.parametrize("seconds", ["0", "-1", "86401", "1e3", "", "²", "9" * 200])
def test_a_pause_of_invalid_length_is_refused(tmp_path: Path, seconds: str) -> None:
    receipt = Setup(tmp_path).take(seal(replace(PAUSE, arguments={"seconds": seconds}), KEY))
    assert (receipt.result, "it must be from 1 to 86400" in receipt.text) == (Result.FAILED, True)


def receipts(requests: list[Heard]) -> list[Receipt]:
    bodies = [request.body for request in requests if request.method == "POST"]
    return [wire.loads(Receipt, wire.loads(Envelope, body).text) for body in bodies]


async def follow(agent: Setup, url: str, *, done: asyncio.Event) -> None:
    """Run the loop while its pauses pass at once."""
    hub = push.HubEndpoint(url, "secret")
    task = asyncio.create_task(orders.follow_orders(hub, agent.worker, time=agent.clock))

    async def is_done() -> bool:
        assert not task.done(), task.exception()
        await agent.clock.advance(1)
        return done.is_set()

    await until_async(is_done)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_an_order_is_fetched_and_run_and_its_receipt_is_kept_until_confirmed(tmp_path: Path) -> None:
    agent, done = Setup(tmp_path), asyncio.Event()
    statuses = [200, 429, 503]

    def answer(request: Heard) -> bytes:
        assert request.headers["authorization"] == "Bearer secret"
        if request.method == "POST":
            assert request.path == "/api/orders/WO-1/receipt"
            return reply('{"ok":true}', status=statuses.pop())
        assert request.path == "/api/orders?cluster=main&node=n1&wait=30"
        if not statuses:
            done.set()
        return reply(wire.dumps({"ok": True, "orders": [seal(PAUSE, KEY)] if statuses else []}))

    async def story() -> None:
        async with serve(answer) as hub:
            await follow(agent, hub.origin, done=done)
            assert [receipt.result for receipt in receipts(hub.heard)] == [Result.DONE] * 3

    asyncio.run(story())
    assert agent.ledger.read_receipts() == {}
    assert agent.count.get(kind="profiling_pause", result="done") == 1


@pytest.mark.slow
def test_a_hub_without_orders_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent, done = Setup(tmp_path), asyncio.Event()
    request_times: list[datetime] = []

    def answer(request: Heard) -> bytes:
        request_times.append(agent.clock.now())
        if len(request_times) == 4:
            done.set()
        return reply('{"ok":false}', status=409)

    async def story() -> None:
        async with serve(answer) as hub:
            await follow(agent, hub.origin, done=done)

    asyncio.run(story())
    assert caplog.text.count("order fetch failed") == 1
    assert request_times[-1] - request_times[0] > 3 * 0.5 * timedelta(seconds=orders.UNAVAILABLE_RETRY_SECONDS)


@pytest.mark.parametrize("body", ["", "[]", '{"orders": 5}', '{"orders": [{"text": 1}]}', '{"ok": true}'])
def test_an_invalid_response_of_the_hub_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    agent, done = Setup(tmp_path), asyncio.Event()
    requests: list[int] = []

    def answer(request: Heard) -> bytes:
        requests.append(1)
        if len(requests) == 3:
            done.set()
        return reply(body)

    async def story() -> None:
        async with serve(answer) as hub:
            await follow(agent, hub.origin, done=done)

    asyncio.run(story())
    assert caplog.text.count("order fetch failed") == 1
