"""Keys, times and actions of orders to a node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from watchkeeper.kit import wire
from watchkeeper.model import orders
from watchkeeper.model.actions import Action, ActionId, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.remediate.orders import OrderQueue

GPU = "GPU-00000000-0000-0000-0000-000000000000"
RESET = Action(
    ActionId("3-reset_gpu"), ActionKind.RESET_GPU, Place("main", node="n1", gpu=GPU), IncidentId("INC-7"), "A bad row"
)
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
HUB_KEY = b"h" * 32
KEY = orders.node_key(HUB_KEY, "main", "n1")


def minutes(count: float) -> datetime:
    return NOON + timedelta(minutes=count)


def waiting(outbox: OrderQueue, node: str = "n1", at: datetime = NOON) -> list[orders.Order]:
    key = orders.node_key(HUB_KEY, "main", node)
    pending = outbox.pending_orders("main", node, now=at)
    assert all(orders.is_sealed(envelope, key, purpose=orders.SealPurpose.ORDER) for envelope in pending)
    return [wire.loads(orders.Order, envelope.text) for envelope in pending]
