"""The agent's side of work orders: fetches them from the hub, checks them, runs them and sends receipts.

The agent requests orders with a long poll (`GET /api/orders`); nothing can be sent to the agent. `check_order` decides
whether an order may run and is pure; `OrderWorker` runs it once, with a timeout, and records it in `order_ledger`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time as system_time
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from watchkeeper.agent import push
from watchkeeper.agent.orders.order_context import AGENT_UNIT, OrderContext, OrderOutcome
from watchkeeper.agent.orders.order_ledger import MAX_ORDERS, LedgerEntry, OrderLedger
from watchkeeper.agent.orders.order_work import ORDER_FUNCTIONS
from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import backoff, clock, logs, own_metrics, wire
from watchkeeper.model import orders
from watchkeeper.model.actions import Result
from watchkeeper.net import http
from watchkeeper.readers.node import host

log = logging.getLogger(__name__)

# Proxies close an idle connection after a minute or more.
LONG_POLL_SECONDS = 30
RESPONSE_SECONDS = 15.0
RETRY_BACKOFF = backoff.Backoff(1.0, 60.0)
# Retry delay if the hub offers no orders, because it is older or has no key.
UNAVAILABLE_RETRY_SECONDS = 300.0
UNAVAILABLE_STATUSES = frozenset({401, 403, 404, 409})
# A larger difference between the clocks of hub and node is a fault.
CLOCK_SKEW = timedelta(minutes=5)
MAX_BODY_BYTES = 1024 * 1024
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """This agent's cluster and node name, the key that signs its orders, and the kinds that it may run."""

    cluster: str
    name: str
    key: bytes
    allowed_kinds: frozenset[str] = frozenset(orders.HARMLESS)


@dataclass(frozen=True, slots=True)
class OrderRefusal:
    """Why an order is refused; `order_id` None: the order could not be read."""

    order_id: orders.OrderId | None
    kind: str
    reason: str


def open_envelope(envelope: orders.Envelope, key: bytes) -> orders.Order | OrderRefusal:
    try:
        order = wire.loads(orders.Order, envelope.text)
    except WireError as error:
        return OrderRefusal(None, UNKNOWN, f"the order cannot be read: {str(error)[:200]}")
    if not orders.is_sealed(envelope, key, purpose=orders.SealPurpose.ORDER):
        return OrderRefusal(order.id, UNKNOWN, "the signature was not made with this node's key")
    return order


def check_order(order: orders.Order, node: AgentIdentity, ledger: OrderLedger, *, now: datetime) -> OrderRefusal | None:
    kind = order.kind if order.kind in orders.KINDS else UNKNOWN

    def refuse(reason: str) -> OrderRefusal:
        return OrderRefusal(order.id, kind, reason)

    if (order.cluster, order.node) != (node.cluster, node.name):
        this_node = f"this is {node.name} in cluster {node.cluster}"
        return refuse(f"the order is for {order.node} in cluster {order.cluster}, {this_node}")
    if order.kind not in ORDER_FUNCTIONS:
        return refuse(f"this agent does not support `{order.kind[:40]}`; supported: {', '.join(ORDER_FUNCTIONS)}")
    if order.kind not in node.allowed_kinds:
        allowed = ", ".join(sorted(node.allowed_kinds)) or "nothing"
        remedy = f"Allow it with --allow-order {order.kind}"
        return refuse(f"{order.kind} is not allowed on this node; allowed: {allowed}. {remedy}")
    if now > order.expires_at:
        expired_at = f"{order.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        return refuse(f"the order expired at {expired_at}, the time is {now:%Y-%m-%d %H:%M:%S} UTC")
    if order.issued_at > now + CLOCK_SKEW:
        seconds_ahead = (order.issued_at - now).total_seconds()
        return refuse(f"the order was issued {seconds_ahead:.0f} s in the future; compare the clocks")
    since, entries = ledger.content.since, ledger.content.entries
    if since is not None and order.issued_at <= since:
        return refuse(f"orders issued before {since:%Y-%m-%d %H:%M:%S} UTC may have been done already")
    if order.id in entries or any(entry.nonce == order.nonce for entry in entries.values()):
        return refuse("an order with this id or nonce was received before")
    if len(entries) >= MAX_ORDERS:
        return refuse(f"the ledger has {len(entries)} orders, the limit is {MAX_ORDERS}")
    return None


