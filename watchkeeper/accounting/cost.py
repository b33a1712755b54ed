"""Cost of usage: price a usage table with a price book, and split the cost of unallocated GPUs by a policy.

Showback shows the cost of each owner's allocated hours, with separate lines for idle, lost and unknown GPUs and
overhead; chargeback splits those lines among the owners. In both cases the lines add up to the bill. Hours of GPUs
without a price are listed, and are in no cost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from watchkeeper.accounting import summary, usage
from watchkeeper.catalogue import prices

# An owner with less than some microseconds gets no shared cost: shares of such small numbers do not add up.
MIN_HOURS = 1e-9
# A mean month; a part of a month has its share of the monthly overhead, by time.
MONTH_HOURS = prices.HOURS_A_YEAR / 12
POOL, MODEL, TEAM = (usage.DIMENSIONS.index(name) for name in ("pool", "model", "team"))
Money = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
# An item below a hundredth of a cent is a rounding error.
MIN_MONEY = 1e-4
UNKNOWN_MODEL = "an unknown model"
# People do not read a longer list of waste.
MAX_OWNERS = 20


class Policy(StrEnum):
    NONE = "none"
    USE = "use"
    ALLOCATION = "allocation"
    EVEN = "even"


POLICY_DESCRIPTIONS = {
    Policy.NONE: "showback: idle, lost and unknown GPUs and overhead have separate lines",
    Policy.USE: "chargeback: shared cost split in proportion to used GPU-hours",
    Policy.ALLOCATION: "chargeback: shared cost split in proportion to allocated GPU-hours",
    Policy.EVEN: "chargeback: shared cost split evenly among teams, within a team in proportion to allocated GPU-hours",
}


@dataclass(slots=True)
class CostRow:
    """Cost of one owner: `direct` for allocated hours, `energy` for power of own hardware, `shared` for shared cost."""

    names: tuple[str, ...]
    hours: usage.Amounts
    direct: float = 0.0
    energy: float = 0.0
    shared: float = 0.0
    wasted: float = 0.0
    unpriced_hours: float = 0.0

    @property
    def money(self) -> float:
        return self.direct + self.energy + self.shared

    @property
    def has_price(self) -> bool:
        """Whether any of its hours has a price; if none has, the cost is unknown and not zero."""
        return self.unpriced_hours <= 0 or not math.isclose(self.unpriced_hours, usage.total(self.hours))

    @property
    def known_money(self) -> float | None:
        return self.money if self.has_price or self.shared else None


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """A bill. `shared` itemises the shared cost, which is in the `(nobody)` lines unless a policy split it."""

    since: float
    until: float
    # Since the first record: the cost of an hour is `money` divided by this, not by the window.
    recorded_hours: float
    by: tuple[str, ...]
    currency: str
    policy: Policy
    lines: tuple[CostRow, ...]
    shared: Mapping[str, float]
    unpriced_by_model: Mapping[str, float]
    notes: tuple[str, ...]
    kwh: float = 0.0
    pue: float | None = None
    rates: tuple[tuple[str, prices.Price], ...] = ()

    @property
    def money(self) -> float:
        return sum(line.money for line in self.lines)

    @property
    def known_money(self) -> float | None:
        return _sum_lines(self.lines).known_money


@dataclass(frozen=True, slots=True)
class _GpuPrice:
    """The price of a GPU model in a pool; `price` is None if the book has none."""

    model: str
    pool: str
    price: prices.Price | None

    @property
    def display_name(self) -> str:
        return self.model or UNKNOWN_MODEL

    @property
    def full_name(self) -> str:
        pool = f", pool {self.pool}" if self.pool else ""
        return self.display_name + pool + (self.price.start_text if self.price is not None else "")


@dataclass(frozen=True, slots=True, eq=False)
class _PricedRows:
    """The cost of each row of a table; `price_index` points into `gpu_prices`."""

    gpu_prices: Sequence[_GpuPrice]
    price_index: npt.NDArray[np.int64]
    direct: Money
    energy: Money
    # The cost of idle, lost and unknown hours, which has no owner.
    unallocated: Money
    wasted: Money
    unpriced: npt.NDArray[np.float64]
    is_unowned: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class UsageBill:
    """A priced usage table with each row's share of the shared cost; all reports of a period use the same one."""

    table: usage.UsageTable
    book: prices.PriceBook
    policy: Policy
    rows: _PricedRows
    shared: Money
    # Overhead that is not split among the rows.
    unsplit_overhead: float
    shared_items: Mapping[str, float]
    notes: tuple[str, ...]


