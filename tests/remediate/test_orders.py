"""The outbox keeps orders over restarts, within bounds, and believes only the node that it asked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.node_orders import HUB_KEY, KEY, NOON, minutes, waiting
from watchkeeper.errors import ActionRefused, StoreError, WireError
from watchkeeper.model import orders
from watchkeeper.model.actions import Result
from watchkeeper.remediate import orders as outboxes
from watchkeeper.remediate.orders import OrderQueue, OrderRequest
from watchkeeper.store.journal.journal import Journal

SCAN = OrderRequest("main", "n1", "scan")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as opened:
        yield opened


@pytest.fixture
def outbox(journal: Journal) -> OrderQueue:
    return OrderQueue(journal, HUB_KEY, now=NOON)


def answer(id: str, result: Result = Result.DONE, key: bytes = KEY) -> orders.Envelope:
    return orders.seal(orders.Receipt(orders.OrderId(id), NOON, result, "it is done"), key)


def test_an_order_waits_for_its_node_until_the_node_answers(outbox: OrderQueue, journal: Journal) -> None:
    given = outbox.issue(SCAN, now=NOON, actor="ann")
    assert waiting(outbox, "n2") == []
    assert waiting(outbox) == [given.order] == waiting(outbox), "a poll whose answer was lost gets it again"
    tracked = outbox.accept_receipt(given.order.id, answer(given.order.id), now=minutes(1))
    assert tracked is not None
    assert tracked.state(minutes(1)) is orders.OrderState.ANSWERED
    assert waiting(outbox) == []
    assert [(entry.kind, entry.actor) for entry in journal.entries()] == [("order", "ann"), ("receipt", "n1")]
    assert journal.verify() is None


def test_a_restarted_hub_keeps_unanswered_orders(outbox: OrderQueue, journal: Journal) -> None:
    first, second = (outbox.issue(SCAN, now=NOON, actor="ann").order for _ in range(2))
    outbox.accept_receipt(first.id, answer(first.id), now=NOON)
    again = OrderQueue(journal, HUB_KEY, now=minutes(5))
    assert waiting(again, at=minutes(5)) == [second]
    assert waiting(OrderQueue(journal, HUB_KEY, now=minutes(11)), at=minutes(11)) == []


def test_issuing_twice_under_one_id_issues_one_order(outbox: OrderQueue) -> None:
    request = replace(SCAN, id="INC-1/reset-1")
    first = outbox.issue(request, now=NOON, actor="plan")
    assert outbox.issue(request, now=minutes(1), actor="plan").order == first.order
    outbox.accept_receipt(first.order.id, answer(first.order.id), now=NOON)
    assert outbox.issue(request, now=minutes(2), actor="plan").receipt is not None


def test_threads_that_issue_at_once_under_one_id_get_one_order(outbox: OrderQueue, journal: Journal) -> None:
    request = replace(SCAN, id="INC-1/reset-1")
    with ThreadPoolExecutor(8) as threads:
        given = list(threads.map(lambda _: outbox.issue(request, now=NOON, actor="plan").order, range(40)))
    assert {order.nonce for order in given} == {given[0].nonce}
    assert len(journal.entries()) == 1


def test_a_receipt_without_its_nodes_signature_proves_nothing(outbox: OrderQueue) -> None:
    id = outbox.issue(SCAN, now=NOON, actor="ann").order.id
    stranger = orders.node_key(HUB_KEY, "main", "n2")
    with pytest.raises(ActionRefused, match="has no valid signature of n1"):
        outbox.accept_receipt(id, answer(id, key=stranger), now=NOON)
    assert len(waiting(outbox)) == 1
    refused = outbox.accept_receipt(id, answer(id, Result.REFUSED, stranger), now=NOON)
    assert refused is not None
    assert not refused.is_proven


def test_a_receipt_is_kept_once_and_only_for_its_own_order(outbox: OrderQueue) -> None:
    id = outbox.issue(SCAN, now=NOON, actor="ann").order.id
    with pytest.raises(WireError, match="not for WO-2"):
        outbox.accept_receipt("WO-2", answer(id), now=NOON)
    assert outbox.accept_receipt("WO-2", answer("WO-2"), now=NOON) is None
    outbox.accept_receipt(id, answer(id), now=NOON)
    again = outbox.accept_receipt(id, answer(id, Result.FAILED), now=NOON)
    assert again is not None
    assert again.receipt is not None
    assert again.receipt.result is Result.DONE


def test_a_receipt_that_comes_after_the_order_expired_is_still_kept(outbox: OrderQueue) -> None:
    id = outbox.issue(SCAN, now=NOON, actor="ann").order.id
    assert waiting(outbox, at=minutes(11)) == []
    late = outbox.accept_receipt(id, answer(id), now=minutes(12))
    assert late is not None
    assert late.state(minutes(12)) is orders.OrderState.ANSWERED


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (replace(SCAN, kind="melt"), "unknown order `melt`"),
        (replace(SCAN, arguments={"force": "1"}), "scan has no argument force"),
        (replace(SCAN, lifetime=timedelta(days=2)), "the limit is 1 day"),
    ],
)
def test_an_invalid_order_is_refused_with_the_reason(outbox: OrderQueue, invalid: OrderRequest, reason: str) -> None:
    with pytest.raises(ActionRefused, match=reason):
        outbox.issue(invalid, now=NOON, actor="ann")
    assert waiting(outbox) == []


def test_too_many_orders_are_refused_with_both_numbers(outbox: OrderQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(outboxes.MAX_PER_NODE):
        outbox.issue(SCAN, now=NOON, actor="ann")
    with pytest.raises(ActionRefused, match="16 orders are pending for n1, the limit is 16"):
        outbox.issue(SCAN, now=NOON, actor="ann")
    monkeypatch.setattr(outboxes, "MAX_PENDING", 16)
    with pytest.raises(ActionRefused, match="16 orders are pending, the limit is 16"):
        outbox.issue(replace(SCAN, node="n2"), now=NOON, actor="ann")
    outbox.issue(replace(SCAN, node="n2"), now=minutes(11), actor="ann")


def test_listeners_are_notified_of_orders_and_of_the_hubs_stop(outbox: OrderQueue) -> None:
    notified: list[outboxes.Address | None] = []
    outbox.subscribe(notified.append)
    outbox.issue(SCAN, now=NOON, actor="ann")
    outbox.close()
    assert notified == [("main", "n1"), None]


def test_the_newest_orders_come_first_as_they_are_now(outbox: OrderQueue) -> None:
    ids = [outbox.issue(SCAN, now=minutes(n), actor="ann").order.id for n in range(3)]
    waiting(outbox, at=minutes(3))
    latest = outbox.latest_orders(2)
    assert [tracked.order.id for tracked in latest] == [ids[2], ids[1]]
    assert latest[0].fetched_at == minutes(3)


def test_a_journal_without_orders_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE work_order")
    with closing(Journal(path)) as journal:
        OrderQueue(journal, HUB_KEY, now=NOON).issue(SCAN, now=NOON, actor="ann")
        assert journal.verify() is None


def test_a_trim_takes_finished_orders_and_leaves_those_that_wait(outbox: OrderQueue, journal: Journal) -> None:
    done, waits = (outbox.issue(SCAN, now=NOON, actor="ann").order.id for _ in range(2))
    outbox.accept_receipt(done, answer(done), now=NOON)
    journal.trim(minutes(5), now=minutes(5))
    assert (journal.order(done), [kept.order.id for kept in journal.open_orders(minutes(5))]) == (None, [waits])
    assert journal.verify() is None
    journal.trim(minutes(20), now=minutes(20))
    assert journal.order(waits) is None


def test_a_changed_order_row_is_detected(outbox: OrderQueue, journal: Journal) -> None:
    id = outbox.issue(SCAN, now=NOON, actor="ann").order.id
    with closing(sqlite3.connect(journal.path)) as connection:
        connection.execute("UPDATE work_order SET body = replace(body, 'scan', 'spam') WHERE key = ?", (id,))
        connection.commit()
    assert journal.verify() == 1


class FullAtTheEnd(Journal):
    """Everything can be written, and what was written cannot be committed."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            yield
            if self._depth == 1:
                raise StoreError("the journal refused: database or disk is full")


def test_an_order_that_the_journal_refused_cannot_be_fetched(tmp_path: Path) -> None:
    with closing(FullAtTheEnd(tmp_path / "journal.db")) as journal:
        outbox = OrderQueue(journal, HUB_KEY, now=NOON)
        with pytest.raises(StoreError):
            outbox.issue(SCAN, now=NOON, actor="ann")
        assert waiting(outbox) == []


def test_a_clock_set_back_does_not_prolong_an_order(outbox: OrderQueue) -> None:
    reboot = replace(SCAN, kind="reboot", id="INC-1:4-reboot")
    outbox.issue(reboot, now=minutes(60), actor="repair")
    assert waiting(outbox, at=minutes(60)) != []
    assert waiting(outbox, at=minutes(0)) == []
