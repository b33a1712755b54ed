"""GET /api/usage and /api/cost: GPU-hours by owner, their cost, waste, monthly budgets and chargeback statements.

`accounting.usage_reader` reads the ledger and the engine in a thread, one request at a time. The price book is the file
in [cost] prices, reloaded when it changes.
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
from typing import Any, TypedDict, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from watchkeeper.accounting import budgets, cost, ledger, monthly, price_file, summary, time_ranges, usage, usage_reader
from watchkeeper.catalogue import prices
from watchkeeper.errors import CollectError
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import wire
from watchkeeper.web import report_shapes, shapes
from watchkeeper.web.endpoint import QueryParam, Unwrapped, check_choice, get, ok_response
from watchkeeper.web.prometheus import prometheus_params as form

MAX_SECONDS = 5 * 366 * 86_400.0
MAX_DIMENSIONS = 4
LEDGER_FOLDER = "usage"
NDJSON = "application/x-ndjson"
# Each holds a month of jobs in memory while it is sent.
MAX_CONCURRENT_STATEMENTS = 2
MONTH_PARAMS = (
    QueryParam("month", "Month, such as 2026-11. Default: the current month."),
    QueryParam("zone", "Time zone of the month, such as Europe/Berlin. Default: UTC."),
)
POLICY_PARAM = QueryParam(
    "policy", f"Who pays for unallocated GPU-hours: {', '.join(cost.Policy)}. Default: none.", cost.Policy
)
T = TypeVar("T")


class WasteReport(TypedDict):
    since: float
    until: float
    currency: str
    waste: list[cost.WastedHours]


class BudgetReport(TypedDict):
    month: str
    currency: str
    until: float
    budgets: list[budgets.TeamBudget]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Month:
    """A month in a time zone; `until` is its end, or now for the current month."""

    text: str
    zone: ZoneInfo
    start: float
    end: float
    until: float


class UsageApi:
    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries
        self._ledger = ledger.UsageLedger(Path(runtime.settings.hub.data) / LEDGER_FOLDER)
        self._lock = asyncio.Lock()
        # Acquired and released in threads, for which `shedding.ConcurrencyLimit` is not safe.
        self._statement_slots = threading.Semaphore(MAX_CONCURRENT_STATEMENTS)
        self._price_file = price_file.PriceFile.of_settings(runtime.settings.cost)

    @get("/api/usage", shapes.FROM, shapes.TO, shapes.BY, shapes.OF, response=report_shapes.UsageReport)
    async def usage_report(self, request: Request) -> Response:
        """GPU-hours by owner: allocated, used and wasted; also free, lost and unknown ones."""
        dimensions, filters = _read_dimensions(request), _read_filters(request)
        since, until = _read_window(request, self._runtime.clock.now())
        tables = await self._run_exclusively(lambda: self._read_usage([(since, until)], {*dimensions, *filters}))
        return ok_response(**summary.usage_report(tables[0], dimensions, filters=filters))

    @get("/api/cost", shapes.FROM, shapes.TO, shapes.BY, shapes.OF, POLICY_PARAM, response=report_shapes.CostReport)
    async def cost_report(self, request: Request) -> Response:
        """Cost of GPU-hours by owner, at the prices of the price book."""
        dimensions, filters = _read_dimensions(request), _read_filters(request)
        bill = await self._load_bill(request, {*dimensions, *filters}, policy=_read_policy(request))
        report = await asyncio.to_thread(cost.create_bill_report, bill, dimensions, filters=filters)
        return ok_response(**cost.report_as_json(cost.limit_lines(report)))

    @get("/api/cost/waste", shapes.FROM, shapes.TO, shapes.OF)
    async def waste_report(self, request: Request) -> WasteReport:
        """Waste: GPU-hours allocated and idle, by owner, with their cost."""
        filters, bill = _read_filters(request), await self._load_bill(request, {"job"}, policy=cost.Policy.NONE)
        wasted = await asyncio.to_thread(lambda: cost.wasted_by_owner(bill, summary.matching_rows(bill.table, filters)))
        return WasteReport(since=bill.table.since, until=bill.table.until, currency=bill.book.currency, waste=wasted)

    @get("/api/cost/budgets", *MONTH_PARAMS, POLICY_PARAM, response=BudgetReport)
    async def budget_report(self, request: Request) -> Response:
        """Budgets of a month by team: spent, remaining and expected at its end."""
        month, book, policy = self._read_month(request), await self._load_prices(), _read_policy(request)
        report = await self._run_exclusively(lambda: self._budgets(month, book, policy))
        return ok_response(month=month.text, currency=book.currency, **report)

    @get(
        "/api/cost/statements",
        *MONTH_PARAMS,
        POLICY_PARAM,
        shapes.OF,
        QueryParam("team", "Return only the statement of this team; repeat it for several."),
        response=Unwrapped(monthly.Statement),
        media_type=NDJSON,
    )
    async def statements(self, request: Request) -> Response:
        """Chargeback statements of a month as JSON Lines: team, amount, currency and an HTML page."""
        month, book, policy = self._read_month(request), await self._load_prices(), _read_policy(request)
        teams, filters = tuple(request.query_params.getlist("team")), _read_filters(request)
        lines = self._statements(month, book, policy=policy, teams=teams, filters=filters)
        try:
            # The first statement reads all usage, so that an error still becomes the status of the answer. The others
            # are streamed: memory holds the usage table and one statement at a time.
            first = await self._run_exclusively(lambda: next(lines))
        except CollectError as error:
            raise HTTPException(404, str(error)) from error
        return StreamingResponse(itertools.chain([first], lines), media_type=NDJSON)

    def _statements(
        self,
        month: _Month,
        book: prices.PriceBook,
        *,
        policy: cost.Policy,
        teams: tuple[str, ...],
        filters: dict[str, str],
    ) -> Iterator[bytes]:
        if not self._statement_slots.acquire(blocking=False):
            problem = f"{MAX_CONCURRENT_STATEMENTS} requests for statements are running, the limit; retry later"
            raise HTTPException(429, problem)
        try:
            team_budgets = self._budgets(month, book, policy)["budgets"]
            statement_request = monthly.StatementRequest(
                month.text, month.zone, teams, filters, {budget["team"]: budget for budget in team_budgets}
            )
            tables = self._read_usage(book.price_periods(month.start, month.until), {"job"})
            bill = cost.price_usage(tables, book, policy=policy)
            for statement in monthly.create_statements(bill, statement_request):
                yield orjson.dumps(wire.to_plain(statement)) + b"\n"
        finally:
            self._statement_slots.release()

    def _budgets(self, month: _Month, book: prices.PriceBook, policy: cost.Policy) -> dict[str, Any]:
        days = [(since, until) for _, since, until in time_ranges.split_days(month.start, month.until, month.zone)]
        tables = self._read_usage(book.price_periods(month.start, month.until), {"team"})
        bill = cost.price_usage(tables, book, policy=policy)
        return budgets.report_month_budgets(bill, self._read_usage(days, {"team"}), ends=month.end)

    def _read_month(self, request: Request) -> _Month:
        zone_text, now = request.query_params.get("zone", "UTC"), self._runtime.clock.now()
        try:
            zone = ZoneInfo(zone_text)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            problem = f"`zone` is `{zone_text[:40]}`; expected a time zone such as Europe/Berlin"
            raise HTTPException(400, problem) from error
        text = request.query_params.get("month") or f"{now.astimezone(zone):%Y-%m}"
        try:
            start, end = time_ranges.month_range(text, zone)
        except ValueError as error:
            raise HTTPException(400, f"`month` is `{text[:40]}`; expected a month such as 2026-11") from error
        if start >= now.timestamp():
            raise HTTPException(400, f"month {text} is in the future")
        return _Month(text, zone, start, end, min(end, now.timestamp()))

    async def _load_bill(self, request: Request, dimensions: set[str], *, policy: cost.Policy) -> cost.UsageBill:
        since, until = _read_window(request, self._runtime.clock.now())
        book = await self._load_prices()
        tables = await self._run_exclusively(lambda: self._read_usage(book.price_periods(since, until), dimensions))
        return await asyncio.to_thread(cost.price_usage, tables, book, policy=policy)

    def _read_usage(self, periods: list[tuple[float, float]], dimensions: set[str]) -> list[usage.UsageTable]:
        by_job = usage_reader.needs_jobs(frozenset(dimensions))
        return usage_reader.read_usage_periods(self._queries.engine, self._ledger, periods, by_job=by_job)

    async def _run_exclusively(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(work)

    async def _load_prices(self) -> prices.PriceBook:
        return await asyncio.to_thread(self._price_file.book)


def _read_window(request: Request, now: datetime) -> tuple[float, float]:
    until_text, since_text = request.query_params.get("to"), request.query_params.get("from")
    until = now.timestamp() if until_text is None else form.read_time("to", until_text) / 1000
    since = until - 86_400 if since_text is None else form.read_time("from", since_text) / 1000
    # The future is cut off, so that it does not count as unknown.
    until = min(until, now.timestamp())
    if not (math.isfinite(since) and since < until):
        raise HTTPException(400, "`from` must be before `to`, and before now")
    if until - since > MAX_SECONDS:
        raise HTTPException(400, f"{(until - since) / 86_400:,.0f} days, the limit is {MAX_SECONDS / 86_400:,.0f}")
    return since, until


def _read_dimensions(request: Request) -> list[str]:
    names = [name for text in request.query_params.getlist("by") for name in text.split(",") if name] or ["team"]
    if len(names) > MAX_DIMENSIONS:
        raise HTTPException(400, f"`by` has {len(names)} dimensions, the limit is {MAX_DIMENSIONS}")
    try:
        for name in names:
            summary.dimension_index(name)
    except CollectError as error:
        raise HTTPException(400, str(error)) from error
    return list(dict.fromkeys(names))


def _read_filters(request: Request) -> dict[str, str]:
    filters: dict[str, str] = {}
    for text in request.query_params.getlist("of"):
        name, equals, value = text.partition("=")
        if not equals or name not in usage.DIMENSIONS:
            raise HTTPException(400, f"`of` is `{text[:60]}`; expected a dimension and its value, such as team=vision")
        if name in filters:
            problem = f"`of` is `{text[:60]}`, but {name} is set already; send one value for each dimension"
            raise HTTPException(400, problem)
        filters[name] = value
    return filters


def _read_policy(request: Request) -> cost.Policy:
    return cost.Policy(check_choice("policy", request.query_params.get("policy", cost.Policy.NONE), cost.Policy))