def price_usage(
    tables: Sequence[usage.UsageTable], book: prices.PriceBook, *, policy: Policy = Policy.NONE
) -> UsageBill:
    """Price usage tables that follow each other in time, each at the prices of its start."""
    # The tables are those of `PriceBook.price_periods`, or a single one.
    table = usage.join_tables(tables)
    rows = _price_rows(tables, table, book)
    # No cost is claimed before the first record, so no overhead either.
    overhead = book.overhead_per_month * table.recorded_hours / MONTH_HOURS
    shared, unsplit_overhead = _split_shared_cost(table, rows, overhead, policy=policy)
    notes = [*table.notes, *book.problems]
    is_own = prices.PriceKind.OWN in (book.kind, *(pool.kind for pool in book.pools.values()))
    if is_own and book.power_per_kwh is None and table.amounts[:, usage.KWH].any():
        notes.append("the price book has no power_per_kwh: energy of own hardware is not in any cost")
    if policy is not Policy.NONE and unsplit_overhead + rows.unallocated.sum() and not shared[~rows.is_unowned].any():
        notes.append(f"policy {policy}: no owner has hours to charge; the shared cost stays on a separate line")
    unmeasured = float(table.amounts[:, usage.UNMEASURED].sum())
    if policy is Policy.USE and unmeasured > MIN_HOURS:
        notes.append(f"{unmeasured:,.1f} allocated GPU-hours are unmeasured and get no share of the shared cost")
    shared_items = _list_shared_items(table, rows, overhead)
    return UsageBill(table, book, policy, rows, shared, unsplit_overhead, shared_items, tuple(notes))


def create_report(
    table: usage.UsageTable,
    book: prices.PriceBook,
    by: Sequence[str],
    *,
    policy: Policy = Policy.NONE,
    filters: Mapping[str, str] | None = None,
) -> CostBreakdown:
    """Price a table and report it by dimensions; `filters` keep some lines, with their share of the shared cost."""
    return create_bill_report(price_usage([table], book, policy=policy), by, filters=filters)


def create_bill_report(
    bill: UsageBill,
    by: Sequence[str],
    *,
    filters: Mapping[str, str] | None = None,
    row_indexes: Sequence[int] | None = None,
) -> CostBreakdown:
    """Report a bill by dimensions; `row_indexes` are the rows that match `filters`, if the caller has them."""
    table, rows = bill.table, bill.rows
    if row_indexes is None:
        row_indexes = summary.matching_rows(table, filters or {})
    selected = np.array(row_indexes, dtype=np.int64)
    lines = _sum_by_names(bill, by, selected)
    if bill.unsplit_overhead and not filters:
        names = (usage.UNOWNED,) * len(by)
        lines.setdefault(names, CostRow(names, np.zeros(len(usage.PARTS)))).shared += bill.unsplit_overhead
    ordered = sorted(lines.values(), key=lambda line: (usage.UNOWNED in line.names, -line.money, line.names))
    gpu_prices = [rows.gpu_prices[index] for index in np.unique(rows.price_index[selected]).tolist()]
    unpriced_by_model = _sum_unpriced_hours(rows, selected)
    notes = [*bill.notes, *_price_notes(bill.book, gpu_prices, unpriced_by_model)]
    if filters and len(table.keys) and not len(selected):
        notes.append(summary.no_match_note(filters))
    return CostBreakdown(
        table.since,
        table.until,
        table.recorded_hours,
        tuple(by),
        bill.book.currency,
        bill.policy,
        tuple(ordered),
        # In a showback, the lines of one owner contain no shared cost.
        {} if filters and bill.policy is Policy.NONE else bill.shared_items,
        unpriced_by_model,
        tuple(notes),
        sum(float(line.hours[usage.KWH]) for line in ordered),
        bill.book.pue,
        tuple(sorted({gpu.full_name: gpu.price for gpu in gpu_prices if gpu.price is not None}.items())),
    )


