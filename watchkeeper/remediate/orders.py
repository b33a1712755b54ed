"""The outbox: work orders that wait for their node's agent, and what came of them.

`give` is called by whoever wants work done on a node: a person through the API, a repair through its driver. What
changes a machine is handed out only while it is still asked for: a repair that was stopped or is over gives nothing
again, and its order is fetched by nobody from then on. The agent asks `waiting` through `web.fleet.orders_api` until
it has answered with a receipt, which `take` checks and keeps. What is kept is kept in the journal, so a hub that
restarts goes on where it was. Asking costs neither disk nor thread.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from watchkeeper.errors import ActionRefused, WireError
from watchkeeper.kit import logs, secret_file, wire
from watchkeeper.model import actions, orders

log = logging.getLogger(__name__)

# Orders that wait at the same time: a node works on one after the other, and a fleet has some 10,000 nodes.
MOST_PER_NODE = 16
MOST_WAITING = 20_000
# A repair asks every few seconds; one that has not asked for this long has been stopped, or its hub has.
REQUESTED_FOR = timedelta(seconds=30)

Address = tuple[str, str]


class OrderJournal(Protocol):
    """What the outbox needs of a journal."""

    def transaction(self) -> AbstractContextManager[None]: ...

    def save_order(self, tracked: orders.TrackedOrder, *, at: datetime, actor: str, text: str) -> None: ...

    def order(self, id: str) -> orders.TrackedOrder | None: ...

    def latest_orders(self, *, limit: int = 100) -> list[orders.TrackedOrder]: ...

    def open_orders(self, now: datetime) -> list[orders.TrackedOrder]: ...


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """Work for one node. `id` is the caller's, where asking twice must mean once; None draws one."""

    cluster: str
    node: str
    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    life: timedelta = orders.USUAL_LIFE
    id: str | None = None


def open_order_queue(shelf: OrderJournal, key_file: str | None, *, now: datetime) -> OrderQueue | None:
    """The outbox of a hub that was given a key; None without one: then no order can be given or fetched."""
    return None if key_file is None else OrderQueue(shelf, secret_file.read_key_file(Path(key_file)), now=now)


