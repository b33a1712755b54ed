"""The agent's side of work orders: fetch them from the hub, judge them, do them, answer with a receipt.

The agent asks (`GET /api/orders`, which the hub answers when there is something); nobody can ask the agent. `judge`
decides whether an order may be done and is pure; `Desk` does it, once, within a deadline, and remembers that in
`order_ledger`. `follow_orders` runs for ever beside the other loops of the agent and touches none of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time as system_time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from watchkeeper.agent import push
from watchkeeper.agent.orders.order_context import OWN_UNIT, OrderContext, OrderOutcome
from watchkeeper.agent.orders.order_ledger import MAX_ORDERS, OrderLedger
from watchkeeper.agent.orders.order_ledger import LedgerEntry as Begun
from watchkeeper.agent.orders.order_work import WORK
from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import backoff, clock, logs, own_metrics, wire
from watchkeeper.model import orders
from watchkeeper.model.actions import Result
from watchkeeper.net import http
from watchkeeper.readers.node import host

log = logging.getLogger(__name__)

# Proxies cut a silent connection after a minute or more.
WAIT_SECONDS = 30
ANSWER_SECONDS = 15.0
PAUSES = backoff.Backoff(1.0, 60.0)
# A hub that gives no orders, because it is older or has no key, is asked again now and then.
NO_ORDERS_PAUSE_SECONDS = 300.0
NO_ORDERS = frozenset({401, 403, 404, 409})
# Clocks of a hub and a node that are further apart than this are themselves a fault.
CLOCK_SKEW = timedelta(minutes=5)
MAX_BODY_BYTES = 1024 * 1024
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Who we are, what proves an order to be meant for us, and which kinds we do."""

    cluster: str
    name: str
    key: bytes
    allowed: frozenset[str] = frozenset(orders.HARMLESS)


@dataclass(frozen=True, slots=True)
class OrderRefusal:
    """Why an order is not done. `order` None: not even its id could be read."""

    order: orders.OrderId | None
    kind: str
    why: str


def open_envelope(envelope: orders.Envelope, key: bytes) -> orders.Order | OrderRefusal:
    """The order in a sealed envelope; what is not sealed for us is read only to learn its id for the refusal."""
    try:
        order = wire.loads(orders.Order, envelope.text)
    except WireError as error:
        return OrderRefusal(None, UNKNOWN, f"it cannot be read: {str(error)[:200]}")
    if not orders.is_sealed(envelope, key, purpose=orders.SealPurpose.ORDER):
        return OrderRefusal(order.id, UNKNOWN, "its seal is not the one that this node's key makes")
    return order


def check_order(order: orders.Order, node: AgentIdentity, ledger: OrderLedger, *, now: datetime) -> OrderRefusal | None:
    """Why an order with the right seal is not done, or None if it may be."""
    kind = order.kind if order.kind in orders.KINDS else UNKNOWN

    def no(why: str) -> OrderRefusal:
        return OrderRefusal(order.id, kind, why)

    if (order.cluster, order.node) != (node.cluster, node.name):
        return no(f"it is for {order.node} of {order.cluster}, this is {node.name} of {node.cluster}")
    if order.kind not in WORK:
        return no(f"this agent does not know `{order.kind[:40]}`; known: {', '.join(WORK)}")
    if order.kind not in node.allowed:
        allowed = ", ".join(sorted(node.allowed)) or "nothing"
        return no(f"{order.kind} is not allowed here; allowed: {allowed}. Start the agent with --allow-order")
    if now > order.expires_at:
        return no(f"it expired at {order.expires_at:%Y-%m-%d %H:%M:%S} UTC, it is {now:%Y-%m-%d %H:%M:%S} UTC")
    if order.issued_at > now + CLOCK_SKEW:
        return no(f"it was issued {(order.issued_at - now).total_seconds():.0f} s in the future; compare the clocks")
    if ledger.since is not None and order.issued_at <= ledger.since:
        return no(f"what was ordered before {ledger.since:%Y-%m-%d %H:%M:%S} UTC may have been done already")
    if ledger.entry(order.id) is not None or ledger.has_nonce(order.nonce):
        return no("an order with this id or this nonce was taken before: it is a repetition")
    if ledger.count >= MAX_ORDERS:
        return no(f"{ledger.count} orders are remembered, the limit is {MAX_ORDERS}")
    return None


