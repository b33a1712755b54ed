"""Fall back to repeating the last week, or to half of it, where that was better at past origins.

The choice is made for each part of the horizon, from outcomes known at the origin. A forecast is replaced only if its
errors were larger by more than chance, because a single event in a history of weeks can favour either. `forecast` calls
`prefer_last_week` for all past origins, so that reported errors and intervals are those of the final forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from watchkeeper.capacity.backtest import ERROR_DECAY, NEIGHBOUR_DECAY, Indexes, RolledForecasts, measure_errors
from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.forecast_models import NAIVE_WEEK

# The choices are the forecast, its mean with the last week, and the last week.
WEEK_SHARES = np.array([0.0, 0.5, 1.0])
# Without evidence, the errors of the choices are expected to have these ratios; this counts as a third of a window. To
# be chosen, another choice must be better by three quarters of a standard error. With less, one event of a public
# series (18 and 25 % worse with half and a quarter of it) was taken for a rule; with more, changed weeks are learnt
# late.
PRIOR_RATIOS, PRIOR_WINDOWS, MIN_SKILL = np.array([0.9, 0.95, 1.0]), 0.3, 0.75


def prefer_last_week(rolled: RolledForecasts, paths: Floats) -> tuple[Floats, float]:
    """Return the paths of all origins, and the share that the last week has in the newest one."""
    last_week = rolled.paths[:, rolled.names.index(NAIVE_WEEK)]
    choices = np.stack([paths + share * (last_week - paths) for share in WEEK_SHARES], axis=1)
    chosen = _choose(rolled, measure_errors(rolled, choices))
    result = np.empty_like(paths)
    for part, (start, end) in enumerate(pairwise(rolled.edges)):
        result[:, start:end] = choices[np.arange(len(paths)), chosen[part], start:end]
    return result, float(np.average(WEEK_SHARES[chosen[:, -1]], weights=np.diff(rolled.edges)))


def _choose(rolled: RolledForecasts, errors: Floats) -> Indexes:
    """Return the index of the choice with the smallest expected error, by part of the horizon and origin."""
    past = _PastErrors.of(rolled, errors)
    parts = np.arange(len(past.windows))
    # As in `backtest`, an error in the adjacent part of the horizon counts half.
    neighbours = NEIGHBOUR_DECAY ** np.abs(np.subtract.outer(parts, parts))

    def blend(values: Floats) -> Floats:
        return np.asarray(np.einsum("qp,poc->qoc", neighbours, past.windows * values))

    total = blend(np.ones_like(past.windows))
    prior = past.naive_error[:, None] * PRIOR_RATIOS
    expected = (blend(past.errors) + PRIOR_WINDOWS * prior) / (total + PRIOR_WINDOWS)
    chosen = np.argmin(expected + MIN_SKILL * np.sqrt(blend(past.variances) / total), axis=2)
    # A week that was always repeated exactly is repeated; without any outcome, `naive_error` is NaN.
    chosen[:, past.naive_error == 0] = len(WEEK_SHARES) - 1
    return np.asarray(np.where(np.isnan(past.naive_error), 0, chosen))


@dataclass(frozen=True, slots=True, eq=False)
class _PastErrors:
    """What is known at each origin, by part, origin and choice: errors, variances of their differences, and windows."""

    errors: Floats
    variances: Floats
    windows: Floats
    # Of repeating the week, by origin.
    naive_error: Floats

    @classmethod
    def of(cls, rolled: RolledForecasts, errors: Floats) -> _PastErrors:
        by_part, ends = np.moveaxis(np.nan_to_num(errors), 2, 0), rolled.edges[1:, None, None]
        age = rolled.origins[:, None] - rolled.origins - ends
        is_known = (age >= 0) & ~np.isnan(errors[:, 0].T)[:, None]
        # A week can be repeated after one week; the other models know seasons after two.
        has_week = is_known & (rolled.origins >= rolled.scale.week)
        counts = has_week.sum(axis=(0, 2))
        naive_sums = np.einsum("pon,pn->o", has_week, by_part[:, :, -1])
        is_scored = is_known & (rolled.origins >= 2 * rolled.scale.week)
        decay = np.where(is_scored, ERROR_DECAY ** (np.maximum(age, 0) / rolled.scale.day), 0.0)
        total = decay.sum(axis=2, keepdims=True)
        shares = decay / np.maximum(total, 1e-9)
        # Overlapping windows are not independent evidence.
        windows = np.maximum(total * np.minimum(1.0, rolled.stride / ends), 1e-9)
        differences = by_part - by_part[:, :, :1]
        variances = np.maximum(0.0, shares @ differences**2 - (shares @ differences) ** 2) / np.maximum(1.0, windows)
        naive_error = np.where(counts > 0, naive_sums / np.maximum(counts, 1), np.nan)
        return cls(shares @ by_part, variances, windows, naive_error)