class OrderQueue:
    """Every method may be called from any thread; those that write wait for the journal.

    Not to be called inside a transaction of the journal that may still fail: the order would be fetched all the same.
    """

    def __init__(self, shelf: OrderJournal, hub_key: bytes, *, now: datetime) -> None:
        self._shelf = shelf
        self._hub_key = hub_key
        # Writers take turns at the journal. This lock is held for moments only: a poll on the hub's event loop must not
        # wait until somebody else's order is on the disk.
        self._lock = threading.RLock()
        self._open: dict[str, orders.TrackedOrder] = {}
        self._by_node: dict[Address, set[str]] = {}
        # When an order was last asked for; nothing after a restart, until somebody asks again.
        self._wanted_at: dict[str, datetime] = {}
        self._listeners: list[Callable[[Address | None], None]] = []
        for tracked in shelf.open_orders(now):
            self._keep(tracked)

    def subscribe(self, listener: Callable[[Address | None], None]) -> None:
        """Call this, from any thread, whenever there is something for a node; with None when the hub stops."""
        self._listeners.append(listener)

    def take_listeners(self, earlier: OrderQueue) -> None:
        """Tell those who listened to an earlier outbox of this hub from now on."""
        self._listeners = earlier._listeners

    def end(self) -> None:
        """The hub stops: nobody need wait any longer. What waits stays in the journal."""
        self._tell(None)

    def issue(self, wanted: OrderRequest, *, now: datetime, actor: str) -> orders.TrackedOrder:
        """Keep an order until its node's agent fetches it; ActionRefused says which bound it would break.

        Given again under its id, an order is the one it was, and is wanted for a while longer.
        """
        with self._shelf.transaction():
            if wanted.id is not None and (known := self.find_order(wanted.id)) is not None:
                if self._is_wanted_again(known, now):
                    self._tell((wanted.cluster, wanted.node))
                return known
            tracked = orders.TrackedOrder(self._order(wanted, now), actor, wanted.why)
            text = f"{wanted.kind} ordered for {wanted.node}"
            self._shelf.save_order(tracked, at=now, actor=actor, text=text)
        # Not before the journal has it: it could be fetched.
        with self._lock:
            self._keep(tracked)
            self._wanted_at[tracked.order.id] = now
        log.info("Work ordered", extra=logs.fields(order=tracked.order.id, kind=wanted.kind, node=wanted.node))
        self._tell((wanted.cluster, wanted.node))
        return tracked

    def waiting(self, cluster: str, node: str, *, now: datetime) -> list[orders.Envelope]:
        """What this node has not answered yet, oldest first, sealed for it."""
        with self._lock:
            if (cluster, node) not in self._by_node:
                return []
            self._forget_expired(now)
            known = (self._open[id] for id in self._by_node.get((cluster, node), ()))
            own = [tracked for tracked in known if self._is_wanted(tracked.order, now)]
            for tracked in own:
                if tracked.fetched_at is None:
                    self._keep(replace(tracked, fetched_at=now))
            key = orders.node_key(self._hub_key, cluster, node)
            own.sort(key=lambda tracked: (tracked.order.issued_at, tracked.order.id))
            return [orders.seal(tracked.order, key) for tracked in own]

    def accept_receipt(self, id: str, envelope: orders.Envelope, *, now: datetime) -> orders.TrackedOrder | None:
        """Keep the receipt of an order; None if there is no such order. WireError or ActionRefused if it cannot be one.

        Only the node's own seal proves that something was done. A refusal is believed without it, because an agent
        with a wrong key has no other way to say so; it is marked as unproven.
        """
        receipt = wire.loads(orders.Receipt, envelope.text)
        if receipt.order != id:
            raise WireError((f"the receipt is about {receipt.order[:40]}, not about {id[:40]}",))
        with self._shelf.transaction():
            tracked = self.find_order(id)
            if tracked is None or tracked.receipt is not None:
                return tracked
            order = tracked.order
            key = orders.node_key(self._hub_key, order.cluster, order.node)
            is_proven = orders.is_sealed(envelope, key, purpose=orders.SealPurpose.RECEIPT)
            if not is_proven and receipt.result is not actions.Result.REFUSED:
                raise ActionRefused(f"the receipt of {id} does not carry the seal of {order.node}")
            answered = replace(tracked, receipt=receipt, is_proven=is_proven)
            text = f"{order.kind} on {order.node}: {receipt.result}. {receipt.text}"
            self._shelf.save_order(answered, at=now, actor=order.node, text=text)
        self._drop(id)
        return answered

    def find_order(self, id: str) -> orders.TrackedOrder | None:
        with self._lock:
            found = self._open.get(id)
        return found or self._shelf.order(id)

    def latest_orders(self, limit: int = 100) -> Sequence[orders.TrackedOrder]:
        """Newest first; those that wait as they are now, not as they were written."""
        return [self.find_order(tracked.order.id) or tracked for tracked in self._shelf.latest_orders(limit=limit)]

    def _is_wanted(self, order: orders.Order, now: datetime) -> bool:
        if order.kind in orders.HARMLESS:
            return True
        asked = self._wanted_at.get(order.id)
        # Both ways: a clock that was put back must not prolong it.
        return asked is not None and abs(now - asked) <= REQUESTED_FOR

    def _is_wanted_again(self, tracked: orders.TrackedOrder, now: datetime) -> bool:
        """Renew it; True if nobody could have fetched it before."""
        with self._lock:
            order = tracked.order
            if order.id not in self._open:
                return False
            was_wanted = self._is_wanted(order, now)
            self._wanted_at[order.id] = now
            return not was_wanted

    def _tell(self, address: Address | None) -> None:
        for listener in self._listeners:
            listener(address)

    def _order(self, wanted: OrderRequest, now: datetime) -> orders.Order:
        known = orders.KINDS.get(wanted.kind)
        if known is None:
            raise ActionRefused(f"there is no order `{wanted.kind[:40]}`; known: {', '.join(orders.KINDS)}")
        if strange := set(wanted.arguments) - known.arguments:
            raise ActionRefused(f"{wanted.kind} has no argument {', '.join(sorted(strange))[:80]}")
        with self._lock:
            self._forget_expired(now)
            own, total = len(self._by_node.get((wanted.cluster, wanted.node), ())), len(self._open)
        if own >= MOST_PER_NODE:
            raise ActionRefused(f"{own} orders wait for {wanted.node}, the limit is {MOST_PER_NODE}")
        if total >= MOST_WAITING:
            raise ActionRefused(f"{total} orders wait, the limit is {MOST_WAITING}")
        try:
            return orders.Order(
                orders.OrderId(wanted.id or f"WO-{secrets.token_hex(8)}"),
                wanted.cluster,
                wanted.node,
                wanted.kind,
                issued_at=now,
                expires_at=now + wanted.life,
                nonce=secrets.token_hex(16),
                arguments=wanted.arguments,
            )
        except ValueError as error:
            raise ActionRefused(f"{wanted.kind}: {error}") from error

    def _keep(self, tracked: orders.TrackedOrder) -> None:
        order = tracked.order
        with self._lock:
            self._open[order.id] = tracked
            self._by_node.setdefault((order.cluster, order.node), set()).add(order.id)

    def _drop(self, id: str) -> None:
        with self._lock:
            tracked = self._open.pop(id, None)
            self._wanted_at.pop(id, None)
            if tracked is None:
                return
            address = (tracked.order.cluster, tracked.order.node)
            self._by_node[address].discard(id)
            if not self._by_node[address]:
                del self._by_node[address]

    def _forget_expired(self, now: datetime) -> None:
        for id in [id for id, tracked in self._open.items() if now > tracked.order.expires_at]:
            log.warning("An order expired unanswered", extra=logs.fields(order=id, node=self._open[id].order.node))
            self._drop(id)
