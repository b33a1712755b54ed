"""Money: a table of usage times a price book, with what belongs to nobody split by a named policy, to the last cent.

Showback shows what each owner's own hours cost and leaves idle, lost and unknown GPUs and overhead as lines of their
own; chargeback is the same with those lines split. Either way the lines sum to the bill. Hours of a GPU without a price
are listed as holes and are in no sum of money. `statement` and the command line show a `Report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
# Below a hundredth of a cent an item is the rounding of sums.
LEAST_MONEY = 1e-4
# Idle money is named owner by owner; a list longer than this nobody reads.
MOST_WASTE = 20
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
class Line:
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


@dataclass(frozen=True, slots=True)
class Report:
    """A bill. `shared` itemises what nobody held; it is part of the lines of `(nobody)` unless a policy split it.

    `recorded_hours` are those since records begin: what an hour costs is the money by these, not by the whole window.
    """

    since: float
    until: float
    recorded_hours: float
    by: tuple[str, ...]
    currency: str
    policy: Policy
    lines: tuple[Line, ...]
    shared: Mapping[str, float]
    holes: Mapping[str, float]
    notes: tuple[str, ...]
    kwh: float = 0.0
    pue: float | None = None
    rates: tuple[tuple[str, prices.Price], ...] = ()

    @property
    def money(self) -> float:
        return sum(line.money for line in self.lines)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Money of each row of a table; `pool` is what a row of nobody costs, `price` None is a hole."""

    price: list[prices.Price | None]
    direct: Money
    energy: Money
    pool: Money
    wasted: Money
    is_nobody: npt.NDArray[np.bool_]


def report(
    table: usage.Table,
    book: prices.Book,
    by: Sequence[str],
    *,
    policy: Policy = Policy.NONE,
    of: Mapping[str, str] | None = None,
) -> Report:
    """The bill of a table, by some dimensions; `of` keeps some of its lines, with their share of what is shared."""
    rows = _priced(table, book)
    overhead = book.overhead_per_month * table.hours / MONTH_HOURS
    shared, left = _split(table, rows, overhead, policy=policy)
    chosen = _chosen(table, of or {})
    lines = _lines(table, rows, shared, by=by, chosen=chosen)
    if left and not of:
        nobody = (usage.NOBODY,) * len(by)
        lines.setdefault(nobody, Line(nobody, np.zeros(len(usage.PARTS)))).shared += left
    ordered = sorted(lines.values(), key=lambda line: (usage.NOBODY in line.names, -line.money, line.names))
    notes = [*table.notes, *book.problems, *_holes(table, rows, chosen, book), *_power(table, book)]
    if of and len(table.keys) and not chosen:
        notes.append(summary.nothing_of(of))
    if policy is not Policy.NONE and left + rows.pool.sum() and not shared[~rows.is_nobody].any():
        notes.append(f"nobody can be charged by {policy}: the shared cost stays a line of its own")
    return Report(
        table.since,
        table.until,
        table.recorded_hours,
        tuple(by),
        book.currency,
        policy,
        tuple(ordered),
        # A line of somebody bears nothing of it in a showback.
        {} if of and policy is Policy.NONE else _items(table, rows, overhead),
        _unpriced(table, rows, chosen),
        tuple(notes),
        sum(float(line.hours[usage.KWH]) for line in ordered),
        book.pue,
        _rates(table, rows, chosen),
    )


def _chosen(table: usage.Table, of: Mapping[str, str]) -> list[int]:
    asked = {summary.dimension(name): value for name, value in of.items()}
    return [
        at
        for at, key in enumerate(table.keys)
        if all(usage.shown(key[place]) == value for place, value in asked.items())
    ]


def _rates(table: usage.Table, rows: _Rows, chosen: Sequence[int]) -> tuple[tuple[str, prices.Price], ...]:
    found: dict[str, prices.Price] = {}
    for at in chosen:
        price, key = rows.price[at], table.keys[at]
        if price is not None:
            found[(key[MODEL] or UNKNOWN_MODEL) + (f", pool {key[POOL]}" if key[POOL] else "")] = price
    return tuple(sorted(found.items()))


