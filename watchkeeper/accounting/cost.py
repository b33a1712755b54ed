"""Money: a table of usage times a price book, with what belongs to nobody split by a named policy, to the last cent.

Showback shows what each owner's own hours cost and leaves idle, lost and unknown GPUs and overhead as lines of their
own; chargeback is the same with those lines split. Either way the lines sum to the bill. Hours of a GPU without a price
are listed as holes and are in no sum of money. `statement` and the command line show a `Report`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from watchkeeper.accounting import summary, usage
from watchkeeper.catalogue import prices

# Who held a GPU for less than some microseconds bears nothing: shares of numbers that small do not add up.
LEAST_HOURS = 1e-9
# A mean month; overhead of a part of it is its share by time.
MONTH_HOURS = prices.HOURS_A_YEAR / 12
POOL, MODEL, TEAM = (usage.DIMENSIONS.index(name) for name in ("pool", "model", "team"))
Money = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
# Below a hundredth of a cent an item is the rounding of sums.
LEAST_MONEY = 1e-4
UNKNOWN_MODEL = "an unknown model"


class Policy(StrEnum):
    """How the cost of what nobody held is split among those who held something."""

    NONE = "none"
    USE = "use"
    ALLOCATION = "allocation"
    EVEN = "even"


POLICY_WORDS = {
    Policy.NONE: "showback: idle, lost and unknown GPUs and overhead are lines of their own",
    Policy.USE: "chargeback: shared cost split in proportion to used GPU-hours",
    Policy.ALLOCATION: "chargeback: shared cost split in proportion to allocated GPU-hours",
    Policy.EVEN: "chargeback: shared cost split evenly among teams, within a team in proportion to allocated GPU-hours",
}


@dataclass(slots=True)
class CostLine:
    """What one owner pays. `direct` is for allocated hours, `energy` for power of own hardware, `shared` its share."""

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
        """Whether its own hours cost a known amount: where none has a price that is unknown, which is not nothing."""
        return self.unpriced_hours <= 0 or not math.isclose(self.unpriced_hours, usage.total(self.hours))

    @property
    def known_money(self) -> float | None:
        return self.money if self.has_price or self.shared else None


@dataclass(frozen=True, slots=True)
class CostReport:
    """A bill. `shared` itemises what nobody held; it is part of the lines of `(nobody)` unless a policy split it.

    `recorded_hours` are those since records begin: what an hour costs is the money by these, not by the whole window.
    """

    since: float
    until: float
    recorded_hours: float
    by: tuple[str, ...]
    currency: str
    policy: Policy
    lines: tuple[CostLine, ...]
    shared: Mapping[str, float]
    holes: Mapping[str, float]
    notes: tuple[str, ...]
    kwh: float = 0.0
    pue: float | None = None
    rates: tuple[tuple[str, prices.Price], ...] = ()

    @property
    def money(self) -> float:
        return sum(line.money for line in self.lines)

    @property
    def known_money(self) -> float | None:
        return _total(self.lines).known_money


@dataclass(frozen=True, slots=True)
class _GpuPrice:
    """A GPU of a pool and what an hour of it costs; None is a hole in the book."""

    model: str
    pool: str
    price: prices.Price | None

    @property
    def called(self) -> str:
        return self.model or UNKNOWN_MODEL


@dataclass(frozen=True, slots=True, eq=False)
class _PricedRows:
    """Money of each row of a table; `offer` is the place of its GPU in `offers`, `pool` what a row of nobody costs."""

    offers: Sequence[_GpuPrice]
    offer: npt.NDArray[np.int64]
    direct: Money
    energy: Money
    pool: Money
    wasted: Money
    unpriced: npt.NDArray[np.float64]
    is_nobody: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class UsageBill:
    """A table with its prices and with what each row bears of the shared cost, worked out once for every view of it."""

    table: usage.UsageTable
    book: prices.PriceBook
    policy: Policy
    rows: _PricedRows
    shared: Money
    # Overhead that no row bears.
    left: float
    items: Mapping[str, float]
    notes: tuple[str, ...]


def price_usage(
    pieces: Sequence[usage.UsageTable], book: prices.PriceBook, *, policy: Policy = Policy.NONE
) -> UsageBill:
    """The bill of a time in pieces, each at the prices of its beginning: those of `Book.stretches`, or one."""
    table = usage.join_tables(pieces)
    rows = _priced(pieces, table, book)
    # Before the first record nothing is claimed, no overhead either.
    overhead = book.overhead_per_month * table.recorded_hours / MONTH_HOURS
    shared, left = _split(table, rows, overhead, policy=policy)
    notes = [*table.notes, *book.problems, *_power(table, book)]
    if policy is not Policy.NONE and left + rows.pool.sum() and not shared[~rows.is_nobody].any():
        notes.append(f"nobody can be charged by {policy}: the shared cost stays a line of its own")
    unmeasured = float(table.amounts[:, usage.UNMEASURED].sum())
    if policy is Policy.USE and unmeasured > LEAST_HOURS:
        notes.append(f"{unmeasured:,.1f} allocated GPU-hours are unmeasured and bear nothing of the shared cost")
    return UsageBill(table, book, policy, rows, shared, left, _items(table, rows, overhead), tuple(notes))


def report(
    table: usage.UsageTable,
    book: prices.PriceBook,
    by: Sequence[str],
    *,
    policy: Policy = Policy.NONE,
    of: Mapping[str, str] | None = None,
) -> CostReport:
    """The bill of a table, by some dimensions; `of` keeps some of its lines, with their share of what is shared."""
    return report_bill(price_usage([table], book, policy=policy), by, of=of)


def report_bill(
    whole: UsageBill, by: Sequence[str], *, of: Mapping[str, str] | None = None, chosen: Sequence[int] | None = None
) -> CostReport:
    """A bill by some dimensions; `chosen` are the rows that are `of` somebody, where the caller knows them."""
    table, rows = whole.table, whole.rows
    picked = np.array(summary.matching_rows(table, of or {}) if chosen is None else chosen, dtype=np.int64)
    lines = _lines(whole, by, picked)
    if whole.left and not of:
        nobody = (usage.NOBODY,) * len(by)
        lines.setdefault(nobody, CostLine(nobody, np.zeros(len(usage.PARTS)))).shared += whole.left
    ordered = sorted(lines.values(), key=lambda line: (usage.NOBODY in line.names, -line.money, line.names))
    notes = [*whole.notes, *_holes(whole, picked)]
    if of and len(table.keys) and not len(picked):
        notes.append(summary.no_match_note(of))
    return CostReport(
        table.since,
        table.until,
        table.recorded_hours,
        tuple(by),
        whole.book.currency,
        whole.policy,
        tuple(ordered),
        # A line of somebody bears nothing of it in a showback.
        {} if of and whole.policy is Policy.NONE else whole.items,
        _unpriced(rows, picked),
        tuple(notes),
        sum(float(line.hours[usage.KWH]) for line in ordered),
        whole.book.pue,
        _rates(rows, picked),
    )


def limit_lines(found: CostReport, *, most: int = summary.MOST_LINES) -> CostReport:
    """Of more lines the last ones are one, so that the sum stays whole."""
    kept, rest = found.lines[: most - 1], found.lines[most - 1 :]
    if len(rest) < 2:
        return found
    note = f"{len(rest):,} of {len(found.lines):,} lines are one, {summary.REST}; --of asks about a part"
    lines = (*kept, _total(rest, names=(summary.REST,) * len(found.by)))
    return replace(found, lines=lines, notes=(*found.notes, note))


def _offers(rows: _PricedRows, picked: Rows) -> list[_GpuPrice]:
    return [rows.offers[at] for at in np.unique(rows.offer[picked]).tolist()]


def _rates(rows: _PricedRows, picked: Rows) -> tuple[tuple[str, prices.Price], ...]:
    found = {
        one.called + (f", pool {one.pool}" if one.pool else "") + one.price.start_text: one.price
        for one in _offers(rows, picked)
        if one.price is not None
    }
    return tuple(sorted(found.items()))


def _priced(pieces: Sequence[usage.UsageTable], table: usage.UsageTable, book: prices.PriceBook) -> _PricedRows:
    places: dict[tuple[str, str, float], int] = {}
    keys = ((key, piece.since) for piece in pieces for key in piece.keys)
    at = [places.setdefault((key[MODEL], key[POOL], since), len(places)) for key, since in keys]
    offers = [_GpuPrice(model, pool, book.rate(model, pool, at=since)) for model, pool, since in places]
    offer = np.array(at, dtype=np.int64)
    # Power is in the price of what is rented; own hardware pays for it apart.
    kwh = (book.power_per_kwh or 0.0) * (book.pue or 1.0)
    powers = [kwh if one.price is not None and one.price.kind is prices.PriceKind.OWN else 0.0 for one in offers]
    hourly = np.array([0.0 if one.price is None else one.price.per_gpu_hour for one in offers])[offer]
    is_hole = np.array([one.price is None for one in offers], dtype=bool)[offer]
    is_nobody = np.array([key[TEAM] == usage.NOBODY for key in table.keys], dtype=bool)
    amounts = table.amounts
    energy = amounts[:, usage.KWH] * np.array(powers)[offer]
    unheld = amounts[:, [usage.IDLE, usage.LOST, usage.UNKNOWN]].sum(axis=1)
    return _PricedRows(
        offers,
        offer,
        amounts[:, usage.ALLOCATED] * hourly,
        np.where(is_nobody, 0.0, energy),
        unheld * hourly + np.where(is_nobody, energy, 0.0),
        amounts[:, usage.WASTED] * hourly,
        np.where(is_hole, unheld + amounts[:, usage.ALLOCATED], 0.0),
        is_nobody,
    )


def _split(table: usage.UsageTable, rows: _PricedRows, overhead: float, *, policy: Policy) -> tuple[Money, float]:
    """What each row bears of the shared cost, and what no row does. Rows, so that any way to group them sums alike."""
    column = usage.USED if policy is Policy.USE else usage.ALLOCATED
    weights = np.where(rows.is_nobody, 0.0, table.amounts[:, column])
    weights[weights < LEAST_HOURS] = 0.0
    if policy is Policy.EVEN:
        of_team: dict[str, float] = {}
        for key, weight in zip(table.keys, weights.tolist(), strict=True):
            of_team[key[TEAM]] = of_team.get(key[TEAM], 0.0) + weight
        weights /= np.array([of_team[key[TEAM]] or 1.0 for key in table.keys])
    if policy is Policy.NONE or weights.sum() <= 0:
        return rows.pool, overhead
    # A slice that nobody holds of a GPU that someone does is in the row of nobody, so nothing is split twice.
    whole = overhead + float(rows.pool.sum())
    shares: Money = whole * weights / weights.sum()
    return shares, 0.0


def _lines(whole: UsageBill, by: Sequence[str], picked: Rows) -> dict[tuple[str, ...], CostLine]:
    table, rows = whole.table, whole.rows
    wanted = [summary.dimension_index(name) for name in by]
    places: dict[tuple[str, ...], int] = {}
    named = (tuple(usage.shown(table.keys[at][place]) for place in wanted) for at in picked.tolist())
    line = np.fromiter((places.setdefault(names, len(places)) for names in named), np.int64, count=len(picked))
    hours = np.zeros((len(places), len(usage.PARTS)))
    np.add.at(hours, line, table.amounts[picked])
    sums = [
        np.bincount(line, column[picked], minlength=len(places)).tolist()
        for column in (rows.direct, rows.energy, whole.shared, rows.wasted, rows.unpriced)
    ]
    return {names: CostLine(names, hours[at], *(column[at] for column in sums)) for names, at in places.items()}


def _items(table: usage.UsageTable, rows: _PricedRows, overhead: float) -> dict[str, float]:
    """The shared cost, item by item; a reserved GPU costs the same when nobody holds it, and says so."""
    found: dict[str, float] = {}
    columns = (("idle", usage.IDLE), ("lost", usage.LOST), ("unknown", usage.UNKNOWN))
    for at, offer in enumerate(rows.offers):
        if offer.price is None:
            continue
        own = rows.offer == at
        word = "reserved, " if offer.price.kind is prices.PriceKind.RESERVED else ""
        unheld = 0.0
        for item, column in columns:
            money = float(table.amounts[own, column].sum()) * offer.price.per_gpu_hour
            unheld += money
            found[word + item] = found.get(word + item, 0.0) + money
        found["energy of idle GPUs"] = found.get("energy of idle GPUs", 0.0) + float(rows.pool[own].sum()) - unheld
    found["overhead"] = overhead
    return {item: money for item, money in found.items() if abs(money) > LEAST_MONEY}


def _unpriced(rows: _PricedRows, picked: Rows) -> dict[str, float]:
    hours = np.bincount(rows.offer[picked], rows.unpriced[picked], minlength=len(rows.offers)).tolist()
    holes: dict[str, float] = {}
    for offer, unpriced in zip(rows.offers, hours, strict=True):
        if unpriced > 0:
            holes[offer.called] = holes.get(offer.called, 0.0) + unpriced
    return holes


def _holes(whole: UsageBill, picked: Rows) -> list[str]:
    instead: dict[str, str] = {}
    stand_ins: dict[str, prices.Price] = {}
    for offer in _offers(whole.rows, picked):
        if offer.price is None and offer.called not in instead:
            has = whole.book.available_prices(offer.model, offer.pool)
            instead[offer.called] = f"; {has}" if has else ""
        elif offer.price is not None and offer.price.source == prices.FALLBACK:
            stand_ins[offer.called] = offer.price
    return [
        f"{hours:,.1f} GPU-hours of {model} have no price and are in no sum of money{instead[model]}"
        for model, hours in sorted(_unpriced(whole.rows, picked).items())
    ] + [
        f"{model} has no price in the book: {price.source} = {price.per_gpu_hour:g} stands in"
        for model, price in sorted(stand_ins.items())
    ]


def _power(table: usage.UsageTable, book: prices.PriceBook) -> list[str]:
    is_own = book.kind is prices.PriceKind.OWN or any(pool.kind is prices.PriceKind.OWN for pool in book.pools.values())
    if is_own and book.power_per_kwh is None and table.amounts[:, usage.KWH].any():
        return ["the book has no power_per_kwh: energy of own hardware is in no sum of money"]
    return []


def report_as_json(found: CostReport) -> dict[str, object]:
    """A report as `--json` and GET /api/cost give it."""
    return {
        "since": found.since,
        "until": found.until,
        "recorded_hours": found.recorded_hours,
        "by": list(found.by),
        "currency": found.currency,
        "policy": found.policy.value,
        "policy_words": POLICY_WORDS[found.policy],
        "lines": [_plain_line(line, found.by) for line in found.lines],
        "total": _plain_line(_total(found.lines), ()),
        "money": found.known_money,
        "shared": dict(found.shared),
        "holes": dict(found.holes),
        "kwh": found.kwh,
        "pue": found.pue,
        "kwh_with_pue": None if found.pue is None else found.kwh * found.pue,
        "rates": [{"of": name, **_plain_price(price)} for name, price in found.rates],
        "notes": list(found.notes),
        "words": dict(usage.WORDS),
    }


def _total(lines: Sequence[CostLine], names: tuple[str, ...] = ()) -> CostLine:
    hours = np.sum([line.hours for line in lines], axis=0) if lines else np.zeros(len(usage.PARTS))
    parts = ("direct", "energy", "shared", "wasted", "unpriced_hours")
    return CostLine(names, hours, *(sum(getattr(line, part) for line in lines) for part in parts))


def _plain_price(price: prices.Price) -> dict[str, object]:
    return {
        "kind": price.kind.value,
        "per_gpu_hour": price.per_gpu_hour,
        "source": price.source,
        "checked": price.checked,
    }


def _plain_line(line: CostLine, by: Sequence[str]) -> dict[str, object]:
    parts: dict[str, float | None] = {
        "direct": line.direct,
        "energy": line.energy,
        "shared": line.shared,
        "wasted_money": line.wasted,
    }
    if not line.has_price:
        parts |= dict.fromkeys(("direct", "energy", "wasted_money"))
    return {
        **dict(zip(by, line.names, strict=True)),
        "money": line.known_money,
        **parts,
        "unpriced_hours": line.unpriced_hours,
        "hours": summary.plain_amounts(line.hours),
    }
