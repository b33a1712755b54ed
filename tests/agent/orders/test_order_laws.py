"""Properties of work orders when hub and agent crash at any moment: run at most once, and answered in the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.support.manual_clock import ManualClock
from watchkeeper.agent import profiling
from watchkeeper.agent.orders import order_ledger, order_work, orders
from watchkeeper.kit.own_metrics import Metric
from watchkeeper.model.orders import OrderState, node_key
from watchkeeper.remediate.orders import OrderQueue, OrderRequest
from watchkeeper.store.journal.journal import Journal

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HUB_KEY = b"h" * 32
NODE = orders.AgentIdentity("main", "n1", node_key(HUB_KEY, "main", "n1"))
STEPS = ("give", "work", "work and lose the receipts", "die at work", "agent restarts", "hub restarts")


class Killed(BaseException):
    """The agent's process ends here."""


class World:
    """One hub and one agent over one directory; either can be started anew on what it left."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock, self.done = root, ManualClock(NOON), Counter[str]()
        self.dies = False
        self.journal = Journal(root / "journal.db")
        self.given: list[str] = []
        self.start_hub()
        self.start_agent()

    def start_hub(self) -> None:
        self.journal.close()
        self.journal = Journal(self.root / "journal.db")
        self.outbox = OrderQueue(self.journal, HUB_KEY, now=NOON)

    def start_agent(self) -> None:
        ledger = order_ledger.OrderLedger(self.root / "orders", now=NOON)
        bench = order_work.OrderContext(profiling.PauseFile(self.root))
        self.worker = orders.OrderWorker(NODE, ledger, bench, time=self.clock, counter=Metric("orders", "counter", ""))
        self.worker.resume()

    async def scan(
        self, bench: order_work.OrderContext, arguments: Mapping[str, str], now: datetime
    ) -> order_work.OrderOutcome:
        (id,) = self.worker.ledger.find_unfinished()
        self.done[id] += 1
        if self.dies:
            raise Killed
        return order_work.OrderOutcome("done")

    def work(self, *, is_lost: bool = False) -> None:
        receipts = self.worker.ledger.read_receipts()
        for envelope in self.outbox.pending_orders("main", "n1", now=NOON):
            receipts |= asyncio.run(self.worker.handle(envelope))
        for id, receipt in ({} if is_lost else receipts).items():
            self.outbox.accept_receipt(id, receipt, now=NOON)
            self.worker.ledger.remove_receipt(id)

    def step(self, name: str) -> None:
        if name == "give" and len(self.given) < 8:
            request = OrderRequest("main", "n1", "scan", lifetime=timedelta(hours=1))
            self.given.append(self.outbox.issue(request, now=NOON, actor="law").order.id)
        elif name == "hub restarts":
            self.start_hub()
        elif name == "agent restarts":
            self.start_agent()
        elif name == "die at work":
            self.dies = True
            with suppress(Killed):
                self.work()
            self.dies = False
            self.start_agent()
        elif name.startswith("work"):
            self.work(is_lost="lose" in name)


@given(st.lists(st.sampled_from(STEPS), max_size=25))
@examples(40)
def test_no_order_is_run_twice_and_each_is_answered(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        world = World(Path(folder))
        patch.setitem(orders.ORDER_FUNCTIONS, "scan", world.scan)  # type: ignore[arg-type]
        for name in steps:
            world.step(name)
        world.work()
        tracked = [world.outbox.find_order(id) for id in world.given]
        assert all(order is not None and order.state(NOON) is OrderState.ANSWERED for order in tracked)
        assert all(count == 1 for count in world.done.values())
        assert world.done.keys() == set(world.given)
        assert world.journal.verify() is None
        world.journal.close()