def find_outcome_after_restart(entry: LedgerEntry, boot: str) -> OrderOutcome:
    """The outcome of work during which the agent stopped; only a restart that was ordered counts as done."""
    if entry.kind == "reboot" and entry.boot and boot and entry.boot != boot:
        return OrderOutcome(f"the node rebooted: its boot id was {entry.boot[:8]} and is {boot[:8]}")
    if entry.kind == "reboot" and entry.boot and entry.boot == boot:
        return OrderOutcome("the agent stopped during the reboot, but the node did not reboot", result=Result.FAILED)
    if entry.kind == "restart_service" and entry.service.removesuffix(".service") == AGENT_UNIT:
        return OrderOutcome("this agent was restarted")
    text = "the agent stopped during this order; it is unknown whether the work was done, and it is not repeated"
    return OrderOutcome(text, result=Result.FAILED)


class OrderWorker:
    """Runs one order after the other; `handle` never raises because of an order."""

    def __init__(
        self,
        node: AgentIdentity,
        ledger: OrderLedger,
        context: OrderContext,
        *,
        time: clock.Clock,
        counter: own_metrics.Metric,
    ) -> None:
        self.node = node
        self.ledger = ledger
        self._context = context
        self._boot = host.read_boot_id(context.roots.proc) or ""
        self._time = time
        self._counter = counter

    def resume(self) -> None:
        """Finish orders that a restart interrupted; their work is not repeated, because it may have been done."""
        for id, entry in self.ledger.find_unfinished().items():
            self._finish(id, entry.kind or UNKNOWN, find_outcome_after_restart(entry, self._boot))

    async def handle(self, envelope: orders.Envelope) -> dict[str, orders.Envelope]:
        """Run or refuse an order; returns the receipt to send, by order id."""
        order = open_envelope(envelope, self.node.key)
        if isinstance(order, OrderRefusal):
            return self._refuse(order)
        entry = self.ledger.content.entries.get(order.id)
        if entry is not None and entry.nonce == order.nonce:
            return self._repeat_receipt(order)
        now = self._time.now()
        try:
            self.ledger.remove_expired(now)
            refusal = check_order(order, self.node, self.ledger, now=now)
            if refusal is not None:
                return self._refuse(refusal)
            self.ledger.begin(order, now=now, boot=self._boot)
        except OSError as error:
            reason = f"the order could not be recorded in the ledger: {error.strerror}"
            return self._refuse(OrderRefusal(order.id, order.kind, reason))
        log.info("order started", extra=logs.fields(order=order.id, kind=order.kind))
        return self._finish(order.id, order.kind, await self._run_order(order))

    async def _run_order(self, order: orders.Order) -> OrderOutcome:
        timeout_seconds = orders.KINDS[order.kind].seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                return await ORDER_FUNCTIONS[order.kind](self._context, order.arguments, self._time.now())
        except TimeoutError:
            return OrderOutcome(f"timed out after {timeout_seconds:g} s", result=Result.FAILED)
        except CollectError as error:
            return OrderOutcome(str(error), result=Result.FAILED)
        except Exception as error:  # Deliberately everything: a failed order must not stop the following ones.
            log.exception("order failed", extra=logs.fields(order=order.id, kind=order.kind))
            return OrderOutcome(f"internal error: {type(error).__name__}: {error}"[:500], result=Result.FAILED)

    def _repeat_receipt(self, order: orders.Order) -> dict[str, orders.Envelope]:
        """Answer an order that was run before: with its receipt, or that the hub has confirmed it."""
        receipt = self.ledger.read_receipt(order.id)
        if receipt is not None:
            return {order.id: receipt}
        text = "the order was run and its receipt confirmed before; it is not repeated"
        return {order.id: self._seal(order.id, OrderOutcome(text, result=Result.ALREADY_SO))}

    def _refuse(self, refusal: OrderRefusal) -> dict[str, orders.Envelope]:
        self._counter.add(kind=refusal.kind, result=Result.REFUSED)
        log_fields = logs.fields(order=refusal.order_id, kind=refusal.kind, reason=refusal.reason)
        log.warning("order refused", extra=log_fields)
        if refusal.order_id is None:
            return {}
        return {refusal.order_id: self._seal(refusal.order_id, OrderOutcome(refusal.reason, result=Result.REFUSED))}

    def _finish(self, order_id: str, kind: str, outcome: OrderOutcome) -> dict[str, orders.Envelope]:
        self._counter.add(kind=kind, result=outcome.result)
        log_fields = logs.fields(order=order_id, kind=kind, result=outcome.result, text=outcome.text)
        log.info("order finished", extra=log_fields)
        receipt = self._seal(order_id, outcome)
        try:
            self.ledger.finish(order_id, receipt)
        except OSError as error:
            log.error("order receipt not saved", extra=logs.fields(order=order_id, error=error.strerror))
        return {order_id: receipt}

    def _seal(self, order_id: str, outcome: OrderOutcome) -> orders.Envelope:
        now = self._time.now()
        receipt = orders.Receipt(orders.OrderId(order_id), now, outcome.result, outcome.text, outcome.output)
        return orders.seal(receipt, self.node.key)


