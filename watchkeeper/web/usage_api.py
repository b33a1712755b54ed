"""GET /api/usage, /api/cost and /api/cost/budgets: who used what, what it cost, and what is left of a month's budgets.

`accounting.books` reads the ledger and the engine in a thread, one question at a time; the price book is the file that
[cost] prices names, read again when it has changed. `watchkeeper usage` and `cost`, and other programs, ask.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.accounting import books, budgets, cost, ledger, price_file, spans, summary, usage
from watchkeeper.catalogue import prices
from watchkeeper.errors import CollectError
from watchkeeper.web import prometheus_form as form
from watchkeeper.web import shapes
from watchkeeper.web.answers import Asked, Endpoint, ok
from watchkeeper.web.auth import Role
from watchkeeper.web.view import HubView

LONGEST_SECONDS = 5 * 366 * 86_400.0
MOST_NAMES = 4
LEDGER = "usage"
POLICY_ASK = Asked("policy", "who pays for what nobody holds; none unless given", cost.Policy)
T = TypeVar("T")


class UsageApi:
    def __init__(self, hub: HubView) -> None:
        self._hub = hub
        self._ledger = ledger.Ledger(Path(hub.settings.hub.data) / LEDGER)
        self._busy = asyncio.Lock()
        chosen = hub.settings.cost
        self._file = price_file.PriceFile(chosen.prices, fallback=chosen.dollars_per_gpu_hour)

    async def hours(self, request: Request) -> Response:
        by, of = _by(request), _of(request)
        table = await self._table(request, {*by, *of})
        return ok(**summary.report(table, by, of=of))

    async def cost(self, request: Request) -> Response:
        by, of = _by(request), _of(request)
        policy = _policy(request)
        table = await self._table(request, {*by, *of})
        book = await self._prices()
        found = await asyncio.to_thread(cost.report, table, book, by, policy=policy, of=of)
        return ok(**cost.plain(found))

    async def waste(self, request: Request) -> Response:
        """GPUs that are held and not used, with who holds them and what that costs."""
        table = summary.only(await self._table(request, {"job"}), _of(request))
        book = await self._prices()
        return ok(since=table.since, until=table.until, currency=book.currency, waste=cost.wasted(table, book))

    async def budgets(self, request: Request) -> Response:
        zone, now = _zone(request), self._hub.clock.now()
        text = request.query_params.get("month") or f"{now.astimezone(zone):%Y-%m}"
        try:
            start, end = spans.month(text, zone)
        except ValueError as error:
            raise HTTPException(400, f"month `{text[:40]}`: write it like 2026-11") from error
        if start > now.timestamp():
            raise HTTPException(400, f"{text} has not begun")
        book, policy = await self._prices(), _policy(request)
        until = min(end, now.timestamp())

        def work() -> dict[str, Any]:
            return budgets.of_month(self._days(start, until, zone), book, policy=policy, ends=end)

        return ok(month=text, currency=book.currency, **await self._alone(work))

    def _days(self, start: float, until: float, zone: ZoneInfo) -> list[usage.Table]:
        return [
            books.table(self._hub.engine, self._ledger, since=since, until=to, by_job=False)
            for _, since, to in spans.days(start, until, zone)
        ]

    async def _table(self, request: Request, names: set[str]) -> usage.Table:
        since, until = _window(request, self._hub.clock.now())
        by_job = books.needs_jobs(frozenset(names))

        def work() -> usage.Table:
            return books.table(self._hub.engine, self._ledger, since=since, until=until, by_job=by_job)

        return await self._alone(work)

    async def _alone(self, work: Callable[[], T]) -> T:
        async with self._busy:
            return await asyncio.to_thread(work)

    async def _prices(self) -> prices.Book:
        return await asyncio.to_thread(self._file.book)


def _window(request: Request, now: datetime) -> tuple[float, float]:
    until_text, since_text = request.query_params.get("to"), request.query_params.get("from")
    try:
        until = now.timestamp() if until_text is None else form.read_time("to", until_text) / 1000
        since = until - 86_400 if since_text is None else form.read_time("from", since_text) / 1000
    except form.BadParameter as error:
        raise HTTPException(400, str(error)) from error
    # What has not happened yet is not unknown.
    until = min(until, now.timestamp())
    if not (math.isfinite(since) and since < until):
        raise HTTPException(400, "`from` must be before `to`, and before now")
    if until - since > LONGEST_SECONDS:
        raise HTTPException(400, f"{(until - since) / 86_400:,.0f} days; the most is {LONGEST_SECONDS / 86_400:,.0f}")
    return since, until


def _by(request: Request) -> list[str]:
    names = [name for text in request.query_params.getlist("by") for name in text.split(",") if name] or ["team"]
    if len(names) > MOST_NAMES:
        raise HTTPException(400, f"by {len(names)} dimensions; the most is {MOST_NAMES}")
    try:
        for name in names:
            summary.dimension(name)
    except CollectError as error:
        raise HTTPException(400, str(error)) from error
    return names


def _of(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in request.query_params.getlist("of"):
        name, equals, value = text.partition("=")
        if not equals or name not in usage.DIMENSIONS:
            raise HTTPException(400, f"of `{text[:60]}`: write it like team=vision")
        found[name] = value
    return found


def _policy(request: Request) -> cost.Policy:
    text = request.query_params.get("policy", cost.Policy.NONE)
    try:
        return cost.Policy(text)
    except ValueError as error:
        raise HTTPException(400, f"policy `{text[:40]}`: there are {', '.join(cost.Policy)}") from error


def _zone(request: Request) -> ZoneInfo:
    text = request.query_params.get("zone", "UTC")
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise HTTPException(400, f"zone `{text[:40]}`: write it like Europe/Berlin") from error


def endpoints(hub: HubView) -> list[Endpoint]:
    api = UsageApi(hub)
    return [
        Endpoint(
            ("GET",),
            "/api/usage",
            Role.VIEWER,
            api.hours,
            words="GPU-hours: who held them, used them, wasted them; idle, lost, unknown",
            asks=(shapes.FROM, shapes.TO, shapes.BY, shapes.OF),
            gives={
                "since": float,
                "until": float,
                "by": list[str],
                "of": dict[str, str],
                "lines": list[dict[str, Any]],
                "total": dict[str, float],
                "notes": list[str],
                "words": dict[str, str],
            },
        ),
        Endpoint(
            ("GET",),
            "/api/cost",
            Role.VIEWER,
            api.cost,
            words="What it cost, by the price book",
            asks=(shapes.FROM, shapes.TO, shapes.BY, shapes.OF, POLICY_ASK),
        ),
        Endpoint(
            ("GET",),
            "/api/cost/waste",
            Role.VIEWER,
            api.waste,
            words="GPUs that are held and not used, with who holds them and what that costs",
            asks=(shapes.FROM, shapes.TO, shapes.OF),
            gives={"since": float, "until": float, "currency": str, "waste": list[cost.Waste]},
        ),
        Endpoint(
            ("GET",),
            "/api/cost/budgets",
            Role.VIEWER,
            api.budgets,
            words="What is left of the budgets of a month, and where they will end",
            asks=(
                Asked("month", "such as 2026-11; this one unless given"),
                Asked("zone", "whose month, such as Europe/Berlin; UTC unless given"),
                POLICY_ASK,
            ),
            gives={"month": str, "currency": str, "until": float, "budgets": list[budgets.Budget], "notes": list[str]},
        ),
    ]