def limit_lines(cost_report: CostBreakdown, *, max_lines: int = summary.MAX_LINES) -> CostBreakdown:
    """Combine the lines beyond the limit into one, so that the total stays the same."""
    kept, rest = cost_report.lines[: max_lines - 1], cost_report.lines[max_lines - 1 :]
    if len(rest) < 2:
        return cost_report
    lengths = f"{len(rest):,} of {len(cost_report.lines):,} lines"
    note = f"{lengths} are combined into {summary.REST}; use --of to select fewer"
    lines = (*kept, _sum_lines(rest, names=(summary.REST,) * len(cost_report.by)))
    return replace(cost_report, lines=lines, notes=(*cost_report.notes, note))


def _price_rows(tables: Sequence[usage.UsageTable], table: usage.UsageTable, book: prices.PriceBook) -> _PricedRows:
    price_indexes: dict[tuple[str, str, float], int] = {}
    keys = ((key, period.since) for period in tables for key in period.keys)
    row_prices = [price_indexes.setdefault((key[MODEL], key[POOL], since), len(price_indexes)) for key, since in keys]
    gpu_prices = [_GpuPrice(model, pool, book.rate(model, pool, at=since)) for model, pool, since in price_indexes]
    price_index = np.array(row_prices, dtype=np.int64)
    # The price of rented GPUs includes power; for own hardware it is charged separately.
    price_per_kwh = (book.power_per_kwh or 0.0) * (book.pue or 1.0)
    rates = [gpu_price.price for gpu_price in gpu_prices]
    is_own = [rate is not None and rate.kind is prices.PriceKind.OWN for rate in rates]
    hourly_prices = np.array([0.0 if rate is None else rate.per_gpu_hour for rate in rates])[price_index]
    is_unpriced = np.array([rate is None for rate in rates], dtype=bool)[price_index]
    is_unowned = np.array([key[TEAM] == usage.UNOWNED for key in table.keys], dtype=bool)
    amounts = table.amounts
    energy = amounts[:, usage.KWH] * np.where(is_own, price_per_kwh, 0.0)[price_index]
    unallocated_hours = amounts[:, [usage.IDLE, usage.LOST, usage.UNKNOWN]].sum(axis=1)
    return _PricedRows(
        gpu_prices,
        price_index,
        amounts[:, usage.ALLOCATED] * hourly_prices,
        np.where(is_unowned, 0.0, energy),
        unallocated_hours * hourly_prices + np.where(is_unowned, energy, 0.0),
        amounts[:, usage.WASTED] * hourly_prices,
        np.where(is_unpriced, unallocated_hours + amounts[:, usage.ALLOCATED], 0.0),
        is_unowned,
    )