class OrdersUnavailable(CollectError):
    """The hub offers no orders to this agent."""


class OrderClient:
    def __init__(self, hub: push.HubEndpoint, node: AgentIdentity) -> None:
        self._url = f"{hub.url.rstrip('/')}/api/orders"
        parameters = urlencode({"cluster": node.cluster, "node": node.name, "wait": LONG_POLL_SECONDS})
        self._fetch_url = f"{self._url}?{parameters}"
        self._headers = hub.headers
        seconds = LONG_POLL_SECONDS + RESPONSE_SECONDS
        self._connection = http.Connection(timeout_seconds=seconds, max_body_bytes=MAX_BODY_BYTES, access=hub.access)

    async def fetch(self) -> list[orders.Envelope]:
        response = await self._connection.send(http.HttpRequest(self._fetch_url, headers=self._headers))
        if response.status != 200:
            kind = OrdersUnavailable if response.status in UNAVAILABLE_STATUSES else CollectError
            raise kind(response.error_summary, where=self._url)
        try:
            return wire.from_plain(list[orders.Envelope], wire.loads(dict, response.body).get("orders"))
        except WireError as error:
            raise CollectError(f"the orders cannot be read: {str(error)[:200]}", where=self._url) from error

    async def send_receipt(self, order_id: str, receipt: orders.Envelope) -> None:
        """Send a receipt until the hub has accepted it or never will; CollectError: retry later."""
        address = f"{self._url}/{quote(order_id, safe='')}/receipt"
        body = wire.dumps(receipt).encode()
        response = await self._connection.send(http.HttpRequest(address, "POST", headers=self._headers, body=body))
        if response.status in (400, 404, 413, 422):
            log.error("order receipt refused", extra=logs.fields(order=order_id, error=response.error_summary))
        elif response.status != 200:
            raise CollectError(response.error_summary, where=address)

    async def close(self) -> None:
        await self._connection.aclose()


async def follow_orders(hub: push.HubEndpoint, worker: OrderWorker, *, time: clock.Clock) -> None:
    """Fetch and run orders forever; retries have a random backoff, so that not all agents retry at once."""
    client, logged_problem, failures = OrderClient(hub, worker.node), "", 0
    worker.resume()
    try:
        while True:
            delay_seconds = 0.0
            try:
                await _deliver(client, worker, worker.ledger.read_receipts())
                started_at = system_time.monotonic()
                for envelope in await client.fetch():
                    await _deliver(client, worker, await worker.handle(envelope))
                logged_problem, failures = "", 0
                # Limit the request rate if the hub answers at once, without an order or always with the same one.
                delay_seconds = max(0.0, RETRY_BACKOFF.first_seconds - (system_time.monotonic() - started_at))
            except CollectError as error:
                failures += 1
                is_unavailable = isinstance(error, OrdersUnavailable)
                delay_seconds = UNAVAILABLE_RETRY_SECONDS if is_unavailable else RETRY_BACKOFF.delay_seconds(failures)
                if str(error) != logged_problem:
                    logged_problem = str(error)
                    log_fields = logs.fields(error=logged_problem, retry_seconds=delay_seconds)
                    log.warning("order fetch failed", extra=log_fields)
                delay_seconds *= random.uniform(0.5, 1.5)
            await time.sleep(delay_seconds)
    finally:
        await client.close()


async def _deliver(client: OrderClient, worker: OrderWorker, receipts: dict[str, orders.Envelope]) -> None:
    for order_id, receipt in receipts.items():
        await client.send_receipt(order_id, receipt)
        worker.ledger.remove_receipt(order_id)