def _priced(table: usage.Table, book: prices.Book) -> _Rows:
    known: dict[tuple[str, str], prices.Price | None] = {}
    for key in table.keys:
        if (key[MODEL], key[POOL]) not in known:
            known[key[MODEL], key[POOL]] = book.rate(key[MODEL], key[POOL])
    found = [known[key[MODEL], key[POOL]] for key in table.keys]
    hourly = np.array([0.0 if price is None else price.per_gpu_hour for price in found])
    # Power is in the price of what is rented; own hardware pays for it apart.
    kwh = (book.power_per_kwh or 0.0) * (book.pue or 1.0)
    power = np.array([kwh if price is not None and price.kind is prices.Kind.OWN else 0.0 for price in found])
    is_nobody = np.array([key[TEAM] == usage.NOBODY for key in table.keys], dtype=bool)
    amounts = table.amounts
    energy = amounts[:, usage.KWH] * power
    unheld = amounts[:, [usage.IDLE, usage.LOST, usage.UNKNOWN]].sum(axis=1) * hourly
    return _Rows(
        found,
        amounts[:, usage.ALLOCATED] * hourly,
        np.where(is_nobody, 0.0, energy),
        unheld + np.where(is_nobody, energy, 0.0),
        amounts[:, usage.WASTED] * hourly,
        is_nobody,
    )


def _split(table: usage.Table, rows: _Rows, overhead: float, *, policy: Policy) -> tuple[Money, float]:
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


def _lines(
    table: usage.Table, rows: _Rows, shared: Money, *, by: Sequence[str], chosen: Sequence[int]
) -> dict[tuple[str, ...], Line]:
    wanted = [summary.dimension(name) for name in by]
    lines: dict[tuple[str, ...], Line] = {}
    for at in chosen:
        key = table.keys[at]
        names = tuple(usage.shown(key[place]) for place in wanted)
        line = lines.get(names)
        if line is None:
            line = lines[names] = Line(names, np.zeros(len(usage.PARTS)))
        line.hours += table.amounts[at]
        line.direct += float(rows.direct[at])
        line.energy += float(rows.energy[at])
        line.shared += float(shared[at])
        line.wasted += float(rows.wasted[at])
        if rows.price[at] is None:
            line.unpriced_hours += usage.total(table.amounts[at])
    return lines


def _items(table: usage.Table, rows: _Rows, overhead: float) -> dict[str, float]:
    """The shared cost, item by item; a reserved GPU costs the same when nobody holds it, and says so."""
    found: dict[str, float] = {}
    columns = (("idle", usage.IDLE), ("lost", usage.LOST), ("unknown", usage.UNKNOWN))
    for at, price in enumerate(rows.price):
        if price is None or not rows.pool[at]:
            continue
        word = "reserved, " if price.kind is prices.Kind.RESERVED else ""
        unheld = 0.0
        for item, column in columns:
            money = float(table.amounts[at, column]) * price.per_gpu_hour
            unheld += money
            found[word + item] = found.get(word + item, 0.0) + money
        found["energy of idle GPUs"] = found.get("energy of idle GPUs", 0.0) + float(rows.pool[at]) - unheld
    found["overhead"] = overhead
    return {item: money for item, money in found.items() if abs(money) > LEAST_MONEY}


def _unpriced(table: usage.Table, rows: _Rows, chosen: Sequence[int]) -> dict[str, float]:
    holes: dict[str, float] = {}
    for at in chosen:
        model, hours = table.keys[at][MODEL] or UNKNOWN_MODEL, usage.total(table.amounts[at])
        if rows.price[at] is None and hours > 0:
            holes[model] = holes.get(model, 0.0) + hours
    return holes


