"""The price book: price per GPU-hour by model, region and kind of payment, from packs/prices.toml or a file.

A book is TOML in the shipped format, or OpenCost's CSV. Prices may be missing: `PriceBook.rate` then returns None, and
`accounting.cost` lists those hours without a cost. Currencies are not converted.
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
# Problems that are listed; the rest is counted.
MOST_NAMED = 20
FALLBACK = "[cost] dollars_per_gpu_hour"


class PriceKind(StrEnum):
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    OWN = "own"


# Model, kind, region and start: a book has one price for each.
PriceKey = tuple[str, PriceKind, str, float]


@dataclass(frozen=True, slots=True)
class Price:
    """One row of a book; `model` is a GPU's name or a part of it, an empty region matches any."""

    model: str
    kind: PriceKind
    per_gpu_hour: float
    region: str = ""
    source: str = ""
    checked: str = ""
    # Valid from then until the next price of the same model, kind and region.
    begins: float = -math.inf

    @property
    def key(self) -> PriceKey:
        return self.model.casefold(), self.kind, self.region, self.begins

    @property
    def start_text(self) -> str:
        """` from 2026-11-15`, or empty for a price without a start."""
        return f" from {datetime.fromtimestamp(self.begins, UTC):%Y-%m-%d}" if math.isfinite(self.begins) else ""


@dataclass(frozen=True, slots=True)
class PricePool:
    name: str
    kind: PriceKind | None = None
    region: str = ""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All prices of a fleet. `problems` are rows that were ignored; `fallback` is the price of models without a row."""

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
        """The window, split where a price of the book begins."""
        inside = sorted({price.begins for price in self.prices if since < price.begins < until})
        return list(itertools.pairwise([since, *inside, until]))

    def rate(self, model: str, pool: str, *, at: float = math.inf) -> Price | None:
        """The price of a GPU-hour at a time, by default the newest; None if the book has none."""
        # The pool's region is preferred, then the longest model name, then the newest price.
        pool_terms = self.pools.get(pool, PricePool(pool))
        kind = pool_terms.kind or self.kind
        name = model.casefold()
        effective = [price for price in self.prices if price.kind is kind and price.begins <= at]
        of_model = [price for price in effective if _matches_model(price.model.casefold(), name)]
        fitting = [price for price in of_model if price.region in ("", pool_terms.region)]
        # A pool without a region gets the only region that the book has for this GPU.
        if not fitting and not pool_terms.region and len({price.region for price in of_model}) == 1:
            fitting = of_model
        if fitting:
            return max(fitting, key=lambda price: (bool(price.region), len(price.model), price.begins))
        if self.fallback is not None:
            return Price(model, kind, self.fallback, source=FALLBACK)
        return None

    def available_prices(self, model: str, pool: str) -> str:
        """Explain which prices the book has for a GPU for which `rate` found none; empty without any."""
        pool_terms, name = self.pools.get(pool, PricePool(pool)), model.casefold()
        of_model = [price for price in self.prices if _matches_model(price.model.casefold(), name)]
        terms = ", ".join(dict.fromkeys(_terms(price.kind, price.region) + price.start_text for price in of_model))
        own_terms = _terms(pool_terms.kind or self.kind, pool_terms.region)
        return f"the book has {terms}, and these are {own_terms}" if of_model else ""


def _terms(kind: PriceKind, region: str) -> str:
    return f"{kind.value} in {region}" if region else kind.value


def _matches_model(pattern: str, name: str) -> bool:
    """Whether whole words match in order: `h100` matches `nvidia h100 80gb hbm3`, not `nvidia gh1000`."""
    words = name.replace("-", " ").replace("_", " ").split()
    pattern_words = pattern.replace("-", " ").replace("_", " ").split()
    return bool(pattern_words) and any(words[at : at + len(pattern_words)] == pattern_words for at in range(len(words)))


def shipped_book() -> PriceBook:
    text = (resources.files("watchkeeper.packs") / "prices.toml").read_text(encoding="utf-8")
    return read_book(text, where="packs/prices.toml")


def read_book(text: str, *, where: str) -> PriceBook:
    """Read a book in TOML or OpenCost's CSV; PackError if it is neither, problems for single rows."""
    text = text.removeprefix("\ufeff")
    header = text.partition("\n")[0].casefold()
    if all(column.casefold() in header for column in OPENCOST_COLUMNS):
        return _of_opencost(text, csv_text.detect_separator(header), where=where)
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        remedy = f"Write it like packs/prices.toml, or as OpenCost's CSV with {', '.join(OPENCOST_COLUMNS)}"
        raise PackError(f"not a price book: {error}", where=where, remedy=remedy) from error
    return _of_toml(plain, where=where)


