"""A forecast as JSON, the same whether the command line made it from a table or the hub from its samples.

`{"model", "forecast": [{"time", "mean", "low", "high"}], "backtest": {"wape", "naive_wape", "coverage"}}` is the
documented part; more keys stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

import numpy as np

from watchkeeper.capacity import advice, demand, fullness
from watchkeeper.capacity.forecast import Forecast, forecast
from watchkeeper.kit import durations, wire


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


class FullnessForecast(TypedDict):
    capacity_gpus: float
    is_full_now: bool
    full_at: str | None
    earliest: str | None
    latest: str | None
    likely: float


def forecast_report(
    series: demand.DemandSeries,
    horizon_seconds: float,
    *,
    capacity_gpus: float | None = None,
    target: float = fullness.TARGET,
    holidays: Sequence[float] = (),
) -> dict[str, Any]:
    """Forecast a series and say everything about it; fullness and advice where the fleet's size is known."""
    made = forecast(series, horizon_seconds, holidays=holidays)
    answer = {
        "model": made.model,
        "forecast": _points(made),
        "backtest": _backtest(made),
        "interval": 0.8,
        "step": durations.format_seconds(series.step_seconds),
        "history": _history(series, steps=len(made.mean)),
        "weights": made.weights,
        "notes": list(made.notes),
    }
    if capacity_gpus is None:
        return answer
    known = series.values[~np.isnan(series.values)]
    full = fullness.fullness(made, capacity_gpus, now_gpus=float(known[-1]))
    need = fullness.gpus_needed(made, capacity_gpus, target=target)
    horizon = durations.format_seconds(horizon_seconds)
    return {
        "sentence": advice.summary_sentence(full, need, horizon=horizon),
        **answer,
        "full": _full(full),
        "need": wire.to_plain(need),
        "advice": wire.to_plain(advice.advise_on_forecast(made, full, need)),
    }


def _full(found: fullness.Fullness) -> FullnessForecast:
    full_at, earliest, latest = (
        None if at is None else _when(at) for at in (found.full_at, found.earliest, found.latest)
    )
    return {
        "capacity_gpus": found.capacity_gpus,
        "is_full_now": found.is_full_now,
        "full_at": full_at,
        "earliest": earliest,
        "latest": latest,
        "likely": found.likely,
    }


def _points(made: Forecast) -> list[ForecastStep]:
    return [
        {"time": _when(at), "mean": round(mean, 4), "low": round(low, 4), "high": round(high, 4)}
        for at, mean, low, high in zip(
            made.times.tolist(), made.mean.tolist(), made.low.tolist(), made.high.tolist(), strict=True
        )
    ]


def _backtest(made: Forecast) -> BacktestScores:
    judged = made.backtest
    return {
        "wape": judged.wape,
        "naive_wape": judged.naive_wape,
        "coverage": judged.covered,
        "naive_day_wape": judged.naive_day_wape,
        "naive_week_wape": judged.naive_week_wape,
        "straight_line_wape": judged.straight_line_wape,
        "origins": judged.origins,
        "since": None if judged.since_seconds is None else _when(judged.since_seconds),
        "whole_horizon": judged.is_whole,
    }


def _history(series: demand.DemandSeries, *, steps: int) -> PastDemand:
    first = max(0, len(series) - steps)
    return {
        "from": _when(series.start_seconds),
        "to": _when(series.end_seconds),
        "steps": len(series),
        "gaps": int(np.sum(np.isnan(series.values))),
        "recent": [
            {
                "time": _when(series.start_seconds + at * series.step_seconds),
                "value": None if math.isnan(value) else value,
            }
            for at, value in enumerate(series.values[first:].tolist(), start=first)
        ],
    }


def _when(seconds: float) -> str:
    """Whole seconds where they are whole: what a table of hours is joined with."""
    at = datetime.fromtimestamp(seconds, UTC)
    return at.isoformat().replace("+00:00", "Z")
