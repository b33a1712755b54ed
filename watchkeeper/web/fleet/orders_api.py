"""Work orders over HTTP: agents fetch theirs by long poll and answer, people give harmless ones and look.

    GET  /api/orders?cluster=…&node=…&wait=…    an agent: what waits for this node, as soon as there is something
    POST /api/orders/{id}/receipt               an agent: what came of it; answered after commit
    POST /api/orders                            an operator: {"node", "kind", "arguments", "cluster", "seconds", "why"}
    GET  /api/orders/recent, /api/orders/{id}   a viewer: the newest, or one

A poll that waits is one future and one timer; it holds no thread and reads no disk, however many agents there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import ActionRefused, WireError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit import wire
from watchkeeper.model import orders
from watchkeeper.remediate.orders import Address, OrderQueue, OrderRequest
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, check_node, ok_response, parse_whole_number, read_body

LONGEST_WAIT_SECONDS = 60
# One poll for each node of the largest fleet.
MOST_POLLS = 20_000
# Receipts that wait for their commit at the same time; agents keep theirs and come again.
MOST_RECEIPTS = 64
RETRY_AFTER_SECONDS = 2
GIVE_BYTES = 64 * 1024
# JSON in JSON: every quote of the output takes two characters more.
RECEIPT_BYTES = 4 * orders.MOST_OUTPUT_BYTES
MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class OrderEnvelopes:
    orders: list[orders.Envelope]


@dataclass(frozen=True, slots=True)
class OrderList:
    orders: list[shapes.OrderStatus]


@dataclass(frozen=True, slots=True)
class NewOrderBody:
    """What a person sends; `cluster` None is the hub's own, `seconds` is how long the order may wait."""

    node: str
    kind: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    cluster: str | None = None
    seconds: float = orders.USUAL_LIFE.total_seconds()
    why: str = ""