def _of_toml(plain: Mapping[str, Any], *, where: str) -> PriceBook:
    problems = [f"{where}: {name}: unknown key, ignored" for name in sorted(set(plain) - KNOWN_KEYS)]
    prices: dict[PriceKey, Price] = {}
    for at, row in enumerate(_tables(plain, "price", where), start=1):
        called = f"{where}: price {at} ({quote(row.get('model', ''))})"
        try:
            price = _price(row)
        except (KeyError, ValueError, TypeError) as error:
            problems.append(
                f"{called}: {(f'{error.args[0]} is missing' if isinstance(error, KeyError) else error)}; ignored"
            )
            continue
        problems += _unknown_keys(row, PRICE_KEYS, called)
        if price.key in prices:
            problems.append(f"{called}: duplicate price, ignored")
        prices.setdefault(price.key, price)
    pools: dict[str, PricePool] = {}
    for at, row in enumerate(_tables(plain, "pool", where), start=1):
        called = f"{where}: pool {at}"
        try:
            kind = _kind(row["kind"]) if "kind" in row else None
            pools[str(row["name"])] = PricePool(str(row["name"]), kind, str(row.get("region", "")))
        except (KeyError, ValueError) as error:
            problems.append(
                f"{called}: {(f'{error.args[0]} is missing' if isinstance(error, KeyError) else error)}; ignored"
            )
            continue
        problems += _unknown_keys(row, POOL_KEYS, called)
    budgets: dict[str, float] = {}
    limits = plain.get("budgets", {})
    if not isinstance(limits, dict):
        raise PackError("`budgets` must be written as [budgets], with a line for each team", where=where)
    for team, amount in limits.items():
        try:
            budgets[team] = _money(amount, "budget")
        except (ValueError, TypeError) as error:
            problems.append(f"{where}: budgets.{team[:60]}: {error}; ignored")
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
            _limit_problems(problems, where),
            where=where,
        )
    except (ValueError, TypeError) as error:
        raise PackError(str(error), where=where, remedy="See docs/howto/cost.md for the keys") from error


OWN_COST_KEYS = frozenset({"purchase_per_gpu", "residual_per_gpu", "years", "overhead_per_gpu_hour"})
PRICE_KEYS = OWN_COST_KEYS | {"model", "kind", "region", "per_gpu_hour", "source", "checked", "from"}
POOL_KEYS = frozenset({"name", "kind", "region"})
POWER_KEYS = frozenset({"pue", "pue_source", "power_per_kwh", "power_source"})
KNOWN_KEYS = POWER_KEYS | {"currency", "kind", "price", "pool", "overhead_per_month", "budgets"}


def _limit_problems(problems: list[str], where: str) -> tuple[str, ...]:
    more = len(problems) - MOST_NAMED
    return (*problems[:MOST_NAMED], f"{where}: and {more:,} more") if more > 0 else tuple(problems)


def _unknown_keys(row: Mapping[str, Any], allowed: frozenset[str], called: str) -> list[str]:
    """Name unknown keys: a mistyped key would silently change a price."""
    return [f"{called}: unknown key {name[:60]}, ignored" for name in sorted(set(row) - allowed)]


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
    source, region, begins = str(row.get("source", "")), str(row.get("region", "")), -math.inf
    if "from" in row:
        start = row["from"]
        if not isinstance(start, date) or isinstance(start, datetime):
            raise ValueError(f"from of {quote(start)} must be a day such as 2026-11-15, without quotation marks")
        begins = datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp()
    return Price(model, kind, hourly, region, source, day, begins)


def _money(value: Any, name: str) -> float:
    return _at_least(value, name, 0.0)


def _at_least(value: Any, name: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise ValueError(f"{name} of {quote(value)} must be a number of at least {least:g}")
    return float(value)


def _of_opencost(text: str, separator: str, *, where: str) -> PriceBook:
    """Read rows of asset class `gpu`; other rows price nodes or volumes, which have no GPU-hour price."""
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
                raise ValueError("a row of asset class gpu needs an InstanceID")
            number = float(hourly) if csv_text.NUMBER.fullmatch(hourly) else hourly
            price = Price(instance, PriceKind.ON_DEMAND, _money(number, "MarketPriceHourly"), region, "OpenCost CSV")
            if price.key in prices:
                raise ValueError(f"{quote(instance)} has a price already (duplicate row)")
        except ValueError as error:
            problems.append(f"{where}:{reader.line_num}: {error}; ignored")
            continue
        prices[price.key] = price
    left = [f"{where}: {others:,} rows price nodes or volumes and were ignored"] if others else []
    return PriceBook(prices=tuple(prices.values()), problems=(*_limit_problems(problems, where), *left), where=where)
