"""The price book: what an hour of a GPU costs, by model, region and how it is paid for; packs/prices.toml, or a file.

A book is TOML of the shipped form, or CSV as OpenCost reads it. Holes are allowed: `Book.rate` answers None for a GPU
that has no price, and `accounting.cost` lists its hours without money. Nothing here converts currencies.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from importlib import resources
from typing import Any

from watchkeeper.errors import PackError, quote
from watchkeeper.kit import csv_text

HOURS_A_YEAR = 8766.0
# https://github.com/opencost/opencost, configs/pricing_schema.csv
OPENCOST_COLUMNS = ("InstanceID", "Region", "AssetClass", "MarketPriceHourly")
# Rows that are named; the rest is counted.
MOST_NAMED = 20
FALLBACK = "[cost] dollars_per_gpu_hour"


class PriceKind(StrEnum):
    """How a GPU is paid for."""

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    OWN = "own"


# Model, kind, region and first moment: what a book has one price for.
PriceKey = tuple[str, PriceKind, str, float]


@dataclass(frozen=True, slots=True)
class Price:
    """One row of a book; `model` is a GPU's name or a part of it, an empty region is any.

    It holds from the moment `begins` until one of the same model, kind and region does.
    """

    model: str
    kind: PriceKind
    per_gpu_hour: float
    region: str = ""
    source: str = ""
    checked: str = ""
    begins: float = -math.inf

    @property
    def start_text(self) -> str:
        """` from 2026-11-15`, or nothing for one that always held."""
        return f" from {datetime.fromtimestamp(self.begins, UTC):%Y-%m-%d}" if math.isfinite(self.begins) else ""


@dataclass(frozen=True, slots=True)
class PricePool:
    name: str
    kind: PriceKind | None = None
    region: str = ""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All prices of a fleet. `problems` are rows that could not be used; `fallback` prices what has no row."""

    currency: str = "USD"
    pue: float | None = None
    power_per_kwh: float | None = None
    kind: PriceKind = PriceKind.ON_DEMAND
    prices: tuple[Price, ...] = ()
    pools: Mapping[str, PricePool] = field(default_factory=dict)
    overhead_per_month: float = 0.0
    budgets: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    fallback: float | None = None
    where: str = "packs/prices.toml"

    def price_periods(self, since: float, until: float) -> list[tuple[float, float]]:
        """A window cut where a price of the book begins."""
        inside = sorted({price.begins for price in self.prices if since < price.begins < until})
        return list(itertools.pairwise([since, *inside, until]))

    def rate(self, model: str, pool: str, *, at: float = math.inf) -> Price | None:
        """The price of an hour of a GPU at a moment, or the last that the book has; None for a hole.

        The longest name that fits, its own region before any, then the newest that has begun.
        """
        about = self.pools.get(pool, PricePool(pool))
        kind = about.kind or self.kind
        name = model.casefold()
        begun = [one for one in self.prices if one.kind is kind and one.begins <= at]
        known = [one for one in begun if _fits(one.model.casefold(), name)]
        fitting = [price for price in known if price.region in ("", about.region)]
        # Of a pool whose region nobody said: the only one that the book has for this GPU.
        if not fitting and not about.region and len({price.region for price in known}) == 1:
            fitting = known
        if fitting:
            return max(fitting, key=lambda price: (bool(price.region), len(price.model), price.begins))
        if self.fallback is not None:
            return Price(model, kind, self.fallback, source=FALLBACK)
        return None

    def available_prices(self, model: str, pool: str) -> str:
        """What the book has of a GPU for which `rate` has none; empty where it has nothing of it."""
        about, name = self.pools.get(pool, PricePool(pool)), model.casefold()
        known = [one for one in self.prices if _fits(one.model.casefold(), name)]
        has = ", ".join(dict.fromkeys(_paid(one.kind, one.region) + one.start_text for one in known))
        return f"the book has {has}, and these are {_paid(about.kind or self.kind, about.region)}" if known else ""


def _paid(kind: PriceKind, region: str) -> str:
    return f"{kind.value} in {region}" if region else kind.value


