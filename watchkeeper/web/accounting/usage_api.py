"""GET /api/usage and /api/cost: who used what, what it cost, what is left of a month's budgets, and its statements.

`accounting.books` reads the ledger and the engine in a thread, one question at a time; the price book is the file that
[cost] prices names, read again when it has changed. `watchkeeper usage` and `cost`, and other programs, ask.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from watchkeeper.accounting import (
    budgets,
    cost,
    ledger,
    monthly,
    price_file,
    summary,
    time_ranges,
    usage,
    usage_reader,
    waste,
)
from watchkeeper.catalogue import prices
from watchkeeper.errors import CollectError
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import wire
from watchkeeper.web import report_shapes, shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, Unwrapped, ok_response
from watchkeeper.web.prometheus import prometheus_form as form

LONGEST_SECONDS = 5 * 366 * 86_400.0
MOST_NAMES = 4
LEDGER = "usage"
LINES = "application/x-ndjson"
# Each holds a month of jobs while its pages are fetched.
MOST_STATEMENTS = 2
MONTH_ASKS = (
    QueryParam("month", "such as 2026-11; this one unless given"),
    QueryParam("zone", "whose month, such as Europe/Berlin; UTC unless given"),
)
POLICY_ASK = QueryParam("policy", "who pays for what nobody holds; none unless given", cost.Policy)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WasteReport:
    since: float
    until: float
    currency: str
    waste: list[waste.WastedHours]


@dataclass(frozen=True, slots=True)
class BudgetReport:
    month: str
    currency: str
    until: float
    budgets: list[budgets.TeamBudget]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Month:
    """A month of a zone; `until` is its end, or now."""

    text: str
    zone: ZoneInfo
    start: float
    end: float
    until: float


class UsageApi:
    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries
        self._ledger = ledger.UsageLedger(Path(runtime.settings.hub.data) / LEDGER)
        self._busy = asyncio.Lock()
        # Taken and given back in threads of the answer, which `shedding.Places` is not made for.
        self._places = threading.Semaphore(MOST_STATEMENTS)
        chosen = runtime.settings.cost
        self._file = price_file.PriceFile(chosen.prices, fallback=chosen.dollars_per_gpu_hour)

    async def hours(self, request: Request) -> Response:
        by, of = _by(request), _of(request)
        since, until = _window(request, self._runtime.clock.now())
        tables = await self._alone(lambda: self._read([(since, until)], {*by, *of}))
        return ok_response(**summary.usage_report(tables[0], by, of=of))

    async def bill(self, request: Request) -> Response:
        by, of = _by(request), _of(request)
        whole = await self._bill(request, {*by, *of}, policy=_policy(request))
        return ok_response(
            **cost.report_as_json(cost.limit_lines(await asyncio.to_thread(cost.report_bill, whole, by, of=of)))
        )

    async def waste(self, request: Request) -> WasteReport:
        """GPUs that are held and not used, with who holds them and what that costs."""
        of, whole = _of(request), await self._bill(request, {"job"}, policy=cost.Policy.NONE)
        found = await asyncio.to_thread(lambda: waste.wasted_by_owner(whole, summary.matching_rows(whole.table, of)))
        return WasteReport(since=whole.table.since, until=whole.table.until, currency=whole.book.currency, waste=found)

    async def budgets(self, request: Request) -> Response:
        month, book, policy = self._month(request), await self._prices(), _policy(request)
        found = await self._alone(lambda: self._budgets(month, book, policy))
        return ok_response(month=month.text, currency=book.currency, **found)

    async def statements(self, request: Request) -> Response:
        """Page by page, so that no more than one is held beside the table that all of them are made from."""
        month, book, policy = self._month(request), await self._prices(), _policy(request)
        teams, of = tuple(request.query_params.getlist("team")), _of(request)
        lines = self._statements(month, book, policy=policy, teams=teams, of=of)
        try:
            # The first one brings all that is read; whoever cannot have any hears it now.
            first = await self._alone(lambda: next(lines))
        except CollectError as error:
            raise HTTPException(404, str(error)) from error
        return StreamingResponse(itertools.chain([first], lines), media_type=LINES)

    def _statements(
        self, month: _Month, book: prices.PriceBook, *, policy: cost.Policy, teams: tuple[str, ...], of: dict[str, str]
    ) -> Iterator[bytes]:
        if not self._places.acquire(blocking=False):
            raise HTTPException(429, f"{MOST_STATEMENTS} others are given their statements. Try again later")
        try:
            found = self._budgets(month, book, policy)["budgets"]
            wanted = monthly.StatementRequest(month.text, month.zone, teams, of, {one["team"]: one for one in found})
            pieces = self._read(book.price_periods(month.start, month.until), {"job"})
            for one in monthly.statements(cost.price_usage(pieces, book, policy=policy), wanted):
                yield orjson.dumps(wire.to_plain(one)) + b"\n"
        finally:
            self._places.release()

    def _budgets(self, month: _Month, book: prices.PriceBook, policy: cost.Policy) -> dict[str, Any]:
        days = [(since, until) for _, since, until in time_ranges.days(month.start, month.until, month.zone)]
        pieces = self._read(book.price_periods(month.start, month.until), {"team"})
        return budgets.month_budgets(
            cost.price_usage(pieces, book, policy=policy), self._read(days, {"team"}), ends=month.end
        )

    def _month(self, request: Request) -> _Month:
        zone, now = _zone(request), self._runtime.clock.now()
        text = request.query_params.get("month") or f"{now.astimezone(zone):%Y-%m}"
        try:
            start, end = time_ranges.month(text, zone)
        except ValueError as error:
            raise HTTPException(400, f"month `{text[:40]}`: write it like 2026-11") from error
        if start >= now.timestamp():
            raise HTTPException(400, f"{text} has not begun")
        return _Month(text, zone, start, end, min(end, now.timestamp()))

    async def _bill(self, request: Request, names: set[str], *, policy: cost.Policy) -> cost.UsageBill:
        since, until = _window(request, self._runtime.clock.now())
        book = await self._prices()
        pieces = await self._alone(lambda: self._read(book.price_periods(since, until), names))
        return await asyncio.to_thread(cost.price_usage, pieces, book, policy=policy)

    def _read(self, stretches: list[tuple[float, float]], names: set[str]) -> list[usage.UsageTable]:
        by_job = usage_reader.needs_jobs(frozenset(names))
        return usage_reader.read_usage_periods(self._queries.engine, self._ledger, stretches, by_job=by_job)

    async def _alone(self, work: Callable[[], T]) -> T:
        async with self._busy:
            return await asyncio.to_thread(work)

    async def _prices(self) -> prices.PriceBook:
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
            summary.dimension_index(name)
    except CollectError as error:
        raise HTTPException(400, str(error)) from error
    return list(dict.fromkeys(names))


def _of(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in request.query_params.getlist("of"):
        name, equals, value = text.partition("=")
        if not equals or name not in usage.DIMENSIONS:
            raise HTTPException(400, f"of `{text[:60]}`: write it like team=vision")
        if name in found:
            raise HTTPException(400, f"of `{text[:60]}`: {name} is asked for twice; ask for one at a time")
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


def endpoints(api: UsageApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/usage",
            Role.VIEWER,
            api.hours,
            summary="GPU-hours: who held them, used them, wasted them; idle, lost, unknown",
            params=(shapes.FROM, shapes.TO, shapes.BY, shapes.OF),
            response=report_shapes.UsageReport,
        ),
        Endpoint(
            ("GET",),
            "/api/cost",
            Role.VIEWER,
            api.bill,
            summary="What it cost, by the price book",
            params=(shapes.FROM, shapes.TO, shapes.BY, shapes.OF, POLICY_ASK),
            response=report_shapes.CostReport,
        ),
        Endpoint(
            ("GET",),
            "/api/cost/waste",
            Role.VIEWER,
            api.waste,
            summary="GPUs that are held and not used, with who holds them and what that costs",
            params=(shapes.FROM, shapes.TO, shapes.OF),
        ),
        Endpoint(
            ("GET",),
            "/api/cost/budgets",
            Role.VIEWER,
            api.budgets,
            summary="What is left of the budgets of a month, and where they will end",
            params=(*MONTH_ASKS, POLICY_ASK),
            response=BudgetReport,
        ),
        Endpoint(
            ("GET",),
            "/api/cost/statements",
            Role.VIEWER,
            api.statements,
            summary="The statements of a month, one JSON object a line: team, money, currency and an HTML page",
            params=(*MONTH_ASKS, POLICY_ASK, shapes.OF, QueryParam("team", "only this team; all of them unless given")),
            response=Unwrapped(monthly.Statement),
            media_type=LINES,
        ),
    ]
