"""Report a forecast as JSON, in the same format for the CLI and the API.

The documented part is `{"model", "forecast": [{"time", "mean", "low", "high"}], "backtest": {"wape", "naive_wape",
"coverage"}}`; it has more keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

import numpy as np

from watchkeeper.capacity import advice, demand
from watchkeeper.capacity.forecast import forecast
from watchkeeper.kit import durations, wire

# Less than two days show no daily season, and fewer steps no change: then advice would be a guess.
MIN_HISTORY_SECONDS, MIN_STEPS = 2.0 * demand.DAY_SECONDS, 4
# Units of a history: name, seconds, and the length from which the next one is used.
HISTORY_UNITS = (("min", 60.0, 7200.0), ("h", 3600.0, MIN_HISTORY_SECONDS), ("days", 86_400.0, math.inf))


class ForecastStep(TypedDict):
    time: str
    mean: float
    low: float
    high: float


class BacktestScores(TypedDict):
    wape: float | None
    naive_wape: float | None
    coverage: float | None
    naive_day_wape: float | None
    naive_week_wape: float | None
    straight_line_wape: float | None
    origins: int
    since: str | None
    whole_horizon: bool


class DemandPoint(TypedDict):
    time: str
    value: float | None


PastDemand = TypedDict("PastDemand", {"from": str, "to": str, "steps": int, "gaps": int, "recent": list[DemandPoint]})


class LearningProgress(TypedDict):
    """Measured and required history; without enough of it there is no forecast and no advice."""

    history_seconds: float
    needed_seconds: float


class FullnessForecast(TypedDict):
    capacity_gpus: float
    is_full_now: bool
    full_at: str | None
    earliest: str | None
    latest: str | None
    likely: float


def measure_learning(series: demand.DemandSeries) -> LearningProgress:
    measured = float(np.sum(~np.isnan(series.values))) * series.step_seconds
    return {"history_seconds": measured, "needed_seconds": max(MIN_HISTORY_SECONDS, MIN_STEPS * series.step_seconds)}


def is_learning(progress: LearningProgress) -> bool:
    return progress["history_seconds"] < progress["needed_seconds"]


def report_learning(progress: LearningProgress) -> dict[str, Any]:
    """Return the report of a series that is too short for a forecast: what a forecast would say is unknown."""
    measured, needed = progress["history_seconds"], progress["needed_seconds"]
    unit, seconds = next((unit, size) for unit, size, below in HISTORY_UNITS if measured < below)
    needed_days = _format_count(needed / demand.DAY_SECONDS)
    reason = f"learning: {_format_count(measured / seconds)} {unit} of {needed_days} days"
    unknown = dict.fromkeys(("sentence", "full", "need", "advice"))
    return {"forecast": [], "reason": reason, "learning": progress, **unknown}


def _format_count(number: float) -> str:
    """Round down to a tenth, so that the count reaches what is needed only when it is there."""
    return f"{math.floor(10 * number + 1e-6) / 10:g}"


def forecast_report(
    series: demand.DemandSeries,
    horizon_seconds: float,
    *,
    capacity_gpus: float | None = None,
    target: float = advice.TARGET,
    holidays: Sequence[float] = (),
) -> dict[str, Any]:
    """Forecast a series and report it, with the time when the fleet is full and advice if `capacity_gpus` is known."""
    progress = measure_learning(series)
    if is_learning(progress):
        return report_learning(progress)
    demand_forecast = forecast(series, horizon_seconds, holidays=holidays)
    columns = (demand_forecast.times, demand_forecast.mean, demand_forecast.low, demand_forecast.high)
    steps: list[ForecastStep] = [
        {"time": _format_time(at), "mean": round(mean, 4), "low": round(low, 4), "high": round(high, 4)}
        for at, mean, low, high in zip(*(column.tolist() for column in columns), strict=True)
    ]
    result = demand_forecast.backtest
    scores: BacktestScores = {
        "wape": result.wape,
        "naive_wape": result.naive_wape,
        "coverage": result.covered,
        "naive_day_wape": result.naive_day_wape,
        "naive_week_wape": result.naive_week_wape,
        "straight_line_wape": result.straight_line_wape,
        "origins": result.origins,
        "since": None if result.since_seconds is None else _format_time(result.since_seconds),
        "whole_horizon": result.covers_horizon,
    }
    first = max(0, len(series) - len(steps))
    recent_values = enumerate(series.values[first:].tolist(), start=first)
    times = ((_format_time(series.start_seconds + at * series.step_seconds), value) for at, value in recent_values)
    history: PastDemand = {
        "from": _format_time(series.start_seconds),
        "to": _format_time(series.end_seconds),
        "steps": len(series),
        "gaps": int(np.sum(np.isnan(series.values))),
        "recent": [{"time": at, "value": None if math.isnan(value) else value} for at, value in times],
    }
    report = {
        "reason": None,
        "learning": None,
        "model": demand_forecast.model,
        "forecast": steps,
        "backtest": scores,
        "interval": 0.8,
        "step": durations.format_seconds(series.step_seconds),
        "history": history,
        "weights": demand_forecast.weights,
        "notes": list(demand_forecast.notes),
    }
    if capacity_gpus is None:
        return report
    values = series.values[~np.isnan(series.values)]
    full_forecast = advice.predict_fullness(demand_forecast, capacity_gpus, now_gpus=float(values[-1]))
    need = advice.gpus_needed(demand_forecast, capacity_gpus, target=target)
    full_at, earliest, latest = (
        None if at is None else _format_time(at)
        for at in (full_forecast.full_at, full_forecast.earliest, full_forecast.latest)
    )
    full: FullnessForecast = {
        "capacity_gpus": full_forecast.capacity_gpus,
        "is_full_now": full_forecast.is_full_now,
        "full_at": full_at,
        "earliest": earliest,
        "latest": latest,
        "likely": full_forecast.likely,
    }
    horizon = durations.format_seconds(horizon_seconds)
    return {
        "sentence": advice.summary_sentence(full_forecast, need, horizon=horizon),
        **report,
        "full": full,
        "need": wire.to_plain(need),
        "advice": wire.to_plain(advice.advise_on_forecast(demand_forecast, full_forecast, need)),
    }


def _format_time(seconds: float) -> str:
    """Format a time without fractions of a second if it has none, so that it matches tables of hours."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