def _holes(table: usage.Table, rows: _Rows, chosen: Sequence[int], book: prices.Book) -> list[str]:
    instead: dict[str, str] = {}
    for at in chosen:
        model, pool = table.keys[at][MODEL], table.keys[at][POOL]
        if rows.price[at] is None and model not in instead:
            has = book.instead(model, pool)
            instead[model] = f"; {has}" if has else ""
    stand_ins = {
        table.keys[at][MODEL] or UNKNOWN_MODEL: price
        for at in chosen
        if (price := rows.price[at]) is not None and price.source == prices.FALLBACK
    }
    return [
        f"{hours:,.1f} GPU-hours of {model} have no price and are in no sum of money{instead.get(model, '')}"
        for model, hours in sorted(_unpriced(table, rows, chosen).items())
    ] + [
        f"{model} has no price in the book: {price.source} = {price.per_gpu_hour:g} stands in"
        for model, price in sorted(stand_ins.items())
    ]


def _power(table: usage.Table, book: prices.Book) -> list[str]:
    is_own = book.kind is prices.Kind.OWN or any(pool.kind is prices.Kind.OWN for pool in book.pools.values())
    if is_own and book.power_per_kwh is None and table.amounts[:, usage.KWH].any():
        return ["the book has no power_per_kwh: energy of own hardware is in no sum of money"]
    return []


@dataclass(frozen=True, slots=True)
class Waste:
    """GPUs that somebody holds and does not use, with who that is and what it costs; None where there is no price."""

    team: str
    user: str
    job: str
    gpu_hours: float
    money: float | None


def wasted(table: usage.Table, book: prices.Book, *, most: int = MOST_WASTE) -> list[Waste]:
    """Idle money with its owner named, the most expensive first."""
    team, user, job, space = (summary.dimension(name) for name in ("team", "user", "job", "namespace"))
    hours: dict[tuple[str, str, str], float] = {}
    money: dict[tuple[str, str, str], float] = {}
    for key, row in zip(table.keys, table.amounts, strict=True):
        if row[usage.WASTED] <= 0:
            continue
        called = f"{key[space]}/{key[job]}" if key[space] and key[job] else key[job]
        owner = (usage.shown(key[team]), usage.shown(key[user]), usage.shown(called))
        hours[owner] = hours.get(owner, 0.0) + float(row[usage.WASTED])
        price = book.rate(key[MODEL], key[POOL])
        if price is not None:
            money[owner] = money.get(owner, 0.0) + float(row[usage.WASTED]) * price.per_gpu_hour
    found = [Waste(*owner, gpu_hours, money.get(owner)) for owner, gpu_hours in hours.items()]
    return sorted(found, key=lambda one: (-(one.money or 0.0), -one.gpu_hours, one.job))[:most]


def plain(found: Report) -> dict[str, object]:
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
        "money": found.money,
        "shared": dict(found.shared),
        "holes": dict(found.holes),
        "kwh": found.kwh,
        "pue": found.pue,
        "kwh_with_pue": None if found.pue is None else found.kwh * found.pue,
        "rates": [{"of": name, **_plain_price(price)} for name, price in found.rates],
        "notes": list(found.notes),
        "words": dict(usage.WORDS),
    }


def _total(lines: Sequence[Line]) -> Line:
    hours = np.sum([line.hours for line in lines], axis=0) if lines else np.zeros(len(usage.PARTS))
    names = ("direct", "energy", "shared", "wasted", "unpriced_hours")
    return Line((), hours, *(sum(getattr(line, name) for line in lines) for name in names))


def _plain_price(price: prices.Price) -> dict[str, object]:
    return {
        "kind": price.kind.value,
        "per_gpu_hour": price.per_gpu_hour,
        "source": price.source,
        "checked": price.checked,
    }


def _plain_line(line: Line, by: Sequence[str]) -> dict[str, object]:
    return {
        **dict(zip(by, line.names, strict=True)),
        "money": line.money,
        "direct": line.direct,
        "energy": line.energy,
        "shared": line.shared,
        "wasted_money": line.wasted,
        "unpriced_hours": line.unpriced_hours,
        "hours": summary.plain_amounts(line.hours),
    }
