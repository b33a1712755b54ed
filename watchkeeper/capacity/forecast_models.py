"""Every way in which a series may go on: a shape that repeats, on a level that moves.

A shape is nothing, the day's, or the week's; a level is where the series is now, its mean over a day or more, a way
back from now to its median, or a trend. Each pair is one candidate, beside the usual day of late, which one odd day
does not move; all of them on top of the trend of weeks, where one stands out (`trends`). The two naive forecasts repeat
the last day and the last week as they were. All are plain and cheap; `backtest` finds out which of them would have been
right on this series at this horizon, and `forecast` weighs them.
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
# Twelve weeks hold every season that is modelled; what is older speaks of another fleet.
WEEKS_KEPT = 12
# An older day counts 3 % less, an older week 10 % less: a fleet's habits hold for some weeks.
DAY_FADES, WEEK_FADES = 0.97, 0.9
# The usual day is the median of each time of day over so many days.
USUAL_DAYS = 3
USUAL_DAY = f"usual day of {USUAL_DAYS} d"
# What is relied on while nothing is known about the others: nothing that can run away. A week ahead each alone was
# more than 2 % worse than the better naive forecast on 9 to 55 of 76 series of public traces; what leans on all, on 2.
PLAIN = (NAIVE_DAY, NAIVE_WEEK, USUAL_DAY, "now", "last day", "last day + day", "median", "last week + week")
# Beyond a week, what knows no weekdays has less to say.
PLAIN_BEYOND_A_WEEK = (NAIVE_DAY, NAIVE_WEEK, "now", "last day + day", "last week + week", "back in 6 d to 7 d + week")
# Where weeks repeat themselves, what knows no week has nothing to say.
PLAIN_OF_WEEKS = (
    NAIVE_WEEK,
    "last week + week",
    "median + week",
    "back in 0.5 d to 7 d + week",
    "back in 2 d to 7 d + week",
)
# A season is looked for in so many weeks at most: habits of long ago may have changed.
WEEKS_COMPARED = 8
# How fast a level goes back, in days: jobs last hours, projects last a week.
WAYS_BACK_DAYS = (0.5, 2.0, 6.0)
# It goes back to a median of so many days, since absolute errors count, and a mean remembers a burst that is over.
# Chosen on 235 derived and synthetic series, where 4 and 7, 3 and 10 or 3 and 14 days did alike.
BACK_TO_DAYS = (3, 7)
# A quarter of a day is odd when it is further from the same of other weeks than four times what four in five are: five
# standard deviations of plain noise. Three days hold a long weekend; what lasts longer may be a new level.
ODD_TIMES, ODD_DAYS = 4.0, 3
# Where weeks have no common course, one and a half times as large as what is left of it, no day can be told to be odd.
LEAST_COURSE = 1.5


@dataclass(frozen=True, slots=True)
class SeasonLengths:
    """Steps in a day and a week, and whether a day and a week can be seen at all in steps of this length."""

    day: int
    week: int
    has_day: bool
    has_week: bool

    @classmethod
    def of(cls, step_seconds: float) -> SeasonLengths:
        day = max(1, round(DAY_SECONDS / step_seconds))
        has_week = step_seconds <= DAY_SECONDS and WEEK_SECONDS % step_seconds == 0
        return cls(day, 7 * day, has_day=day >= 4 and DAY_SECONDS % step_seconds == 0, has_week=has_week)


def candidates(past: Floats, steps: int, scale: SeasonLengths) -> dict[str, Floats]:
    """Each model's path over the next `steps`; `past` has no gaps."""
    past = past[-WEEKS_KEPT * scale.week :]
    trend = trends.estimate_trend(past, scale.day, has_week=scale.has_week)
    until_now = np.arange(1 - len(past), 1)
    steady = past - trend.relied_on * until_now
    paths = {USUAL_DAY: _usual_day(steady, steps, scale)}
    left = _what_is_left(past, scale.day)
    for shape_name, whole in _shapes(ordinary(past - trend.slope * until_now, scale), scale).items():
        shape = whole * left
        level = steady - np.resize(shape[::-1], len(past))[::-1]
        ahead = np.resize(shape, steps)
        for level_name, path in _levels(level, steps, scale.day).items():
            paths[f"{level_name} + {shape_name}" if shape_name else level_name] = path + ahead
    paths = {name: path + trend.relied_on * np.arange(1, steps + 1) for name, path in paths.items()}
    naive = {NAIVE_DAY: repeat_last(past, scale.day, steps), NAIVE_WEEK: repeat_last(past, scale.week, steps)}
    lowest, highest = bounds(past, scale.day)
    return {name: np.clip(path, lowest, highest) for name, path in (naive | paths).items()}