def after_restart(begun: Begun, boot: str) -> OrderOutcome:
    """What became of work during which the agent ended; only a restart that was the work itself proves anything."""
    if begun.kind == "reboot" and begun.boot and boot and begun.boot != boot:
        return OrderOutcome(f"the machine has restarted: its boot id was {begun.boot[:8]} and is {boot[:8]}")
    if begun.kind == "reboot" and begun.boot and begun.boot == boot:
        return OrderOutcome(
            "the agent ended while the machine was to restart, and the machine did not", result=Result.FAILED
        )
    if begun.kind == "restart_service" and begun.about.removesuffix(".service") == OWN_UNIT:
        return OrderOutcome("this agent was restarted")
    text = "the agent ended while it worked on this; whether it was done is not known, and it is not done again"
    return OrderOutcome(text, result=Result.FAILED)


class OrderWorker:
    """Takes one order after the other. `take` never raises for what is wrong with an order."""

    def __init__(
        self,
        node: AgentIdentity,
        ledger: OrderLedger,
        bench: OrderContext,
        *,
        time: clock.Clock,
        count: own_metrics.Metric,
    ) -> None:
        self.node = node
        self.ledger = ledger
        self._bench = bench
        self._boot = host.boot_id(bench.roots.proc) or ""
        self._time = time
        self._count = count

    def resume(self) -> None:
        """After a restart: work that was cut off is not begun again, because nobody knows how far it came."""
        for id, begun in self.ledger.unfinished().items():
            self._finish(id, begun.kind or UNKNOWN, after_restart(begun, self._boot))

    async def handle(self, envelope: orders.Envelope) -> dict[str, orders.Envelope]:
        """Do an order, or do not; the receipt to send, by the order's id."""
        order = open_envelope(envelope, self.node.key)
        if isinstance(order, OrderRefusal):
            return self._refuse(order)
        known = self.ledger.entry(order.id)
        if known is not None and known.nonce == order.nonce:
            return self._again(order)
        now = self._time.now()
        try:
            self.ledger.forget_old(now)
            refusal = check_order(order, self.node, self.ledger, now=now)
            if refusal is not None:
                return self._refuse(refusal)
            self.ledger.begin(order, now=now, boot=self._boot)
        except OSError as error:
            why = f"it could not be written down first: {error.strerror}"
            return self._refuse(OrderRefusal(order.id, order.kind, why))
        log.info("Order begun", extra=logs.fields(order=order.id, kind=order.kind))
        return self._finish(order.id, order.kind, await self._work(order))

    async def _work(self, order: orders.Order) -> OrderOutcome:
        limit = orders.KINDS[order.kind].seconds
        try:
            async with asyncio.timeout(limit):
                return await WORK[order.kind](self._bench, order.arguments, self._time.now())
        except TimeoutError:
            return OrderOutcome(f"it did not end within {limit:g} s and was given up", result=Result.FAILED)
        except CollectError as error:
            return OrderOutcome(str(error), result=Result.FAILED)
        except Exception as error:  # Deliberately everything: work that breaks must not cost the agent its orders.
            log.exception("The work on an order broke")
            return OrderOutcome(f"it broke: {type(error).__name__}: {error}"[:500], result=Result.FAILED)

    def _again(self, order: orders.Order) -> dict[str, orders.Envelope]:
        """The hub asks for what was done already: it gets the receipt that it missed, or hears that it had it."""
        kept = self.ledger.receipt(order.id)
        if kept is not None:
            return {order.id: kept}
        text = "this was done and answered before; it is not done again"
        return {order.id: self._seal(order.id, OrderOutcome(text, result=Result.ALREADY_SO))}

    def _refuse(self, refusal: OrderRefusal) -> dict[str, orders.Envelope]:
        self._count.add(kind=refusal.kind, result=Result.REFUSED)
        where = {"order": refusal.order, "kind": refusal.kind, "why": refusal.why}
        log.warning("Order refused", extra=logs.fields(**where))
        if refusal.order is None:
            return {}
        return {refusal.order: self._seal(refusal.order, OrderOutcome(refusal.why, result=Result.REFUSED))}

    def _finish(self, id: str, kind: str, done: OrderOutcome) -> dict[str, orders.Envelope]:
        self._count.add(kind=kind, result=done.result)
        log.info("Order ended", extra=logs.fields(order=id, kind=kind, result=done.result, text=done.text))
        receipt = self._seal(id, done)
        try:
            self.ledger.finish(id, receipt)
        except OSError as error:
            log.error("A receipt is not kept", extra=logs.fields(order=id, error=error.strerror))
        return {id: receipt}

    def _seal(self, id: str, done: OrderOutcome) -> orders.Envelope:
        receipt = orders.Receipt(orders.OrderId(id), self._time.now(), done.result, done.text, done.output)
        return orders.seal(receipt, self.node.key)


