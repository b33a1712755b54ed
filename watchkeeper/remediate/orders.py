"""Queue signed work orders until their node's agent fetches them, and store their receipts.

A user (through the API) or a repair (through its driver) issues orders with `issue`. The agent polls `pending_orders`
through `web.fleet.orders_api`, without disk access or a thread, and answers with a receipt for `accept_receipt`. An
order that changes a machine can be fetched only while a repair issues it again every few seconds: after a halt, or the
end of the repair, it is not handed out.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from watchkeeper.errors import ActionRefused, WireError
from watchkeeper.kit import logs, wire
from watchkeeper.model import actions, orders
from watchkeeper.store.journal.journal import Journal

log = logging.getLogger(__name__)

# Pending orders: a node works on one at a time, and a fleet has some 10,000 nodes.
MAX_PER_NODE = 16
MAX_PENDING = 20_000
# A repair issues its order again every few seconds; after this time without, the repair or its hub has stopped.
REQUESTED_FOR = timedelta(seconds=30)

Address = tuple[str, str]


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """A work order to issue. The caller sets `id` to make a repeated request idempotent; None creates a new id."""

    cluster: str
    node: str
    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    lifetime: timedelta = orders.DEFAULT_LIFETIME
    id: str | None = None


class OrderQueue:
    """Thread-safe; methods that write wait for the journal.

    Do not issue an order inside a journal transaction that may still fail: the agent could fetch it all the same.
    """

    def __init__(self, journal: Journal, hub_key: bytes, *, now: datetime) -> None:
        self._journal = journal
        self._hub_key = hub_key
        # Held only briefly: a poll on the hub's event loop must not wait until another order is on disk.
        self._lock = threading.RLock()
        self._open: dict[str, orders.TrackedOrder] = {}
        self._by_node: dict[Address, set[str]] = {}
        # When each order was last requested; empty after a restart, until it is requested again.
        self._requested_at: dict[str, datetime] = {}
        self._polled_at: dict[Address, datetime] = {}
        self._listeners: list[Callable[[Address | None], None]] = []
        for tracked in journal.open_orders(now):
            self._track(tracked)

    def subscribe(self, listener: Callable[[Address | None], None]) -> None:
        """Call the listener, from any thread, when a node has a new order; with None when the hub stops."""
        self._listeners.append(listener)

    def take_listeners(self, previous: OrderQueue) -> None:
        self._listeners = previous._listeners

    def close(self) -> None:
        """Release the waiting polls because the hub stops; pending orders stay in the journal."""
        self._notify_listeners(None)

    def issue(self, request: OrderRequest, *, now: datetime, actor: str) -> orders.TrackedOrder:
        """Issue an order, or renew the request for the order with this id; ActionRefused if a limit is exceeded."""
        with self._journal.transaction():
            if request.id is not None and (existing := self.find_order(request.id)) is not None:
                if self._renew_request(existing, now):
                    self._notify_listeners((request.cluster, request.node))
                return existing
            tracked = orders.TrackedOrder(self._build_order(request, now), actor, request.why)
            self._journal.save_order(tracked, at=now, actor=actor, text=f"{request.kind} ordered for {request.node}")
        # Only after it is in the journal, because an agent can fetch it at once.
        with self._lock:
            self._track(tracked)
            self._requested_at[tracked.order.id] = now
        log.info("work order issued", extra=logs.fields(order=tracked.order.id, kind=request.kind, node=request.node))
        self._notify_listeners((request.cluster, request.node))
        return tracked

    def pending_orders(self, cluster: str, node: str, *, now: datetime) -> list[orders.Envelope]:
        """Return the orders that the node has not answered yet, oldest first, signed for it."""
        with self._lock:
            if len(self._polled_at) >= MAX_PENDING:
                self._polled_at.clear()
            self._polled_at[cluster, node] = now
            if (cluster, node) not in self._by_node:
                return []
            self._forget_expired(now)
            tracked_orders = (self._open[id] for id in self._by_node.get((cluster, node), ()))
            pending = [tracked for tracked in tracked_orders if self._is_requested(tracked.order, now)]
            for tracked in pending:
                if tracked.fetched_at is None:
                    self._track(replace(tracked, fetched_at=now))
            key = orders.node_key(self._hub_key, cluster, node)
            pending.sort(key=lambda tracked: (tracked.order.issued_at, tracked.order.id))
            return [orders.seal(tracked.order, key) for tracked in pending]

    def polled_at(self, cluster: str, node: str) -> datetime | None:
        """Return when the agent of a node last asked for orders; None: not since the hub started."""
        with self._lock:
            return self._polled_at.get((cluster, node))

    def accept_receipt(self, id: str, envelope: orders.Envelope, *, now: datetime) -> orders.TrackedOrder | None:
        """Store the receipt of an order; None if the order does not exist. WireError or ActionRefused if it is invalid.

        A receipt needs the signature of the node. Only a refusal is accepted without it, and marked as not proven,
        because an agent with a wrong key cannot sign.
        """
        receipt = wire.loads(orders.Receipt, envelope.text)
        if receipt.order != id:
            raise WireError((f"the receipt is for {receipt.order[:40]}, not for {id[:40]}",))
        with self._journal.transaction():
            tracked = self.find_order(id)
            if tracked is None or tracked.receipt is not None:
                return tracked
            order = tracked.order
            key = orders.node_key(self._hub_key, order.cluster, order.node)
            is_proven = orders.is_sealed(envelope, key, purpose=orders.SealPurpose.RECEIPT)
            if not is_proven and receipt.result is not actions.Result.REFUSED:
                raise ActionRefused(f"the receipt of {id} has no valid signature of {order.node}")
            completed = replace(tracked, receipt=receipt, is_proven=is_proven)
            text = f"{order.kind} on {order.node}: {receipt.result}. {receipt.text}"
            self._journal.save_order(completed, at=now, actor=order.node, text=text)
        self._drop(id)
        return completed

    def find_order(self, id: str) -> orders.TrackedOrder | None:
        with self._lock:
            open_order = self._open.get(id)
        return open_order or self._journal.order(id)

    def latest_orders(self, limit: int = 100) -> Sequence[orders.TrackedOrder]:
        return [self.find_order(tracked.order.id) or tracked for tracked in self._journal.latest_orders(limit=limit)]

    def _is_requested(self, order: orders.Order, now: datetime) -> bool:
        if order.kind in orders.HARMLESS:
            return True
        requested_at = self._requested_at.get(order.id)
        # In both directions: a clock that was set back must not extend it.
        return requested_at is not None and abs(now - requested_at) <= REQUESTED_FOR

    def _renew_request(self, tracked: orders.TrackedOrder, now: datetime) -> bool:
        """Renew the request for an open order; True if it could not be fetched before."""
        with self._lock:
            order = tracked.order
            if order.id not in self._open:
                return False
            was_requested = self._is_requested(order, now)
            self._requested_at[order.id] = now
            return not was_requested

    def _notify_listeners(self, address: Address | None) -> None:
        for listener in self._listeners:
            listener(address)

    def _build_order(self, request: OrderRequest, now: datetime) -> orders.Order:
        order_kind = orders.KINDS.get(request.kind)
        if order_kind is None:
            raise ActionRefused(f"unknown order `{request.kind[:40]}`; use one of {', '.join(orders.KINDS)}")
        if unknown := set(request.arguments) - order_kind.arguments:
            raise ActionRefused(f"{request.kind} has no argument {', '.join(sorted(unknown))[:80]}")
        with self._lock:
            self._forget_expired(now)
            node_count, total = len(self._by_node.get((request.cluster, request.node), ())), len(self._open)
        if node_count >= MAX_PER_NODE:
            raise ActionRefused(f"{node_count} orders are pending for {request.node}, the limit is {MAX_PER_NODE}")
        if total >= MAX_PENDING:
            raise ActionRefused(f"{total} orders are pending, the limit is {MAX_PENDING}")
        try:
            return orders.Order(
                orders.OrderId(request.id or f"WO-{secrets.token_hex(8)}"),
                request.cluster,
                request.node,
                request.kind,
                issued_at=now,
                expires_at=now + request.lifetime,
                nonce=secrets.token_hex(16),
                arguments=request.arguments,
            )
        except ValueError as error:
            raise ActionRefused(f"{request.kind}: {error}") from error

    def _track(self, tracked: orders.TrackedOrder) -> None:
        order = tracked.order
        with self._lock:
            self._open[order.id] = tracked
            self._by_node.setdefault((order.cluster, order.node), set()).add(order.id)

    def _drop(self, id: str) -> None:
        with self._lock:
            tracked = self._open.pop(id, None)
            self._requested_at.pop(id, None)
            if tracked is None:
                return
            address = (tracked.order.cluster, tracked.order.node)
            self._by_node[address].discard(id)
            if not self._by_node[address]:
                del self._by_node[address]

    def _forget_expired(self, now: datetime) -> None:
        for id in [id for id, tracked in self._open.items() if now > tracked.order.expires_at]:
            fields = logs.fields(order=id, node=self._open[id].order.node)
            log.warning("work order expired without receipt", extra=fields)
            self._drop(id)