def _fits(wanted: str, name: str) -> bool:
    """`h100` fits `nvidia h100 80gb hbm3` and not `nvidia gh1000`: whole words, in their order."""
    words = name.replace("-", " ").replace("_", " ").split()
    asked = wanted.replace("-", " ").replace("_", " ").split()
    return bool(asked) and any(words[at : at + len(asked)] == asked for at in range(len(words)))


def shipped_book() -> PriceBook:
    text = (resources.files("watchkeeper.packs") / "prices.toml").read_text(encoding="utf-8")
    return read_book(text, where="packs/prices.toml")


def read_book(text: str, *, where: str) -> PriceBook:
    """A book in TOML, or OpenCost's CSV; PackError where it is neither, problems for single rows."""
    text = text.removeprefix("\ufeff")
    header = text.partition("\n")[0].casefold()
    if all(column.casefold() in header for column in OPENCOST_COLUMNS):
        return _of_opencost(text, csv_text.detect_separator(header), where=where)
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        remedy = f"Write it like packs/prices.toml, or as OpenCost's CSV with {', '.join(OPENCOST_COLUMNS)}"
        raise PackError(f"this is no price book: {error}", where=where, remedy=remedy) from error
    return _of_toml(plain, where=where)


def _of_toml(plain: Mapping[str, Any], *, where: str) -> PriceBook:
    problems = [f"{where}: {name}: no such key; it is not used" for name in sorted(set(plain) - KNOWN_KEYS)]
    prices: dict[PriceKey, Price] = {}
    for at, row in enumerate(_tables(plain, "price", where), start=1):
        called = f"{where}: price {at} ({quote(row.get('model', ''))})"
        try:
            price = _price(row)
        except (KeyError, ValueError, TypeError) as error:
            problems.append(f"{called}: {_said(error)}; it is not used")
            continue
        problems += _strange(row, PRICE_KEYS, called)
        if _offer(price) in prices:
            problems.append(f"{called}: it has a price already; it is not used")
        prices.setdefault(_offer(price), price)
    pools: dict[str, PricePool] = {}
    for at, row in enumerate(_tables(plain, "pool", where), start=1):
        called = f"{where}: pool {at}"
        try:
            kind = _kind(row["kind"]) if "kind" in row else None
            pools[str(row["name"])] = PricePool(str(row["name"]), kind, str(row.get("region", "")))
        except (KeyError, ValueError) as error:
            problems.append(f"{called}: {_said(error)}; it is not used")
            continue
        problems += _strange(row, POOL_KEYS, called)
    budgets: dict[str, float] = {}
    limits = plain.get("budgets", {})
    if not isinstance(limits, dict):
        raise PackError("`budgets` must be written as [budgets], with a line for each team", where=where)
    for team, amount in limits.items():
        try:
            budgets[team] = _money(amount, "budget")
        except (ValueError, TypeError) as error:
            problems.append(f"{where}: budgets.{team[:60]}: {error}; it is not used")
    currency = plain.get("currency", "USD")
    try:
        if not isinstance(currency, str):
            raise ValueError(f"currency of {quote(currency)} must be text")
        return PriceBook(
            currency,
            None if "pue" not in plain else _at_least(plain["pue"], "pue", 1.0),
            None if "power_per_kwh" not in plain else _money(plain["power_per_kwh"], "power_per_kwh"),
            _kind(plain.get("kind", PriceKind.ON_DEMAND)),
            tuple(prices.values()),
            pools,
            _money(plain.get("overhead_per_month", 0.0), "overhead_per_month"),
            budgets,
            _first(problems, where),
            where=where,
        )
    except (ValueError, TypeError) as error:
        raise PackError(str(error), where=where, remedy="See docs/howto/cost.md for the keys") from error


KNOWN_KEYS = frozenset(
    {"currency", "pue", "pue_source", "power_per_kwh", "power_source", "kind", "price", "pool", "overhead_per_month"}
    | {"budgets"}
)
PRICE_KEYS = frozenset(
    {"model", "kind", "region", "per_gpu_hour", "source", "checked", "purchase_per_gpu", "residual_per_gpu", "years"}
    | {"overhead_per_gpu_hour", "from"}
)
POOL_KEYS = frozenset({"name", "kind", "region"})


