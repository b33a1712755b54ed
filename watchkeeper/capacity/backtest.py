"""Rolling-origin back-test: what each model would have said at many moments of the past, and how wrong that was.

From every origin all candidates are asked, with nothing but what was known then. Their errors, by how far ahead, give
weights; the weighted median of their paths is the forecast, because absolute errors are what is counted and the median
does not care about one model that runs away. How right a model is a week ahead a history of some weeks hardly says, so
a share of all weight is not for the models to win: it belongs to the plain forecasts, and is the larger the fewer
windows were seen. As far as weeks repeat themselves, the plain ones are those that know weeks. Weights at an origin use
only outcomes that were known at it, so the forecasts of the past are as honest as the one for the future: their errors
are the error that is reported, and their spread makes the intervals (split conformal prediction over rolling
residuals). `forecast` calls it.
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
    candidates,
    repeated_share,
)

Indexes = npt.NDArray[np.int64]
# Two origins a day over six weeks: both halves of the day, and more than one of each weekday.
MOST_ORIGINS = 84
# A history of less than ten days has its origins closer together.
LEAST_ORIGINS = 20
# Errors are compared within such parts of the horizon, in days: what is good for hours is seldom good for a week.
EDGES_DAYS = (0.125, 0.25, 0.5, 1, 2, 4, 7, 14, 28, 56, 112, 224)
# A weight falls with the eighth power of the error: twice as wrong counts a 256th. An error of a day ago counts 10 %
# less. The sharpness and the fading were chosen by looking at all public traces: their errors there are no proof.
SHARPNESS, ERROR_FADES = 8.0, 0.9
# An error at the next part of the horizon counts half, and with four windows of its length seen the plain forecasts
# count as much as all models: chosen on 159 public, derived and synthetic series, and confirmed once on other draws and
# sums of them. Among themselves they weigh by the square of their errors, which was a little better on public series
# and on one of a year with weekends.
NEIGHBOUR_FADES, PLAIN_WINDOWS, PLAIN_SHARPNESS = 0.5, 4.0, 2.0
# The middle of all weight is the forecast; what a tenth of it on each side says is not beyond what may come.
MODELS_HELD = (0.1, 0.5, 0.9)
# A model that was wrong for a while by more than this times the median model is as good as out; more adds nothing.
WORST_RATIO = 5.0
# Skill is to have been better than the better naive forecast by half a standard error, over at least three outcomes.
# Without it a forecast goes half of the way to where the naive ones are. That is for safety: of the public series none
# is more than 2 % worse than a naive forecast then; means pay up to 1 % for it (docs/reference/performance.md).
LEAST_SKILL, LEAST_JUDGED, STEADIED = 0.5, 3, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class RolledForecasts:
    """Candidates at every origin: `paths[origin, model, step]`, and what came, NaN where it is unknown or an outage.

    Origins are `stride` steps apart; `repeated` is how much of its weeks' course had come again by each of them;
    `usual_move` is how far the series goes in one step, the root of the mean square.
    """

    names: tuple[str, ...]
    origins: Indexes
    paths: Floats
    actual: Floats
    edges: Indexes
    scale: SeasonLengths
    repeated: Floats
    usual_move: float
    stride: int

    @property
    def steps(self) -> int:
        return int(self.paths.shape[2])


def roll(series: demand.DemandSeries, steps: int, scale: SeasonLengths) -> RolledForecasts:
    """Ask all candidates at past origins and, as the last origin, now."""
    values = series.values
    fallen = demand.find_outages(demand.fill_gaps(values, day=scale.day, week=scale.week), day=scale.day)
    first = min(3 * scale.day, max(2, len(values) // 3))
    stride = max(1, min(scale.day // 2, (len(values) - first) // LEAST_ORIGINS))
    origins = np.arange(len(values), first - 1, -stride)[:MOST_ORIGINS][::-1]
    names: tuple[str, ...] = ()
    paths, actual = [], np.full((len(origins), steps), math.nan)
    repeated = np.zeros(len(origins))
    for row, at in enumerate(origins):
        past = _known_at(values, int(at), fallen, scale)
        found, repeated[row] = candidates(past, steps, scale), repeated_share(past, scale)
        # Early origins know no week yet: what a model falls back to then is the same with a smaller shape.
        names = tuple(found) if len(found) >= len(names) else names
        paths.append(found)
        actual[row, : len(values) - at] = values[at : at + steps]
        for start, end, clear in fallen:
            actual[row, max(0, start - at) : max(0, end - at)] = math.nan
            if start < at < clear:
                actual[row] = math.nan
    table = np.stack([np.stack([_same_or_simpler(found, name) for name in names]) for found in paths])
    moves = np.diff(values[~np.isnan(values)])
    usual_move = float(np.sqrt(np.mean(moves**2))) if len(moves) else 0.0
    return RolledForecasts(names, origins, table, actual, _edges(steps, scale.day), scale, repeated, usual_move, stride)


def _known_at(values: Floats, at: int, fallen: list[tuple[int, int, int]], scale: SeasonLengths) -> Floats:
    """The past as it was known at a step: outages that were over by then are gaps, and gaps are filled from before."""
    known = values[:at].copy()
    for start, end, clear in fallen:
        if clear <= at:
            known[start:end] = math.nan
    return demand.fill_gaps(known, day=scale.day, week=scale.week)


def _same_or_simpler(found: dict[str, Floats], name: str) -> Floats:
    if name in found:
        return found[name]
    level, _, shape = name.partition(" + ")
    simpler = f"{level} + day"
    return found[simpler] if shape == "week" and simpler in found else found[level]


def _edges(steps: int, day: int) -> Indexes:
    inner = [round(days * day) for days in EDGES_DAYS]
    return np.array([0, *sorted({edge for edge in inner if 0 < edge < steps}), steps])


def errors(rolled: RolledForecasts) -> Floats:
    """Mean absolute error by origin, model and part of the horizon; NaN where nothing of the part is known."""
    return _errors(rolled, rolled.paths)


def _errors(rolled: RolledForecasts, paths: Floats) -> Floats:
    distance = np.abs(paths - rolled.actual[:, None, :])
    known = ~np.isnan(rolled.actual)
    parts = []
    for start, end in pairwise(rolled.edges):
        count = known[:, start:end].sum(axis=1)
        total = np.nansum(distance[:, :, start:end], axis=2)
        parts.append(np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], math.nan))
    return np.stack(parts, axis=2)


def weights_at(rolled: RolledForecasts, missed: Floats, row: int) -> Floats:
    """Weight of each model in each part of the horizon, from outcomes that were known at an origin; rows sum to 1."""
    now = rolled.origins[row]
    parts = len(rolled.edges) - 1
    losses, evidence = np.ones((parts, len(rolled.names))), np.full(parts, 1e-9)
    for part in range(parts):
        end = rolled.edges[part + 1]
        usable = (rolled.origins + end <= now) & ~np.isnan(missed[:, 0, part])
        if not usable.any():
            continue
        fading = ERROR_FADES ** ((now - rolled.origins[usable] - end) / rolled.scale.day)
        loss = fading @ missed[usable][:, :, part] / fading.sum()
        middle = float(np.median(loss))
        losses[part] = np.minimum(loss / middle, WORST_RATIO) if middle > 0 else np.where(loss > 0, WORST_RATIO, 0.0)
        # Windows that overlap say the same thing twice.
        evidence[part] = fading.sum() * min(1.0, rolled.stride / end)
    near = NEIGHBOUR_FADES ** np.abs(np.subtract.outer(np.arange(parts), np.arange(parts))) * evidence
    # 0.01 keeps a model that has been exact so far from being the only one that is heard.
    blended = near @ losses / near.sum(axis=1, keepdims=True) + 0.01
    weights = (blended / blended.min(axis=1, keepdims=True)) ** -SHARPNESS
    windows = (now - rolled.origins[0]) / rolled.edges[1:, None]
    kept = PLAIN_WINDOWS / (PLAIN_WINDOWS + windows)
    return np.asarray((1 - kept) * _shared(weights) + kept * _of_plain(rolled, weights, rolled.repeated[row]))


def _of_plain(rolled: RolledForecasts, weights: Floats, repeated: float) -> Floats:
    """How the plain forecasts share what is theirs: of them, too, the better says more."""
    soft = weights ** (PLAIN_SHARPNESS / SHARPNESS)
    is_late = rolled.edges[:-1, None] >= rolled.scale.week
    plain = np.where(is_late, np.isin(rolled.names, PLAIN_BEYOND_A_WEEK), np.isin(rolled.names, PLAIN))
    if not repeated:
        return _shared(plain * soft)
    return (1 - repeated) * _shared(plain * soft) + repeated * _shared(np.isin(rolled.names, PLAIN_OF_WEEKS) * soft)


def _shared(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def combined(rolled: RolledForecasts, weights: Floats, row: int) -> Floats:
    """What the models of one origin say together, by step: the low edge, the middle and the high edge of their weight.

    From one part of the horizon to the next weights change step by step, so that paths do not jump where parts meet.
    """
    centres = np.log((rolled.edges[:-1] + rolled.edges[1:] + 1) / 2)
    ahead = np.log(np.arange(1, rolled.steps + 1))
    share_of_part = np.array([np.interp(ahead, centres, part) for part in np.eye(len(centres))])
    return quantiles_by_column(rolled.paths[row], weights.T @ share_of_part, MODELS_HELD)


def steadied(rolled: RolledForecasts, missed: Floats, own: Floats) -> Floats:
    """The paths of all origins, drawn towards the range of both naive forecasts where the past shows no skill."""
    naive = [rolled.names.index(name) for name in (NAIVE_DAY, NAIVE_WEEK)]
    low, high = rolled.paths[:, naive].min(axis=1), rolled.paths[:, naive].max(axis=1)
    drawn = own + STEADIED * (np.clip(own, low, high) - own)
    gained = missed[:, naive] - _errors(rolled, own[:, None])
    # The first origins know less than a day of what the models are about.
    is_seasoned = rolled.origins >= rolled.origins[0] + rolled.scale.day
    made = own.copy()
    for row, now in enumerate(rolled.origins):
        for part, (start, end) in enumerate(pairwise(rolled.edges)):
            usable = is_seasoned & (rolled.origins + end <= now) & ~np.isnan(gained[:, 0, part])
            fading = ERROR_FADES ** ((now - rolled.origins[usable] - end) / rolled.scale.day)
            windows = max(1.0, fading.sum() * min(1.0, rolled.stride / end))
            if len(fading) >= LEAST_JUDGED and not _has_skill(gained[usable, :, part], fading, windows):
                made[row, start:end] = drawn[row, start:end]
    return made


def _has_skill(gained: Floats, fading: Floats, windows: float) -> bool:
    """Whether forecasts were better than the better naive one, as far as so many windows can tell."""
    fading = fading / fading.sum()
    over_better = gained[:, np.argmin(fading @ gained)]
    mean = fading @ over_better
    return bool(mean >= LEAST_SKILL * math.sqrt(fading @ (over_better - mean) ** 2 / windows))


def quantiles_by_column(values: Floats, weights: Floats, shares: tuple[float, ...]) -> Floats:
    """For each share and column the least value at or below which this share of the column's weight lies."""
    order = np.argsort(values, axis=0, kind="stable")
    heavy = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
    ranks = np.array([np.argmax(heavy >= share * heavy[-1], axis=0) for share in shares])
    return np.asarray(np.take_along_axis(np.take_along_axis(values, order, axis=0), ranks, axis=0))


def wape(paths: Floats, actual: Floats) -> float | None:
    """Sum of absolute errors over sum of absolute values; None where nothing can be compared."""
    known = ~np.isnan(actual)
    if not known.any():
        return None
    missed, total = float(np.abs(paths - actual)[known].sum()), float(np.abs(actual[known]).sum())
    if total > 0:
        return missed / total
    return 0.0 if missed == 0 else None
