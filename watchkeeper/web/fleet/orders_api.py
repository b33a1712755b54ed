"""Work orders over HTTP: agents fetch orders by long poll and send receipts; operators issue harmless orders.

A waiting poll is one future and one timer. It uses no thread and no disk, so thousands of agents can wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import ActionRefused, WireError
from watchkeeper.hub import services
from watchkeeper.kit import wire
from watchkeeper.model import orders
from watchkeeper.remediate.orders import Address, OrderQueue, OrderRequest
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import QueryParam, check_node, get, ok_response, post, read_number, read_record
from watchkeeper.web.shedding import ConcurrencyLimit

MAX_WAIT_SECONDS = 60
# One poll for each node of a large fleet.
MAX_POLLS = 20_000
# Receipts that wait for their commit at the same time; above it, agents keep theirs and retry.
MAX_RECEIPTS = 64
RETRY_AFTER_SECONDS = 2
MAX_ORDER_BYTES = 64 * 1024
# Output is escaped twice, because a receipt is JSON in JSON: one quote becomes `\\\"`.
MAX_RECEIPT_BYTES = 4 * orders.MAX_OUTPUT_BYTES
MAX_LISTED = 1000


class OrderEnvelopes(TypedDict):
    orders: list[orders.Envelope]


class OrderList(TypedDict):
    orders: list[shapes.OrderStatus]


@dataclass(frozen=True, slots=True)
class NewOrderBody:
    """A new order; `cluster` defaults to the hub's own, `seconds` is how long the order is valid."""

    node: str
    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    cluster: str | None = None
    seconds: float = orders.DEFAULT_LIFETIME.total_seconds()
    why: str = ""