class OrdersUnavailable(CollectError):
    """The hub gives this agent no orders at all."""


class OrderClient:
    """The way to the hub and back."""

    def __init__(self, hub: push.HubEndpoint, node: AgentIdentity) -> None:
        self._url = f"{hub.url.rstrip('/')}/api/orders"
        self._asked = f"{self._url}?{urlencode({'cluster': node.cluster, 'node': node.name, 'wait': WAIT_SECONDS})}"
        self._headers = hub.headers
        seconds = WAIT_SECONDS + ANSWER_SECONDS
        self._connection = http.Connection(timeout_seconds=seconds, max_body_bytes=MAX_BODY_BYTES, access=hub.access)

    async def fetch(self) -> list[orders.Envelope]:
        response = await self._connection.send(http.HttpRequest(self._asked, headers=self._headers))
        if response.status != 200:
            kind = OrdersUnavailable if response.status in NO_ORDERS else CollectError
            raise kind(response.error_summary, where=self._url)
        try:
            plain = wire.loads(dict, response.body)
            return wire.from_plain(list[orders.Envelope], plain.get("orders"))
        except WireError as error:
            raise CollectError(f"the orders cannot be read: {str(error)[:200]}", where=self._url) from error

    async def answer(self, id: str, receipt: orders.Envelope) -> bool:
        """True when the hub has it; False when it will never take it. CollectError: later."""
        address = f"{self._url}/{quote(id, safe='')}/receipt"
        body = wire.dumps(receipt).encode()
        response = await self._connection.send(http.HttpRequest(address, "POST", headers=self._headers, body=body))
        if response.status == 200:
            return True
        if response.status in (400, 404, 413, 422):
            log.error("The hub refuses a receipt", extra=logs.fields(order=id, error=response.error_summary))
            return False
        raise CollectError(response.error_summary, where=address)

    async def close(self) -> None:
        await self._connection.aclose()


async def follow_orders(hub: push.HubEndpoint, worker: OrderWorker, *, time: clock.Clock) -> None:
    """Fetch and do orders for ever. A hub that is away is asked again after growing pauses, not all agents at once."""
    line, said, failures = OrderClient(hub, worker.node), "", 0
    worker.resume()
    try:
        while True:
            wait = 0.0
            try:
                await _deliver(line, worker, worker.ledger.receipts())
                asked_at = system_time.monotonic()
                await _answer_all(line, worker, await line.fetch())
                said, failures = "", 0
                # A hub that answers at once, without an order or always with the same, must not be asked without end.
                wait = max(0.0, PAUSES.first_seconds - (system_time.monotonic() - asked_at))
            except CollectError as error:
                failures += 1
                wait = (
                    NO_ORDERS_PAUSE_SECONDS if isinstance(error, OrdersUnavailable) else PAUSES.delay_seconds(failures)
                )
                if str(error) != said:
                    said = str(error)
                    log.warning("No orders are fetched", extra=logs.fields(error=said, retry_seconds=wait))
                wait *= random.uniform(0.5, 1.5)
            await time.sleep(wait)
    finally:
        await line.close()


async def _answer_all(line: OrderClient, desk: OrderWorker, envelopes: Collection[orders.Envelope]) -> None:
    for envelope in envelopes:
        await _deliver(line, desk, await desk.handle(envelope))


async def _deliver(line: OrderClient, desk: OrderWorker, receipts: dict[str, orders.Envelope]) -> None:
    for id, receipt in receipts.items():
        await line.answer(id, receipt)
        desk.ledger.delivered(id)