def _split_shared_cost(
    table: usage.UsageTable, rows: _PricedRows, overhead: float, *, policy: Policy
) -> tuple[Money, float]:
    """Return each row's share of the shared cost, and the overhead that no row gets."""
    # It is split by row, so that every grouping of the rows has the same sum.
    column = usage.USED if policy is Policy.USE else usage.ALLOCATED
    weights = np.where(rows.is_unowned, 0.0, table.amounts[:, column])
    weights[weights < MIN_HOURS] = 0.0
    if policy is Policy.EVEN:
        team_weights: dict[str, float] = {}
        for key, weight in zip(table.keys, weights.tolist(), strict=True):
            team_weights[key[TEAM]] = team_weights.get(key[TEAM], 0.0) + weight
        weights /= np.array([team_weights[key[TEAM]] or 1.0 for key in table.keys])
    if policy is Policy.NONE or weights.sum() <= 0:
        return rows.unallocated, overhead
    # A free MIG instance on a partly allocated GPU is in an unowned row, so no cost is split twice.
    shared_cost = overhead + float(rows.unallocated.sum())
    shares: Money = shared_cost * weights / weights.sum()
    return shares, 0.0


def _sum_by_names(bill: UsageBill, by: Sequence[str], selected: Rows) -> dict[tuple[str, ...], CostRow]:
    table, rows = bill.table, bill.rows
    dimension_indexes = [summary.dimension_index(name) for name in by]
    line_indexes: dict[tuple[str, ...], int] = {}
    keys = (table.keys[row] for row in selected.tolist())
    row_names = (tuple(usage.display_value(key[index]) for index in dimension_indexes) for key in keys)
    row_lines = np.array([line_indexes.setdefault(names, len(line_indexes)) for names in row_names], dtype=np.int64)
    hours = np.zeros((len(line_indexes), len(usage.PARTS)))
    np.add.at(hours, row_lines, table.amounts[selected])
    sums = [
        np.bincount(row_lines, column[selected], minlength=len(line_indexes)).tolist()
        for column in (rows.direct, rows.energy, bill.shared, rows.wasted, rows.unpriced)
    ]
    pairs = line_indexes.items()
    return {names: CostRow(names, hours[line], *(column[line] for column in sums)) for names, line in pairs}


def _list_shared_items(table: usage.UsageTable, rows: _PricedRows, overhead: float) -> dict[str, float]:
    """The shared cost by item; unallocated hours of reserved GPUs are separate items."""
    items: dict[str, float] = defaultdict(float)
    for index, gpu_price in enumerate(rows.gpu_prices):
        if gpu_price.price is None:
            continue
        is_at_price = rows.price_index == index
        prefix = "reserved, " if gpu_price.price.kind is prices.PriceKind.RESERVED else ""
        unallocated = 0.0
        for item, column in (("idle", usage.IDLE), ("lost", usage.LOST), ("unknown", usage.UNKNOWN)):
            money = float(table.amounts[is_at_price, column].sum()) * gpu_price.price.per_gpu_hour
            unallocated += money
            items[prefix + item] += money
        items["energy of idle GPUs"] += float(rows.unallocated[is_at_price].sum())
        items["energy of idle GPUs"] -= unallocated
    items["overhead"] = overhead
    return {item: money for item, money in items.items() if abs(money) > MIN_MONEY}


def _sum_unpriced_hours(rows: _PricedRows, selected: Rows) -> dict[str, float]:
    hours = np.bincount(rows.price_index[selected], rows.unpriced[selected], minlength=len(rows.gpu_prices)).tolist()
    hours_by_model: dict[str, float] = defaultdict(float)
    for gpu_price, unpriced in zip(rows.gpu_prices, hours, strict=True):
        if unpriced > 0:
            hours_by_model[gpu_price.display_name] += unpriced
    return dict(hours_by_model)


def _price_notes(
    book: prices.PriceBook, gpu_prices: Sequence[_GpuPrice], unpriced_by_model: Mapping[str, float]
) -> list[str]:
    alternatives: dict[str, str] = {}
    fallback_prices: dict[str, prices.Price] = {}
    for gpu_price in gpu_prices:
        name, price = gpu_price.display_name, gpu_price.price
        if price is None and name not in alternatives:
            available = book.available_prices(gpu_price.model, gpu_price.pool)
            alternatives[name] = f"; {available}" if available else ""
        elif price is not None and price.source == prices.FALLBACK:
            fallback_prices[name] = price
    return [
        f"{hours:,.1f} GPU-hours of {model} have no price and are not in any cost{alternatives[model]}"
        for model, hours in sorted(unpriced_by_model.items())
    ] + [
        f"{model} has no price in the price book: {price.source} = {price.per_gpu_hour:g} is used"
        for model, price in sorted(fallback_prices.items())
    ]