class OrderPolls:
    """Who waits for orders: at most one poll for each node, woken by name."""

    def __init__(self, outbox: OrderQueue) -> None:
        self._waiting: dict[Address, asyncio.Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ended = False
        outbox.subscribe(self._news)

    @property
    def count(self) -> int:
        return len(self._waiting)

    async def wait(self, address: Address, seconds: float) -> None:
        """Until there is news for this node, the time is over, or the same node asks again."""
        self._loop = asyncio.get_running_loop()
        self._wake(address)
        if self._is_ended:
            return
        future = self._waiting[address] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _end, future)
        try:
            await future
        finally:
            timer.cancel()
            if self._waiting.get(address) is future:
                del self._waiting[address]

    def _news(self, address: Address | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, address)

    def _wake(self, address: Address | None) -> None:
        """One node, or everyone when the hub stops."""
        self._is_ended |= address is None
        for woken in [*self._waiting] if address is None else [address]:
            future = self._waiting.pop(woken, None)
            if future is not None:
                _end(future)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class OrdersApi:
    def __init__(
        self, runtime: Runtime, journal: services.JournalProtocol, *, orders: Callable[[], OrderQueue | None]
    ) -> None:
        self._runtime, self._journal, self._orders = runtime, journal, orders
        self.polls = None if (outbox := orders()) is None else OrderPolls(outbox)
        self._receipts = 0
        self._waiting = runtime.metrics.gauge("watchkeeper_web_order_polls", "Agents that wait for work orders now")

    @property
    def _outbox(self) -> OrderQueue:
        outbox = self._orders()
        if outbox is None:
            raise HTTPException(409, "this hub gives no work orders: [hub] order_key_file is not set")
        return outbox

    async def fetch(self, request: Request) -> OrderEnvelopes:
        """What waits for a node; with `wait`, only once there is something or the seconds are over."""
        outbox, polls = self._outbox, self.polls
        assert polls is not None
        node = request.query_params.get("node", "")
        if not node:
            raise HTTPException(400, "`node` is needed: whose orders?")
        check_node(request.state.caller, node)
        address = (request.query_params.get("cluster") or self._runtime.settings.fleet.cluster, node)
        text = request.query_params.get("wait", "0")
        seconds = parse_whole_number(text)
        if seconds is None or seconds > LONGEST_WAIT_SECONDS:
            raise HTTPException(400, f"wait `{text[:20]}` is not a number of seconds from 0 to {LONGEST_WAIT_SECONDS}")
        found = outbox.waiting(*address, now=self._runtime.clock.now())
        if not found and seconds:
            if polls.count >= MOST_POLLS:
                raise _later(f"{polls.count} agents wait for orders, the limit is {MOST_POLLS}")
            self._waiting.set(polls.count + 1)
            try:
                await polls.wait(address, seconds)
            finally:
                self._waiting.set(polls.count)
            found = outbox.waiting(*address, now=self._runtime.clock.now())
        return OrderEnvelopes(orders=found)

    async def answer(self, request: Request) -> Response:
        """Keep what came of an order; 200 means that it is on disk, so the agent may forget it."""
        outbox, id = self._outbox, request.path_params["id"]
        try:
            envelope = wire.loads(orders.Envelope, await read_body(request, RECEIPT_BYTES))
        except WireError as error:
            raise HTTPException(400, str(error)) from error
        if self._receipts >= MOST_RECEIPTS:
            raise _later(f"{self._receipts} receipts wait for their commit, the limit is {MOST_RECEIPTS}")
        self._receipts += 1
        try:
            known = await self._journal.read(lambda: outbox.find_order(id))
            if known is not None:
                check_node(request.state.caller, known.order.node)
                known = await asyncio.to_thread(outbox.accept_receipt, id, envelope, now=self._runtime.clock.now())
        except WireError as error:
            raise HTTPException(400, str(error)) from error
        except ActionRefused as error:
            raise HTTPException(422, str(error)) from error
        finally:
            self._receipts -= 1
        if known is None:
            raise _unknown(id)
        return ok_response()

    async def give(self, request: Request) -> Response:
        """Order something harmless; what touches a machine comes from a plan with its guards, and only from there."""
        outbox = self._outbox
        try:
            given = wire.loads(NewOrderBody, await read_body(request, GIVE_BYTES))
        except WireError as error:
            raise HTTPException(400, str(error)) from error
        kind = orders.KINDS.get(given.kind)
        if kind is not None and not kind.is_harmless:
            raise HTTPException(400, f"{given.kind} touches a machine; only a plan may order it")
        wanted = OrderRequest(
            given.cluster or self._runtime.settings.fleet.cluster,
            given.node,
            given.kind,
            given.arguments,
            given.why,
            timedelta(seconds=min(max(given.seconds, 0.0), 2 * orders.LONGEST_LIFE.total_seconds())),
        )
        now, actor = self._runtime.clock.now(), request.state.caller.name
        try:
            tracked = await asyncio.to_thread(outbox.issue, wanted, now=now, actor=actor)
        except ActionRefused as error:
            raise HTTPException(400, str(error)) from error
        return ok_response(**self._plain(tracked))

    async def one(self, request: Request) -> Response:
        id = request.path_params["id"]
        tracked = await self._journal.read(lambda: self._outbox.find_order(id))
        if tracked is None:
            raise _unknown(id)
        return ok_response(**self._plain(tracked))

    async def recent(self, request: Request) -> Response:
        text = request.query_params.get("limit", "100")
        limit = parse_whole_number(text)
        if limit is None or not 1 <= limit <= MOST_LISTED:
            raise HTTPException(400, f"limit `{text[:20]}` is not a number from 1 to {MOST_LISTED}")
        found = await self._journal.read(lambda: self._outbox.latest_orders(limit))
        return ok_response(orders=[self._plain(tracked) for tracked in found])

    def _plain(self, tracked: orders.TrackedOrder) -> dict[str, Any]:
        """Without the nonce, which is the agent's business."""
        plain = wire.to_plain(tracked)
        del plain["order"]["nonce"]
        return {**plain, "state": tracked.state(self._runtime.clock.now())}


def _later(problem: str) -> HTTPException:
    return HTTPException(429, f"{problem}. Try again later", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def _unknown(id: str) -> HTTPException:
    return HTTPException(404, f"there is no order {id[:40]}")


def endpoints(api: OrdersApi) -> list[Endpoint]:
    get, post = ("GET",), ("POST",)
    return [
        Endpoint(
            get,
            "/api/orders",
            Role.AGENT,
            api.fetch,
            summary="What waits for a node, as soon as there is something",
            params=(
                QueryParam("node", "whose orders", is_required=True),
                shapes.CLUSTER,
                QueryParam("wait", f"seconds to wait for one, at most {LONGEST_WAIT_SECONDS}; 0 unless given", int),
            ),
        ),
        Endpoint(
            post,
            "/api/orders",
            Role.OPERATOR,
            api.give,
            changes=True,
            summary="Have something harmless done by the agent of a node",
            body=NewOrderBody,
            response=shapes.OrderStatus,
        ),
        Endpoint(
            get,
            "/api/orders/recent",
            Role.VIEWER,
            api.recent,
            summary="The newest orders and what came of them",
            params=(QueryParam("limit", f"at most {MOST_LISTED}; 100 unless given", int),),
            response=OrderList,
        ),
        Endpoint(
            get,
            "/api/orders/{id}",
            Role.VIEWER,
            api.one,
            summary="One order, its state, and its receipt once there is one",
            response=shapes.OrderStatus,
        ),
        Endpoint(
            post,
            "/api/orders/{id}/receipt",
            Role.AGENT,
            api.answer,
            changes=True,
            summary="Take what came of an order; 200 means that it is on disk",
            body=orders.Envelope,
            response={},
        ),
    ]
