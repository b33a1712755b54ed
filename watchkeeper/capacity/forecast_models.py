"""The forecast models: each combines a seasonal shape (none, daily or weekly) with a level.

A level is the current value, a mean over a day or more, a return from the current value to the median, or a trend; the
trend over weeks is added if it is significant. The median of the last days by time of day, and the repetition of the
last day and the last week, are models too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity import trends
from watchkeeper.capacity.demand import Floats

DAY_SECONDS, WEEK_SECONDS = 86_400.0, 604_800.0
NAIVE_DAY, NAIVE_WEEK, STRAIGHT_LINE = "naive day", "naive week", "straight line"
# Twelve weeks contain every modelled season; older data comes from a different fleet.
MAX_WEEKS = 12
# Each day back counts 3 % less, each week back 10 % less: usage patterns of a fleet last for some weeks.
DAY_DECAY, WEEK_DECAY = 0.97, 0.9
# The usual day is the median of each time of day over so many days.
USUAL_DAYS = 3
USUAL_DAY = f"usual day of {USUAL_DAYS} d"
# Used without evidence about the models: forecasts that cannot diverge. A week ahead, each alone was more than 2 %
# worse than the better naive forecast on 9 to 55 of 76 series of public traces; their combination on 2.
PLAIN = (NAIVE_DAY, NAIVE_WEEK, USUAL_DAY, "now", "last day", "last day + day", "median", "last week + week")
# Beyond a week, models without weekdays get less weight.
PLAIN_BEYOND_A_WEEK = (NAIVE_DAY, NAIVE_WEEK, "now", "last day + day", "last week + week", "back in 6 d to 7 d + week")
# In series with a weekly pattern, only models with a week are used.
PLAIN_OF_WEEKS = (
    NAIVE_WEEK,
    "last week + week",
    "median + week",
    "back in 0.5 d to 7 d + week",
    "back in 2 d to 7 d + week",
)
# The weekly pattern is measured on at most so many weeks, because older patterns may have changed.
WEEKS_COMPARED = 8
# Time constants of the return to the median, in days: jobs last hours, projects last a week.
RETURN_DAYS = (0.5, 2.0, 6.0)
# The days of that median. A median minimises absolute errors, and a mean still includes a burst that is over.
# Chosen on 235 derived and synthetic series, where 4 and 7, 3 and 10 or 3 and 14 days gave similar errors.
MEDIAN_DAYS = (3, 7)
# A quarter of a day is odd if its deviation from other weeks is over four times the 80 % quantile of all deviations,
# which is five standard deviations of white noise. Three days cover a long weekend; a longer change can be a new level.
ODD_TIMES, ODD_DAYS = 4.0, 3
# Odd days are detected only if the weekly pattern is at least 1.5 times as large as the deviations from it.
MIN_PATTERN_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class SeasonLengths:
    """Steps in a day and a week, and whether steps of this length can show a daily and a weekly season."""

    day: int
    week: int
    has_day: bool
    has_week: bool

    @classmethod
    def of(cls, step_seconds: float) -> SeasonLengths:
        day = max(1, round(DAY_SECONDS / step_seconds))
        has_week = step_seconds <= DAY_SECONDS and WEEK_SECONDS % step_seconds == 0
        return cls(day, 7 * day, has_day=day >= 4 and DAY_SECONDS % step_seconds == 0, has_week=has_week)


def build_candidates(past: Floats, steps: int, scale: SeasonLengths) -> dict[str, Floats]:
    """Return the path of each model over the next `steps`; `past` has no gaps."""
    past = past[-MAX_WEEKS * scale.week :]
    trend = trends.estimate_trend(past, scale.day, has_week=scale.has_week)
    until_now = np.arange(1 - len(past), 1)
    detrended = past - trend.reliable_slope * until_now
    paths = {USUAL_DAY: _usual_day(detrended, steps, scale)}
    remaining_share = _remaining_share(past, scale.day)
    for shape_name, full_shape in _build_shapes(replace_odd_days(past - trend.slope * until_now, scale), scale).items():
        shape = full_shape * remaining_share
        level = detrended - np.resize(shape[::-1], len(past))[::-1]
        ahead = np.resize(shape, steps)
        for level_name, path in _build_levels(level, steps, scale.day).items():
            paths[f"{level_name} + {shape_name}" if shape_name else level_name] = path + ahead
    paths = {name: path + trend.reliable_slope * np.arange(1, steps + 1) for name, path in paths.items()}
    naive = {NAIVE_DAY: repeat_last(past, scale.day, steps), NAIVE_WEEK: repeat_last(past, scale.week, steps)}
    lowest, highest = find_bounds(past, scale.day)
    return {name: np.clip(path, lowest, highest) for name, path in (naive | paths).items()}


def repeated_share(past: Floats, scale: SeasonLengths) -> float:
    """Return the share of the variance within weeks that the other weeks predict, 0 to 1."""
    weeks = min(len(past) // scale.week, WEEKS_COMPARED)
    if weeks < 2 or not scale.has_week:
        return 0.0
    table = past[-weeks * scale.week :].reshape(weeks, scale.week)
    table = table - table.mean(axis=1, keepdims=True)
    others = (table.sum(axis=0) - table) / (weeks - 1)
    total = float(np.sum(table**2))
    return max(0.0, 1 - float(np.sum((table - others) ** 2)) / total) if total > 0 else 0.0


def _usual_day(past: Floats, steps: int, scale: SeasonLengths) -> Floats:
    """Return the median of the last days by time of day; flat if there is no daily season."""
    days = min(USUAL_DAYS, len(past) // scale.day)
    if not scale.has_day or not days:
        return np.full(steps, float(np.median(past[-USUAL_DAYS * scale.day :])))
    return np.resize(np.median(past[-days * scale.day :].reshape(days, scale.day), axis=0), steps)


def find_bounds(past: Floats, day: int) -> tuple[float, float]:
    """Return the limits of the series: zero if it was never negative, and a ceiling that it reaches repeatedly."""
    # A growing series reaches its highest value only at its end, so the times must be a week apart.
    lowest = 0.0 if past.min() >= 0 else -np.inf
    top = float(past.max())
    touches = np.flatnonzero(past >= top * (1 - 1e-4))
    is_ceiling = top > 0 and len(touches) >= 0.05 * len(past) and touches[-1] - touches[0] >= 7 * day
    return lowest, top if is_ceiling else np.inf


def repeat_last(past: Floats, period: int, steps: int) -> Floats:
    """Return the seasonal naive forecast: repeat the last period, or the whole history if it is shorter."""
    return np.resize(past[-period:], steps)


def straight_line(past: Floats, steps: int) -> Floats:
    """Extrapolate a least-squares line through the whole history, only for comparison."""
    at = np.arange(len(past)) - (len(past) - 1) / 2
    slope = float(at @ past) / max(float(at @ at), 1e-9)
    return np.asarray(past.mean() + slope * (at[-1] + np.arange(1, steps + 1)))


def replace_odd_days(past: Floats, scale: SeasonLengths) -> Floats:
    """Return the history for learning seasons: odd periods such as holidays have the median of the other weeks."""
    # Otherwise a holiday in the last four weeks would change the forecast of its weekday by a quarter of its effect.
    weeks, part = min(len(past) // scale.week, 8), scale.day // 4
    if weeks < 3 or not scale.has_week or not part or scale.day % 4:
        return past
    table = past[-weeks * scale.week :].reshape(weeks, scale.week)
    usual = np.median(table, axis=0)
    deviations = np.abs((table - usual).reshape(-1, part).mean(axis=1))
    spread = float(np.quantile(deviations, 0.8))
    is_odd = deviations > ODD_TIMES * spread
    if not is_odd.any() or MIN_PATTERN_RATIO * spread > float(usual.std()):
        return past
    cleaned, pattern = past.copy(), np.tile(usual, weeks)
    recent = cleaned[-len(pattern) :]
    edges = part * np.flatnonzero(np.diff(is_odd, prepend=False, append=False))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if end - start <= ODD_DAYS * scale.day and end < len(pattern):
            recent[start:end] = pattern[start:end]
    return cleaned


def _build_shapes(past: Floats, scale: SeasonLengths) -> Mapping[str, Floats]:
    day = _day_shape(past, scale.day) if scale.has_day else None
    week = _week_shape(past, scale, day) if scale.has_week else None
    shapes = {"": np.zeros(1), "day": day, "week": week}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _remaining_share(past: Floats, day: int) -> float:
    """Return the factor for seasonal shapes: 1, or less if demand fell below half of its mean."""
    # The highest of the last three days counts, so that a weekend does not look like a fall.
    if past.min() < 0 or len(past) < 4 * day:
        return 1.0
    recent = float(past[-3 * day :].reshape(3, day).mean(axis=1).max())
    usual = float(past.mean())
    return min(1.0, 2 * recent / usual) if usual > 0 else 1.0


def _day_shape(past: Floats, day: int) -> Floats | None:
    """Return the mean deviation from the daily mean by time of day, smoothed and shrunk by its noise."""
    days = min(len(past) // day, 28)
    if days < 2:
        return None
    table = past[-days * day :].reshape(days, day)
    table = table - table.mean(axis=1, keepdims=True)
    weights = np.power(DAY_DECAY, np.arange(days - 1, -1, -1), dtype=np.float64)
    shape = weights @ table / weights.sum()
    trusted = _signal_share(table, weights, shape, least=days / (days + 1))
    smooth = (np.roll(shape, 1) + shape + np.roll(shape, -1)) / 3 if day >= 12 else shape
    return np.asarray(trusted * (trusted * shape + (1 - trusted) * smooth))


def _week_shape(past: Floats, scale: SeasonLengths, day_shape: Floats | None) -> Floats | None:
    """Return the weekly shape; days are cut at the estimated midnight, and the result starts at the next step."""
    weeks = len(past) // scale.week
    if not weeks:
        return None
    table = past[-weeks * scale.week :].reshape(weeks, scale.week)
    table = table - table.mean(axis=1, keepdims=True)
    weights = np.power(WEEK_DECAY, np.arange(weeks - 1, -1, -1), dtype=np.float64)
    # The time zone of the fleet's users is unknown: midnight splits the week into the seven most different days, and
    # days cut at another time would mix two days.
    week = weights @ table
    cuts = [np.roll(week, -offset).reshape(7, scale.day).mean(axis=1) for offset in range(scale.day)]
    midnight = int(np.argmax([days.var() for days in cuts]))
    day = np.zeros(scale.day) if day_shape is None else np.roll(day_shape, -midnight)
    return np.roll(_usual_week(np.roll(table, -midnight, axis=1), weights, day), midnight)


def _usual_week(table: Floats, weights: Floats, day_shape: Floats) -> Floats:
    """Return daily shape plus the level of each weekday plus the hours of the week that repeat."""
    # A single week counts half, so that the backtest can already measure whether its weekend repeats.
    weeks, day = len(table), len(day_shape)
    levels = table.reshape(weeks, 7, day).mean(axis=2)
    weekdays = weights @ levels / weights.sum()
    weekdays = weekdays * _signal_share(levels, weights, weekdays, least=weeks / (weeks + 1))
    plain = np.repeat(weekdays, day) + np.tile(day_shape, 7)
    own_hours = weights @ table / weights.sum() - plain
    if weeks == 1:
        return np.asarray(plain + own_hours / 4)
    noise = _mean_variance(table - plain, weights, own_hours)
    return np.asarray(plain + _denoise(own_hours.reshape(7, day), noise).ravel())


def _denoise(deviations: Floats, noise: float) -> Floats:
    """Remove noise of this variance from a matrix of days by hours."""
    # Days differ in few ways, mainly weekends, and noise in as many ways as there are days. Singular values separate
    # them, with the optimal shrinkage for white noise (Gavish and Donoho, 2017).
    if noise <= 0:
        return deviations
    left, strengths, right = np.linalg.svd(deviations, full_matrices=False)
    few, many = sorted(deviations.shape)
    ratio, squared = few / many, strengths**2 / (many * noise)
    is_signal = squared > (1 + math.sqrt(ratio)) ** 2
    shrunk = np.sqrt(np.where(is_signal, (squared - ratio - 1) ** 2 - 4 * ratio, 0)) / np.maximum(squared, 1)
    return np.asarray(left * (strengths * shrunk) @ right)


def _signal_share(table: Floats, weights: Floats, shape: Floats, *, least: float) -> float:
    """Return the share of a mean shape that is signal: one minus the ratio of variances (James–Stein shrinkage)."""
    # It is at least `least`, which depends only on the number of rows: few rows cannot separate noise from shape.
    if len(table) < 2:
        return least
    signal = float(shape.var())
    return max(least, 1 - _mean_variance(table, weights, shape) / signal) if signal > 0 else least


def _mean_variance(table: Floats, weights: Floats, mean: Floats) -> float:
    """Return the variance of the weighted mean of two or more rows."""
    rows = float(weights.sum() ** 2 / (weights @ weights))
    return float(np.mean(weights @ (table - mean) ** 2 / weights.sum())) / (rows - 1)


def _build_levels(level: Floats, steps: int, day: int) -> dict[str, Floats]:
    ahead = np.arange(1, steps + 1, dtype=np.float64)
    # The last hour, or the last step if it is longer: a mean of three hours would lag behind.
    now = float(level[-max(1, day // 24) :].mean())
    # Per step, from the daily means of the last ten days.
    days = min(10, len(level) // day)
    daily_means = level[-days * day :].reshape(days, day).mean(axis=1) if days >= 4 else np.zeros(2)
    slope = trends.median_slope(daily_means) / day
    damping = 1 - 1 / (5 * day + 1)
    flat = {
        "now": now,
        "last 6 h": float(level[-max(1, day // 4) :].mean()),
        "last day": float(level[-day:].mean()),
        "last 3 days": float(level[-3 * day :].mean()),
        "last week": float(level[-7 * day :].mean()),
        "median": float(np.median(level[-14 * day :])),
    }
    returning = {}
    for median_days in MEDIAN_DAYS:
        median = float(np.median(level[-median_days * day :]))
        for return_days in RETURN_DAYS:
            decay = np.exp(-ahead / (return_days * day))
            returning[f"back in {return_days:g} d to {median_days} d"] = median + (now - median) * decay
    return {
        **{name: np.full(steps, value) for name, value in flat.items()},
        **returning,
        "trend": now + slope * ahead,
        "damped trend": now + slope * damping * (1 - damping**ahead) / (1 - damping),
        "trend of days": flat["last day"] + slope * (ahead + day / 2),
    }