def report_as_json(cost_report: CostBreakdown) -> dict[str, object]:
    return {
        "since": cost_report.since,
        "until": cost_report.until,
        "recorded_hours": cost_report.recorded_hours,
        "by": list(cost_report.by),
        "currency": cost_report.currency,
        "policy": cost_report.policy.value,
        "policy_words": POLICY_DESCRIPTIONS[cost_report.policy],
        "lines": [_line_as_json(line, cost_report.by) for line in cost_report.lines],
        "total": _line_as_json(_sum_lines(cost_report.lines), ()),
        "money": cost_report.known_money,
        "shared": dict(cost_report.shared),
        "holes": dict(cost_report.unpriced_by_model),
        "kwh": cost_report.kwh,
        "pue": cost_report.pue,
        "kwh_with_pue": None if cost_report.pue is None else cost_report.kwh * cost_report.pue,
        "rates": [
            {"of": name} | {part: getattr(price, part) for part in ("kind", "per_gpu_hour", "source", "checked")}
            for name, price in cost_report.rates
        ],
        "notes": list(cost_report.notes),
        "words": dict(usage.DEFINITIONS),
    }


def _sum_lines(lines: Sequence[CostRow], names: tuple[str, ...] = ()) -> CostRow:
    hours = np.sum([line.hours for line in lines], axis=0) if lines else np.zeros(len(usage.PARTS))
    parts = ("direct", "energy", "shared", "wasted", "unpriced_hours")
    return CostRow(names, hours, *(sum(getattr(line, part) for line in lines) for part in parts))


def _line_as_json(line: CostRow, by: Sequence[str]) -> dict[str, object]:
    return {
        **dict(zip(by, line.names, strict=True)),
        "money": line.known_money,
        "direct": line.direct if line.has_price else None,
        "energy": line.energy if line.has_price else None,
        "shared": line.shared,
        "wasted_money": line.wasted if line.has_price else None,
        "unpriced_hours": line.unpriced_hours,
        "hours": summary.plain_amounts(line.hours),
    }


@dataclass(frozen=True, slots=True)
class WastedHours:
    """GPU-hours that an owner's job wasted; `money` is None if the GPU has no price."""

    team: str
    user: str
    job: str
    gpu_hours: float
    money: float | None


def wasted_by_owner(bill: UsageBill, row_indexes: Sequence[int]) -> list[WastedHours]:
    """Return the waste in some rows of a bill by owner, the most expensive first."""
    table, rows = bill.table, bill.rows
    user, job, namespace = (usage.DIMENSIONS.index(name) for name in ("user", "job", "namespace"))
    hours: dict[tuple[str, str, str], float] = defaultdict(float)
    money: dict[tuple[str, str, str], float] = defaultdict(float)
    for index in row_indexes:
        gpu_hours, key = float(table.amounts[index, usage.WASTED]), table.keys[index]
        if gpu_hours <= 0:
            continue
        job_name = f"{key[namespace]}/{key[job]}" if key[namespace] and key[job] else key[job]
        owner = (usage.display_value(key[TEAM]), usage.display_value(key[user]), usage.display_value(job_name))
        hours[owner] += gpu_hours
        if rows.gpu_prices[rows.price_index[index]].price is not None:
            money[owner] += float(rows.wasted[index])
    wasted = [WastedHours(*owner, gpu_hours, money.get(owner)) for owner, gpu_hours in hours.items()]
    wasted.sort(key=lambda by_owner: (-(by_owner.money or 0.0), -by_owner.gpu_hours, by_owner.job))
    return wasted[:MAX_OWNERS]