def _first(problems: list[str], where: str) -> tuple[str, ...]:
    """The first rows by name, and how many more there are."""
    more = len(problems) - MOST_NAMED
    return (*problems[:MOST_NAMED], f"{where}: and {more:,} more like these") if more > 0 else tuple(problems)


def _strange(row: Mapping[str, Any], known: frozenset[str], called: str) -> list[str]:
    """A key that was mistyped changes what a row says, so it is named."""
    return [f"{called}: no such key: {name[:60]}; it is used without" for name in sorted(set(row) - known)]


def _said(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _offer(price: Price) -> PriceKey:
    return price.model.casefold(), price.kind, price.region, price.begins


def _kind(value: Any) -> PriceKind:
    if value not in list(PriceKind):
        raise ValueError(f"kind of {quote(value)} must be one of {', '.join(PriceKind)}")
    return PriceKind(value)


def _tables(plain: Mapping[str, Any], name: str, where: str) -> Sequence[Mapping[str, Any]]:
    rows = plain.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PackError(f"`{name}` must be written as [[{name}]]", where=where)
    return rows


def _price(row: Mapping[str, Any]) -> Price:
    kind = _kind(row.get("kind", PriceKind.ON_DEMAND))
    model = str(row["model"])
    if not model.strip():
        raise ValueError("a price needs a model")
    if kind is PriceKind.OWN and "per_gpu_hour" not in row:
        bought = _money(row["purchase_per_gpu"], "purchase_per_gpu")
        left = _money(row.get("residual_per_gpu", 0), "residual_per_gpu")
        years = _at_least(row["years"], "years", 0.1)
        if left > bought:
            raise ValueError(f"residual_per_gpu of {left:g} is above purchase_per_gpu of {bought:g}")
        hourly = (bought - left) / (years * HOURS_A_YEAR)
    else:
        hourly = _money(row["per_gpu_hour"], "per_gpu_hour")
    hourly += _money(row.get("overhead_per_gpu_hour", 0), "overhead_per_gpu_hour")
    checked = row.get("checked", "")
    day = checked.isoformat() if isinstance(checked, date) else str(checked)
    source, region = str(row.get("source", "")), str(row.get("region", ""))
    return Price(model, kind, hourly, region, source, day, -math.inf if "from" not in row else _midnight(row["from"]))


def _midnight(day: Any) -> float:
    if not isinstance(day, date) or isinstance(day, datetime):
        raise ValueError(f"from of {quote(day)} must be a day such as 2026-11-15, without quotation marks")
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def _money(value: Any, name: str) -> float:
    return _at_least(value, name, 0.0)


def _at_least(value: Any, name: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise ValueError(f"{name} of {quote(value)} must be a number of at least {least:g}")
    return float(value)


def _of_opencost(text: str, separator: str, *, where: str) -> PriceBook:
    """Rows of asset class `gpu`; a row prices a node or a volume otherwise, which no GPU-hour can be read from."""
    prices: dict[PriceKey, Price] = {}
    problems: list[str] = []
    others = 0
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    for row in reader:
        cells = {str(name).strip().casefold(): cell for name, cell in row.items() if isinstance(cell, str)}
        instance, region, asset, hourly = (cells.get(name.casefold(), "").strip() for name in OPENCOST_COLUMNS)
        if asset.casefold() != "gpu":
            others += 1
            continue
        try:
            if not instance:
                raise ValueError("a row of a GPU needs an InstanceID")
            number = float(hourly) if csv_text.NUMBER.fullmatch(hourly) else hourly
            price = Price(instance, PriceKind.ON_DEMAND, _money(number, "MarketPriceHourly"), region, "OpenCost CSV")
            if _offer(price) in prices:
                raise ValueError(f"{quote(instance)} has a price already")
        except ValueError as error:
            problems.append(f"{where}:{reader.line_num}: {error}; it is not used")
            continue
        prices[_offer(price)] = price
    left = [f"{where}: {others:,} rows price nodes or volumes; only those of AssetClass gpu are used"] if others else []
    return PriceBook(prices=tuple(prices.values()), problems=(*_first(problems, where), *left), where=where)