def repeated_share(past: Floats, scale: SeasonLengths) -> float:
    """How much of the variance within weeks the other weeks foretell: 1 at most, 0 where they share nothing."""
    weeks = min(len(past) // scale.week, WEEKS_COMPARED)
    if weeks < 2 or not scale.has_week:
        return 0.0
    table = past[-weeks * scale.week :].reshape(weeks, scale.week)
    table = table - table.mean(axis=1, keepdims=True)
    others = (table.sum(axis=0) - table) / (weeks - 1)
    total = float(np.sum(table**2))
    return max(0.0, 1 - float(np.sum((table - others) ** 2)) / total) if total > 0 else 0.0


def _usual_day(past: Floats, steps: int, scale: SeasonLengths) -> Floats:
    """The middle of the last days by time of day; flat where steps have no time of day."""
    known = min(USUAL_DAYS, len(past) // scale.day)
    if not scale.has_day or not known:
        return np.full(steps, float(np.median(past[-USUAL_DAYS * scale.day :])))
    return np.resize(np.median(past[-known * scale.day :].reshape(known, scale.day), axis=0), steps)


def bounds(past: Floats, day: int) -> tuple[float, float]:
    """What the series cannot leave: zero where it never did, and a ceiling that it keeps touching.

    A series that grows touches its highest value as well, but only at its end: the touches must be a week apart.
    """
    lowest = 0.0 if past.min() >= 0 else -np.inf
    top = float(past.max())
    touches = np.flatnonzero(past >= top * (1 - 1e-4))
    is_ceiling = top > 0 and len(touches) >= 0.05 * len(past) and touches[-1] - touches[0] >= 7 * day
    return lowest, top if is_ceiling else np.inf


def repeat_last(past: Floats, period: int, steps: int) -> Floats:
    """The seasonal naive forecast: the last period again and again; the whole past where it is shorter."""
    return np.resize(past[-period:], steps)


def straight_line(past: Floats, steps: int) -> Floats:
    """A least-squares line through everything, as the guides draw it; for comparison only."""
    at = np.arange(len(past)) - (len(past) - 1) / 2
    slope = float(at @ past) / max(float(at @ at), 1e-9)
    return np.asarray(past.mean() + slope * (at[-1] + np.arange(1, steps + 1)))


def ordinary(past: Floats, scale: SeasonLengths) -> Floats:
    """The past from which seasons are learnt: odd days that came back, as holidays do, are like those of other weeks.

    One holiday in a mean of four weeks would bend the same weekday of all coming weeks by a quarter of itself.
    """
    weeks, part = min(len(past) // scale.week, 8), scale.day // 4
    if weeks < 3 or not scale.has_week or not part or scale.day % 4:
        return past
    table = past[-weeks * scale.week :].reshape(weeks, scale.week)
    usual = np.median(table, axis=0)
    off = np.abs((table - usual).reshape(-1, part).mean(axis=1))
    spread = float(np.quantile(off, 0.8))
    odd = off > ODD_TIMES * spread
    if not odd.any() or LEAST_COURSE * spread > float(usual.std()):
        return past
    made, course = past.copy(), np.tile(usual, weeks)
    recent = made[-len(course) :]
    edges = part * np.flatnonzero(np.diff(odd, prepend=False, append=False))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if end - start <= ODD_DAYS * scale.day and end < len(course):
            recent[start:end] = course[start:end]
    return made


def _shapes(past: Floats, scale: SeasonLengths) -> Mapping[str, Floats]:
    shapes = {"": np.zeros(1)}
    day = _day_shape(past, scale.day) if scale.has_day else None
    if day is not None:
        shapes["day"] = day
    week = _week_shape(past, scale, day) if scale.has_week else None
    if week is not None:
        shapes["week"] = week
    return shapes


def _what_is_left(past: Floats, day: int) -> float:
    """1, or less where demand fell below half of what it was: a shape of 100 GPUs is none of a fleet that uses 10.

    The best of the last three days counts, so that a weekend is not taken for a fall.
    """
    if past.min() < 0 or len(past) < 4 * day:
        return 1.0
    recent = float(past[-3 * day :].reshape(3, day).mean(axis=1).max())
    usual = float(past.mean())
    return min(1.0, 2 * recent / usual) if usual > 0 else 1.0


def _day_shape(past: Floats, day: int) -> Floats | None:
    """Mean deviation from the day's mean by time of day; what is noise of it is smoothed and shrunk."""
    days = min(len(past) // day, 28)
    if days < 2:
        return None
    table = past[-days * day :].reshape(days, day)
    table = table - table.mean(axis=1, keepdims=True)
    weights = np.power(DAY_FADES, np.arange(days - 1, -1, -1), dtype=np.float64)
    shape = weights @ table / weights.sum()
    kept = _trust(table, weights, shape, least=days / (days + 1))
    smooth = (np.roll(shape, 1) + shape + np.roll(shape, -1)) / 3 if day >= 12 else shape
    return np.asarray(kept * (kept * shape + (1 - kept) * smooth))


def _week_shape(past: Floats, scale: SeasonLengths, day_shape: Floats | None) -> Floats | None:
    """The usual week, from midnight to midnight as far as the weeks show it, and turned back to begin now."""
    weeks = len(past) // scale.week
    if not weeks:
        return None
    table = past[-weeks * scale.week :].reshape(weeks, scale.week)
    table = table - table.mean(axis=1, keepdims=True)
    weights = np.power(WEEK_FADES, np.arange(weeks - 1, -1, -1), dtype=np.float64)
    turn = _midnight(weights @ table, scale.day)
    day = np.zeros(scale.day) if day_shape is None else np.roll(day_shape, -turn)
    return np.roll(_usual_week(np.roll(table, -turn, axis=1), weights, day), turn)


def _midnight(week: Floats, day: int) -> int:
    """How many steps from its start a week divides into the seven days that differ most from each other.

    Nobody says in which time zone a fleet's weekend begins, and days that are cut elsewhere hold parts of two.
    """
    return int(np.argmax([np.roll(week, -turn).reshape(7, day).mean(axis=1).var() for turn in range(day)]))


def _usual_week(table: Floats, weights: Floats, day_shape: Floats) -> Floats:
    """Day shape plus level of each weekday, and as much of the week's own hours as the weeks agree about.

    One week counts half: its weekends are worth a guess, and the back-test learns sooner whether they come again.
    """
    weeks, day = len(table), len(day_shape)
    levels = table.reshape(weeks, 7, day).mean(axis=2)
    weekdays = weights @ levels / weights.sum()
    weekdays = weekdays * _trust(levels, weights, weekdays, least=weeks / (weeks + 1))
    plain = np.repeat(weekdays, day) + np.tile(day_shape, 7)
    own = weights @ table / weights.sum() - plain
    if weeks == 1:
        return np.asarray(plain + own / 4)
    return np.asarray(plain + _recurring(own.reshape(7, day), _noise(table - plain, weights, own)).ravel())


def _recurring(own: Floats, noise: float) -> Floats:
    """What days by hours have beyond noise of this variance.

    Days differ from the usual one in few ways, weekends above all, and noise in as many as there are days: singular
    values tell them apart, and shrink as is best for white noise (Gavish and Donoho, 2017).
    """
    if noise <= 0:
        return own
    left, strengths, right = np.linalg.svd(own, full_matrices=False)
    few, many = sorted(own.shape)
    ratio, squared = few / many, strengths**2 / (many * noise)
    stands_out = squared > (1 + math.sqrt(ratio)) ** 2
    kept = np.sqrt(np.where(stands_out, (squared - ratio - 1) ** 2 - 4 * ratio, 0)) / np.maximum(squared, 1)
    return np.asarray(left * (strengths * kept) @ right)


def _trust(table: Floats, weights: Floats, shape: Floats, *, least: float) -> float:
    """How much of a mean shape is shape and not noise: one minus the ratio of variances, as James and Stein shrink.

    Never less than `least`, which only the number of rows decides: two rows cannot tell noise from shape either.
    """
    if len(table) < 2:
        return least
    signal = float(shape.var())
    return max(least, 1 - _noise(table, weights, shape) / signal) if signal > 0 else least


def _noise(table: Floats, weights: Floats, mean: Floats) -> float:
    """The variance with which a weighted mean of two rows or more is known."""
    rows = float(weights.sum() ** 2 / (weights @ weights))
    return float(np.mean(weights @ (table - mean) ** 2 / weights.sum())) / (rows - 1)


def _levels(level: Floats, steps: int, day: int) -> dict[str, Floats]:
    ahead = np.arange(1, steps + 1, dtype=np.float64)
    # The last hour, or the last step where it is longer: a mean of three hours lags behind.
    now = float(level[-max(1, day // 24) :].mean())
    slope = _daily_slope(level, day) / day
    damping = 1 - 1 / (5 * day + 1)
    flat = {
        "now": now,
        "last 6 h": float(level[-max(1, day // 4) :].mean()),
        "last day": float(level[-day:].mean()),
        "last 3 days": float(level[-3 * day :].mean()),
        "last week": float(level[-7 * day :].mean()),
        "median": float(np.median(level[-14 * day :])),
    }
    back = {}
    for of_days in BACK_TO_DAYS:
        median = float(np.median(level[-of_days * day :]))
        for days in WAYS_BACK_DAYS:
            back[f"back in {days:g} d to {of_days} d"] = median + (now - median) * np.exp(-ahead / (days * day))
    return {
        **{name: np.full(steps, value) for name, value in flat.items()},
        **back,
        "trend": now + slope * ahead,
        "damped trend": now + slope * damping * (1 - damping**ahead) / (1 - damping),
        "trend of days": flat["last day"] + slope * (ahead + day / 2),
    }


def _daily_slope(level: Floats, day: int) -> float:
    """The slope of the daily means of the last ten days."""
    days = min(10, len(level) // day)
    return 0.0 if days < 4 else trends.median_slope(level[-days * day :].reshape(days, day).mean(axis=1))