class OrderPolls:
    """Agents that wait for orders: at most one poll per node."""

    def __init__(self, queue: OrderQueue) -> None:
        self._waiting: dict[Address, asyncio.Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False
        queue.subscribe(self._wake_from_thread)

    @property
    def count(self) -> int:
        return len(self._waiting)

    async def wait(self, address: Address, seconds: float) -> None:
        """Wait until there is an order for this node, the time is over, or the node polls again."""
        self._loop = asyncio.get_running_loop()
        self._wake(address)
        if self._is_stopped:
            return
        future = self._waiting[address] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            if self._waiting.get(address) is future:
                del self._waiting[address]

    def _wake_from_thread(self, address: Address | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, address)

    def _wake(self, address: Address | None) -> None:
        """Wake the poll of one node; None wakes all, because the hub stops."""
        self._is_stopped |= address is None
        for waiting_address in [*self._waiting] if address is None else [address]:
            future = self._waiting.pop(waiting_address, None)
            if future is not None:
                _finish(future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class OrdersApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._journal, self._orders = hub.runtime, hub.journal, hub.orders
        self.polls = None if (queue := hub.orders()) is None else OrderPolls(queue)
        problem = f"{{count}} receipts wait for their commit, the limit is {MAX_RECEIPTS}. Try again later"
        self._receipts = ConcurrencyLimit(MAX_RECEIPTS, problem, retry_after_seconds=RETRY_AFTER_SECONDS)
        self._polls_gauge = hub.runtime.metrics.gauge("watchkeeper_web_order_polls", "Agents that wait for work orders")

    @property
    def _queue(self) -> OrderQueue:
        queue = self._orders()
        if queue is None:
            raise HTTPException(409, "work orders are disabled: set `order_key_file` in [hub]")
        return queue

    @get(
        "/api/orders",
        QueryParam("node", "Name of the node.", is_required=True),
        QueryParam("cluster", "Cluster of the node. Default: the hub's own cluster."),
        QueryParam("wait", f"Wait this many seconds for an order, 0 to {MAX_WAIT_SECONDS}. Default: 0.", int),
        role=Role.AGENT,
    )
    async def fetch_orders(self, request: Request) -> OrderEnvelopes:
        """Fetch the pending work orders of a node, or wait for one."""
        queue, polls = self._queue, self.polls
        assert polls is not None
        node = request.query_params.get("node", "")
        if not node:
            raise HTTPException(400, "`node` is required: /api/orders?node=NAME")
        check_node(request.state.caller, node)
        address = (request.query_params.get("cluster") or self._runtime.settings.fleet.cluster, node)
        seconds = read_number(request, "wait", default=0, least=0, limit=MAX_WAIT_SECONDS)
        envelopes = queue.pending_orders(*address, now=self._runtime.clock.now())
        if not envelopes and seconds:
            if polls.count >= MAX_POLLS:
                problem = f"{polls.count} agents wait for orders, the limit is {MAX_POLLS}. Try again later"
                raise HTTPException(429, problem, {"Retry-After": str(RETRY_AFTER_SECONDS)})
            self._polls_gauge.set(polls.count + 1)
            try:
                await polls.wait(address, seconds)
            finally:
                self._polls_gauge.set(polls.count)
            envelopes = queue.pending_orders(*address, now=self._runtime.clock.now())
        return OrderEnvelopes(orders=envelopes)

    @post("/api/orders", body=NewOrderBody, response=shapes.OrderStatus)
    async def issue_order(self, request: Request) -> Response:
        """Issue a harmless work order to the agent of a node."""
        # Orders that change a node come only from a plan, after its guards allowed it.
        queue = self._queue
        body = await read_record(request, NewOrderBody, MAX_ORDER_BYTES)
        kind = orders.KINDS.get(body.kind)
        if kind is not None and not kind.is_harmless:
            raise HTTPException(400, f"{body.kind} changes the node: only a repair plan may issue it")
        order_request = OrderRequest(
            body.cluster or self._runtime.settings.fleet.cluster,
            body.node,
            body.kind,
            body.arguments,
            body.why,
            timedelta(seconds=min(max(body.seconds, 0.0), 2 * orders.MAX_LIFETIME.total_seconds())),
        )
        now, actor = self._runtime.clock.now(), request.state.caller.name
        try:
            tracked = await asyncio.to_thread(queue.issue, order_request, now=now, actor=actor)
        except ActionRefused as error:
            raise HTTPException(400, str(error)) from error
        return ok_response(**self._to_plain(tracked))

    @get("/api/orders/recent", shapes.limit_param(100, MAX_LISTED), response=OrderList)
    async def list_recent(self, request: Request) -> Response:
        """List the newest work orders with their receipts."""
        limit = read_number(request, "limit", default=100, limit=MAX_LISTED)
        newest = await self._journal.read(lambda: self._queue.latest_orders(limit))
        return ok_response(orders=[self._to_plain(tracked) for tracked in newest])

    def _to_plain(self, tracked: orders.TrackedOrder) -> dict[str, Any]:
        """An order with its state and without the nonce, which only the agent needs."""
        plain = wire.to_plain(tracked)
        del plain["order"]["nonce"]
        return {**plain, "state": tracked.state(self._runtime.clock.now())}

    @get("/api/orders/{id}", response=shapes.OrderStatus)
    async def get_order(self, request: Request) -> Response:
        """One work order with its state and its receipt."""
        id = request.path_params["id"]
        tracked = await self._journal.read(lambda: self._queue.find_order(id))
        if tracked is None:
            raise _order_not_found(id)
        return ok_response(**self._to_plain(tracked))

    @post("/api/orders/{id}/receipt", role=Role.AGENT, body=orders.Envelope)
    async def accept_receipt(self, request: Request) -> Response:
        """Store the receipt of a work order; 200 means that it is on disk."""
        queue, id = self._queue, request.path_params["id"]
        envelope = await read_record(request, orders.Envelope, MAX_RECEIPT_BYTES)
        with self._receipts:
            try:
                tracked = await self._journal.read(lambda: queue.find_order(id))
                if tracked is not None:
                    check_node(request.state.caller, tracked.order.node)
                    tracked = await asyncio.to_thread(queue.accept_receipt, id, envelope, now=self._runtime.clock.now())
            except WireError as error:
                raise HTTPException(400, str(error)) from error
            except ActionRefused as error:
                raise HTTPException(422, str(error)) from error
        if tracked is None:
            raise _order_not_found(id)
        return ok_response()


def _order_not_found(id: str) -> HTTPException:
    return HTTPException(404, f"no order has the id {id[:40]}")
