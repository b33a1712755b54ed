"""GET /api/usage, /api/cost and /api/cost/budgets: who used what, what it cost, and what is left of a month's budgets.

`accounting.books` reads the ledger and the engine in a thread, one question at a time; the price book is the file that
[cost] prices names, read again when it has changed. `watchkeeper usage` and `cost`, and other programs, ask.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.accounting import books, budgets, cost, ledger, spans, summary, usage
from watchkeeper.catalogue import prices
from watchkeeper.errors import CollectError, PackError
from watchkeeper.web import prometheus_form as form
from watchkeeper.web.answers import Endpoint, ok
from watchkeeper.web.auth import Role
from watchkeeper.web.view import HubView

LONGEST_SECONDS = 5 * 366 * 86_400.0
MOST_NAMES = 4
LARGEST_BOOK_BYTES = 16 * 1024 * 1024
LEDGER = "usage"
T = TypeVar("T")


class UsageApi:
    def __init__(self, hub: HubView) -> None:
        self._hub = hub
        self._ledger = ledger.Ledger(Path(hub.settings.hub.data) / LEDGER)
        self._busy = asyncio.Lock()
        self._book: tuple[tuple[int, int], prices.Book] | None = None

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
        path = self._hub.settings.cost.prices
        if path is None:
            # The shipped book knows a few models; the one price of the settings stands in for the others, and says so.
            return replace(prices.shipped(), fallback=self._hub.settings.cost.dollars_per_gpu_hour)
        return await asyncio.to_thread(self._read_book, Path(path))

    def _read_book(self, path: Path) -> prices.Book:
        try:
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            if self._book is None or self._book[0] != mark:
                if status.st_size > LARGEST_BOOK_BYTES:
                    raise PackError(f"{status.st_size:,} bytes; the most is {LARGEST_BOOK_BYTES:,}", where=str(path))
                self._book = mark, prices.read(path.read_text(encoding="utf-8-sig"), where=path.name)
            return self._book[1]
        except (OSError, UnicodeDecodeError) as error:
            raise PackError(f"the price book cannot be read: {error}", where="[cost] prices") from error


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
        Endpoint(("GET",), "/api/usage", Role.VIEWER, api.hours),
        Endpoint(("GET",), "/api/cost", Role.VIEWER, api.cost),
        Endpoint(("GET",), "/api/cost/waste", Role.VIEWER, api.waste),
        Endpoint(("GET",), "/api/cost/budgets", Role.VIEWER, api.budgets),
    ]
