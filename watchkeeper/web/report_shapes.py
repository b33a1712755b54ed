"""Types of usage, cost and forecast reports, for `openapi`.

Dimensions are optional: a line of a report has those that the report is grouped by. The functions that write these
reports also serve commands that read CSV files, so they return plain values.
"""

from __future__ import annotations

from typing import TypedDict

from watchkeeper.capacity import advice, report


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


class HourAmounts(TypedDict):
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


class UsageLine(HourAmounts, Dimensions):
    pass


class CostAmounts(TypedDict):
    """Amounts of money; None without a price."""

    money: float | None
    direct: float | None
    energy: float | None
    shared: float
    wasted_money: float | None
    unpriced_hours: float
    hours: HourAmounts


class CostLine(CostAmounts, Dimensions):
    pass


class PriceRate(TypedDict):
    of: str
    kind: str
    per_gpu_hour: float
    source: str
    checked: str


class UsageReport(TypedDict):
    since: float
    until: float
    by: list[str]
    of: dict[str, str]
    lines: list[UsageLine]
    total: HourAmounts
    notes: list[str]
    words: dict[str, str]


class CostReport(TypedDict):
    since: float
    until: float
    recorded_hours: float
    by: list[str]
    currency: str
    policy: str
    policy_words: str
    lines: list[CostLine]
    total: CostAmounts
    money: float | None
    shared: dict[str, float]
    holes: dict[str, float]
    kwh: float
    pue: float | None
    kwh_with_pue: float | None
    rates: list[PriceRate]
    notes: list[str]
    words: dict[str, str]


class Forecast(TypedDict):
    """A forecast; if none is possible yet, `forecast` is empty and `reason` says why."""

    about: str
    capacity_gpus: float | None
    forecast: list[report.ForecastStep]
    reason: str | None


class CapacityForecast(Forecast, total=False):
    # While the history is too short for a forecast.
    learning: report.LearningProgress | None
    sentence: str | None
    model: str
    backtest: report.BacktestScores
    interval: float
    step: str
    history: report.PastDemand
    weights: dict[str, float]
    notes: list[str]
    full: report.FullnessForecast | None
    need: advice.GpusNeeded | None
    advice: list[advice.ScalingAdvice] | None
