"""Rolling-origin backtest: run every model at many past times, measure the errors, and weight the models by them.

The forecast is the weighted median of all paths, because errors are absolute and the median ignores a single diverging
model. A history of some weeks has little evidence for forecasts a week ahead, so part of the weight is reserved for the
plain forecasts: the fewer windows, the larger that part. Weights at an origin use only outcomes known at that origin,
so the errors of past forecasts are valid for the coming one (split conformal prediction over rolling residuals).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from watchkeeper.capacity import demand
from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.forecast_models import (
    NAIVE_DAY,
    NAIVE_WEEK,
    PLAIN,
    PLAIN_BEYOND_A_WEEK,
    PLAIN_OF_WEEKS,
    SeasonLengths,
    build_candidates,
    repeated_share,
)

Indexes = npt.NDArray[np.int64]
# Two origins a day over six weeks cover both halves of the day, and each weekday more than once.
MAX_ORIGINS = 84
# In a history of less than ten days, origins are closer together.
MIN_ORIGINS = 20
# Errors are compared by parts of the horizon, in days: a model that is good for hours is seldom good for a week.
HORIZON_EDGES_DAYS = (0.125, 0.25, 0.5, 1, 2, 4, 7, 14, 28, 56, 112, 224)
# A weight falls with the eighth power of the error: a model with twice the error gets 1/256. Each day, an error counts
# 10 % less. Both values were tuned on all public traces, so the errors on those traces do not prove them.
SHARPNESS, ERROR_DECAY = 8.0, 0.9
# An error in the adjacent part of the horizon counts half. With four windows of a part's length, the plain forecasts
# have half of the weight. Tuned on 159 public, derived and synthetic series, and confirmed once on other samples of
# them. Among themselves, plain forecasts are weighted by the square of their errors, which was slightly better on
# public series and on a series of a year with weekends.
NEIGHBOUR_DECAY, PLAIN_WINDOWS, PLAIN_SHARPNESS = 0.5, 4.0, 2.0
# The weighted median of the models is the forecast; the interval includes at least their 10 % and 90 % quantiles.
MODEL_QUANTILES = (0.1, 0.5, 0.9)
# Errors are capped at this multiple of the median model's error; at the cap the weight is almost zero.
WORST_RATIO = 5.0
# A forecast has skill if it was better than the better naive forecast by half a standard error, over at least three
# outcomes. Without skill it moves by three quarters to the range of the naive forecasts: half was too little after a
# change of the weekly pattern, and all of the way lost gains (docs/reference/performance.md).
MIN_SKILL, MIN_OUTCOMES, NAIVE_PULL = 0.5, 3, 0.75


@dataclass(frozen=True, slots=True, eq=False)
class RolledForecasts:
    """Forecasts of all models at all origins: `paths[origin, model, step]`; `actual` is NaN if unknown or an outage."""

    names: tuple[str, ...]
    origins: Indexes
    paths: Floats
    actual: Floats
    edges: Indexes
    scale: SeasonLengths
    # The share of weekly variance that repeats, at each origin.
    repeated: Floats
    rms_step_change: float
    # Steps between two origins.
    stride: int

    @property
    def steps(self) -> int:
        return int(self.paths.shape[2])


def run_backtest(series: demand.DemandSeries, steps: int, scale: SeasonLengths) -> RolledForecasts:
    """Run all models at past origins and, as the last origin, at the end of the series."""
    values = series.values
    outages = demand.find_outages(demand.fill_gaps(values, day=scale.day, week=scale.week), day=scale.day)
    first = min(3 * scale.day, max(2, len(values) // 3))
    stride = max(1, min(scale.day // 2, (len(values) - first) // MIN_ORIGINS))
    origins = np.arange(len(values), first - 1, -stride)[:MAX_ORIGINS][::-1]
    names: tuple[str, ...] = ()
    paths, actual = [], np.full((len(origins), steps), math.nan)
    repeated = np.zeros(len(origins))
    for row, origin in enumerate(origins):
        # As known at the origin: outages that had ended are gaps, and gaps are filled.
        past = values[:origin].copy()
        for start, end, clear in outages:
            if clear <= origin:
                past[start:end] = math.nan
        past = demand.fill_gaps(past, day=scale.day, week=scale.week)
        origin_paths, repeated[row] = build_candidates(past, steps, scale), repeated_share(past, scale)
        # Early origins have no week of data yet: there, a model falls back to its version with a shorter season.
        names = tuple(origin_paths) if len(origin_paths) >= len(names) else names
        paths.append(origin_paths)
        actual[row, : len(values) - origin] = values[origin : origin + steps]
        for start, end, clear in outages:
            actual[row, max(0, start - origin) : max(0, end - origin)] = math.nan
            if start < origin < clear:
                actual[row] = math.nan
    table = np.stack([np.stack([_path_or_simpler(origin_paths, name) for name in names]) for origin_paths in paths])
    moves = np.diff(values[~np.isnan(values)])
    usual_move = float(np.sqrt(np.mean(moves**2))) if len(moves) else 0.0
    inner_edges = {round(days * scale.day) for days in HORIZON_EDGES_DAYS}
    edges = np.array([0, *sorted(edge for edge in inner_edges if 0 < edge < steps), steps])
    return RolledForecasts(names, origins, table, actual, edges, scale, repeated, usual_move, stride)


def _path_or_simpler(paths: dict[str, Floats], name: str) -> Floats:
    if name in paths:
        return paths[name]
    level, _, shape = name.partition(" + ")
    simpler = f"{level} + day"
    return paths[simpler] if shape == "week" and simpler in paths else paths[level]


def measure_errors(rolled: RolledForecasts, paths: Floats | None = None) -> Floats:
    """Return the mean absolute error by origin, model and part of the horizon; NaN if the part has no outcome."""
    # `paths` are other forecasts at the same origins.
    distance = np.abs((rolled.paths if paths is None else paths) - rolled.actual[:, None, :])
    has_outcome = ~np.isnan(rolled.actual)
    parts = []
    for start, end in pairwise(rolled.edges):
        count = has_outcome[:, start:end].sum(axis=1)
        total = np.nansum(distance[:, :, start:end], axis=2)
        parts.append(np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], math.nan))
    return np.stack(parts, axis=2)


def weights_at(rolled: RolledForecasts, model_errors: Floats, row: int) -> Floats:
    """Return the weight of each model in each part of the horizon, from outcomes known at the origin; rows sum to 1."""
    now = rolled.origins[row]
    parts = len(rolled.edges) - 1
    losses, evidence = np.ones((parts, len(rolled.names))), np.full(parts, 1e-9)
    for part in range(parts):
        end = rolled.edges[part + 1]
        usable = (rolled.origins + end <= now) & ~np.isnan(model_errors[:, 0, part])
        if not usable.any():
            continue
        decay = ERROR_DECAY ** ((now - rolled.origins[usable] - end) / rolled.scale.day)
        loss = decay @ model_errors[usable][:, :, part] / decay.sum()
        median_loss = float(np.median(loss))
        capped = np.minimum(loss / median_loss, WORST_RATIO) if median_loss > 0 else WORST_RATIO * (loss > 0)
        losses[part] = capped
        # Overlapping windows are not independent evidence.
        evidence[part] = decay.sum() * min(1.0, rolled.stride / end)
    part_weights = NEIGHBOUR_DECAY ** np.abs(np.subtract.outer(np.arange(parts), np.arange(parts))) * evidence
    # 0.01 prevents a model without any error so far from getting all of the weight.
    blended = part_weights @ losses / part_weights.sum(axis=1, keepdims=True) + 0.01
    weights = (blended / blended.min(axis=1, keepdims=True)) ** -SHARPNESS
    # As far as weeks repeat, only origins with two weeks of history have shown which model knows them.
    first, repeated = rolled.origins[0], rolled.repeated[row]
    past_steps = (1 - repeated) * (now - first) + repeated * max(0, now - max(first, 2 * rolled.scale.week))
    windows = past_steps / rolled.edges[1:, None]
    plain_share = PLAIN_WINDOWS / (PLAIN_WINDOWS + windows)
    plain_weights = _plain_weights(rolled, weights, rolled.repeated[row])
    return np.asarray((1 - plain_share) * _normalise(weights) + plain_share * plain_weights)


def _plain_weights(rolled: RolledForecasts, weights: Floats, repeated: float) -> Floats:
    """Return the weights among the plain forecasts; those with smaller errors get more."""
    soft = weights ** (PLAIN_SHARPNESS / SHARPNESS)
    is_late = rolled.edges[:-1, None] >= rolled.scale.week
    plain = np.where(is_late, np.isin(rolled.names, PLAIN_BEYOND_A_WEEK), np.isin(rolled.names, PLAIN))
    if not repeated:
        return _normalise(plain * soft)
    weekly = _normalise(np.isin(rolled.names, PLAIN_OF_WEEKS) * soft)
    return (1 - repeated) * _normalise(plain * soft) + repeated * weekly


def _normalise(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def combine_paths(rolled: RolledForecasts, weights: Floats, row: int) -> Floats:
    """Combine the models of one origin: the weighted 10 %, 50 % and 90 % quantiles of their paths by step."""
    # Weights change gradually between parts of the horizon, so that paths do not jump.
    centres = np.log((rolled.edges[:-1] + rolled.edges[1:] + 1) / 2)
    ahead = np.log(np.arange(1, rolled.steps + 1))
    share_of_part = np.array([np.interp(ahead, centres, part) for part in np.eye(len(centres))])
    return quantiles_by_column(rolled.paths[row], weights.T @ share_of_part, MODEL_QUANTILES)


def pull_to_naive(rolled: RolledForecasts, model_errors: Floats, combined_paths: Floats) -> Floats:
    """Return the paths of all origins, moved towards the range of both naive forecasts where there was no skill."""
    naive = [rolled.names.index(name) for name in (NAIVE_DAY, NAIVE_WEEK)]
    low, high = rolled.paths[:, naive].min(axis=1), rolled.paths[:, naive].max(axis=1)
    pulled_paths = combined_paths + NAIVE_PULL * (np.clip(combined_paths, low, high) - combined_paths)
    gains = model_errors[:, naive] - measure_errors(rolled, combined_paths[:, None])
    # The first origins have less than a day of outcomes.
    has_full_day = rolled.origins >= rolled.origins[0] + rolled.scale.day
    paths = combined_paths.copy()
    for row, now in enumerate(rolled.origins):
        for part, (start, end) in enumerate(pairwise(rolled.edges)):
            usable = has_full_day & (rolled.origins + end <= now) & ~np.isnan(gains[:, 0, part])
            decay = ERROR_DECAY ** ((now - rolled.origins[usable] - end) / rolled.scale.day)
            windows = max(1.0, decay.sum() * min(1.0, rolled.stride / end))
            if len(decay) >= MIN_OUTCOMES and not _has_skill(gains[usable, :, part], decay, windows):
                paths[row, start:end] = pulled_paths[row, start:end]
    return paths


def _has_skill(gains: Floats, decay: Floats, windows: float) -> bool:
    """Whether forecasts were significantly better than the better naive forecast, given the number of windows."""
    decay = decay / decay.sum()
    gain_over_best = gains[:, np.argmin(decay @ gains)]
    mean = decay @ gain_over_best
    return bool(mean >= MIN_SKILL * math.sqrt(decay @ (gain_over_best - mean) ** 2 / windows))


def quantiles_by_column(values: Floats, weights: Floats, shares: tuple[float, ...]) -> Floats:
    order = np.argsort(values, axis=0, kind="stable")
    cumulative_weights = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
    ranks = np.array([np.argmax(cumulative_weights >= share * cumulative_weights[-1], axis=0) for share in shares])
    return np.asarray(np.take_along_axis(np.take_along_axis(values, order, axis=0), ranks, axis=0))


def wape(paths: Floats, actual: Floats) -> float | None:
    """Return the sum of absolute errors divided by the sum of absolute values; None if there is no outcome."""
    has_outcome = ~np.isnan(actual)
    if not has_outcome.any():
        return None
    error, total = float(np.abs(paths - actual)[has_outcome].sum()), float(np.abs(actual[has_outcome]).sum())
    return error / total if total > 0 else 0.0 if error == 0 else None
