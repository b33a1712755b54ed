"""What reports hold that no dataclass has: hours, bills, forecasts, replays; for `openapi`, as `shapes` is.

A line of a report has its dimensions by name, so that all of them are optional there. The functions that write these
answers also serve commands that read tables instead of asking a hub, and stay plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from watchkeeper.capacity import advice, fullness


class Dimensions(TypedDict, total=False):
    team: str
    project: str
    namespace: str
    user: str
    job: str
    model: str
    node: str
    pool: str
    cluster: str
    kind: str


class Amounts(TypedDict):
    total: float
    allocated: float
    used: float
    wasted: float
    unmeasured: float
    idle: float
    lost: float
    unknown: float
    used_by_util: float
    kwh: float
    spare: float


class HoursLine(Amounts, Dimensions):
    pass


class Money(TypedDict):
    """None is what has no price: an unknown amount."""

    money: float | None
    direct: float | None
    energy: float | None
    shared: float
    wasted_money: float | None
    unpriced_hours: float
    hours: Amounts


class BillLine(Money, Dimensions):
    pass


class Rate(TypedDict):
    of: str
    kind: str
    per_gpu_hour: float
    source: str
    checked: str


@dataclass(frozen=True, slots=True)
class Hours:
    since: float
    until: float
    by: list[str]
    of: dict[str, str]
    lines: list[HoursLine]
    total: Amounts
    notes: list[str]
    words: dict[str, str]


@dataclass(frozen=True, slots=True)
class Bill:
    since: float
    until: float
    recorded_hours: float
    by: list[str]
    currency: str
    policy: str
    policy_words: str
    lines: list[BillLine]
    total: Money
    money: float | None
    shared: dict[str, float]
    holes: dict[str, float]
    kwh: float
    pue: float | None
    kwh_with_pue: float | None
    rates: list[Rate]
    notes: list[str]
    words: dict[str, str]


class Step(TypedDict):
    time: str
    mean: float
    low: float
    high: float


class Backtest(TypedDict):
    wape: float | None
    naive_wape: float | None
    coverage: float | None
    naive_day_wape: float | None
    naive_week_wape: float | None
    straight_line_wape: float | None
    origins: int
    since: str | None
    whole_horizon: bool


class Point(TypedDict):
    time: str
    value: float | None


PastDemand = TypedDict("PastDemand", {"from": str, "to": str, "steps": int, "gaps": int, "recent": list[Point]})


class Full(TypedDict):
    capacity_gpus: float
    is_full_now: bool
    full_at: str | None
    earliest: str | None
    latest: str | None
    likely: float


class Forecast(TypedDict):
    """Where a forecast cannot be made yet, `reason` says why and most is missing; so is what only demand has."""

    about: str
    capacity_gpus: float | None
    forecast: list[Step]
    reason: str | None


class WholeForecast(Forecast, total=False):
    sentence: str
    model: str
    backtest: Backtest
    interval: float
    step: str
    history: PastDemand
    weights: dict[str, float]
    notes: list[str]
    full: Full
    need: fullness.Need
    advice: list[advice.Piece]


class Spread(TypedDict):
    """Seconds of waiting; None where no job has started."""

    jobs: int
    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


class Waits(Spread):
    by_gpus: dict[str, Spread]


class Recorded(TypedDict):
    wait: Waits


class NeverFits(TypedDict):
    jobs: int
    gpus: list[float]


class Replayed(TypedDict):
    gpus: float
    utilisation: float | None
    gpu_hours_used: float
    gpu_hours_available: float
    peak_gpus: float
    wait: Waits
    started_after_the_record: int
    never_fits: NeverFits


class Problems(TypedDict):
    counts: dict[str, int]
    lines: list[str]


@dataclass(frozen=True, slots=True)
class WhatIf:
    change: str
    policy: str
    jobs: dict[str, int]
    layout: str
    since: float
    until: float
    recorded: Recorded
    before: Replayed
    after: Replayed
    unknown_models: dict[str, int]
    assumes: list[str]
    problems: Problems
