"""How far off: intervals from what the same procedure missed before, by how far ahead.

At an origin only residuals count whose outcome was known then, the newer ones more. A history of weeks has few windows
of a week that do not overlap, so parts of the horizon lend each other what they know: residuals, divided by the mean
size of their part, give one pair of tails for all, and the sizes are drawn towards one power of the distance, the more
the fewer windows a part has. That power lies between none and a random walk's. Within a day both edges are equally
far: on which side the last forecasts missed says little of the next. Further ahead a trend that was missed is missed
again, so the sides part. At last the intervals that would have been given before are held against what came, and the
coming one is widened or narrowed by half of what would have made those hold 80 %, by less while evidence is thin
(adaptive conformal prediction). `forecast` adds the offsets to its path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.backtest import Indexes, RolledForecasts
from watchkeeper.capacity.demand import Floats

HELD = 0.8
# What comes is a little wider than what was: 8 % and 92 % of what was missed hold 80 % of what comes (first chosen with
# the public traces in view; how the parts lend was chosen on synthetic series and held on other draws of them).
TAIL = 0.08
# A residual of a day ago counts 12 % less: wide weeks of long ago should not make this week wide (chosen on synthetic
# series and two thirds of the public ones).
RESIDUAL_FADES = 0.88
# Fewer rows than this in a part say nothing about its tails.
LEAST_ROWS = 3
# With so many windows that do not overlap, a part's own size counts as much as the law of all parts.
OWN_WINDOWS = 5.0
# The root of the distance, as a random walk's.
STEEPEST = 0.5
# Intervals of fewer past forecasts are not what a history of weeks gives, and are not judged.
LEAST_CALIBRATED = 8
# With so many windows that do not overlap, past intervals correct the coming one by half of what they should have been
# (chosen and confirmed as `backtest.PLAIN_WINDOWS`), and more windows by no more: the whole had a worse score. What
# they should have been counts up to this factor, since after a constant series they have no width.
JUDGED_WINDOWS, MOST_SHARE, MOST_CORRECTED = 2.0, 0.5, 4.0
# The standard normal distribution has a tenth above this.
NORMAL_TENTH = 1.2816


@dataclass(frozen=True, slots=True, eq=False)
class ForecastResiduals:
    """What was missed at past origins, and its `ratios` to the edges that were given there: within 1 it was inside."""

    residuals: Floats
    origins: Indexes
    rolled: RolledForecasts
    ratios: Floats

    @classmethod
    def of(cls, residuals: Floats, origins: Indexes, rolled: RolledForecasts) -> ForecastResiduals:
        ratios = np.full(residuals.shape, math.nan)
        for row in range(LEAST_CALIBRATED, len(origins)):
            low, high = plain_offsets(residuals[:row], origins[:row], rolled, now=int(origins[row]))
            edges = np.where(residuals[row] < 0, -low, high)
            ratios[row] = np.abs(residuals[row]) / np.maximum(edges, 1e-9)
        return cls(residuals, origins, rolled, ratios)

    def offsets(self, now: int) -> tuple[Floats, Floats]:
        """What to add to a path made at step `now` for its lower and upper edge, by step ahead."""
        rows = int(np.searchsorted(self.origins, now))
        low, high = plain_offsets(self.residuals[:rows], self.origins[:rows], self.rolled, now=now)
        correction = self._correction(rows, now)
        return low * correction, high * correction

    def _correction(self, rows: int, now: int) -> float:
        """The factor that past intervals should have had, as far as there are windows apart from each other to tell."""
        steps, day = self.rolled.steps, self.rolled.scale.day
        judged = np.arange(rows) >= LEAST_CALIBRATED
        judged &= self.origins[:rows] + min(day, steps) <= now
        origins, ratios = self.origins[:rows][judged], self.ratios[:rows][judged]
        known = (origins[:, None] + np.arange(1, steps + 1) <= now) & ~np.isnan(ratios)
        if not known.any():
            return 1.0
        fading = RESIDUAL_FADES ** ((now - origins) / day)
        weights = np.broadcast_to(fading[:, None], known.shape)[known]
        needed = weighted_quantiles(ratios[known], weights, (HELD,))[0]
        windows = (now - int(origins[0])) / steps
        share = min(MOST_SHARE, windows / (windows + JUDGED_WINDOWS))
        return float(np.clip(needed, 1 / MOST_CORRECTED, MOST_CORRECTED) ** share)


def plain_offsets(residuals: Floats, origins: Indexes, rolled: RolledForecasts, *, now: int) -> tuple[Floats, Floats]:
    """The offsets before they are corrected by how past ones did."""
    ahead = np.arange(1, rolled.steps + 1)
    known = np.where(origins[:, None] + ahead <= now, residuals, math.nan)
    fading = RESIDUAL_FADES ** ((now - origins) / rolled.scale.day)
    centres, parts, apart = [], [], []
    for start, end in zip(rolled.edges[:-1], rolled.edges[1:], strict=True):
        there = ~np.isnan(known[:, start:end])
        if int(there.any(axis=1).sum()) >= LEAST_ROWS:
            weights = np.broadcast_to(fading[:, None], there.shape)[there]
            centres.append((start + end + 1) / 2)
            parts.append((known[:, start:end][there], weights / weights.sum()))
            apart.append(1 + float(np.ptp(origins[there.any(axis=1)])) / end)
    if not parts:
        return _as_random_walk(rolled)
    sizes = np.array([float(weights @ np.abs(values)) for values, weights in parts])
    scaled = np.concatenate(
        [values / size if size > 0 else values for (values, _), size in zip(parts, sizes, strict=True)]
    )
    weights = np.concatenate([weights for _, weights in parts])
    low, high = weighted_quantiles(scaled, weights, (TAIL, 1 - TAIL))
    either = weighted_quantiles(np.abs(scaled), weights, (1 - 2 * TAIL,))[0]
    alike = np.minimum(1.0, rolled.scale.day / ahead)
    drawn = _along(ahead, np.array(centres), by_law(np.array(centres), sizes, apart=np.array(apart)))
    return (
        drawn * ((1 - alike) * min(0.0, low) - alike * either),
        drawn * ((1 - alike) * max(0.0, high) + alike * either),
    )


def by_law(centres: Floats, sizes: Floats, *, apart: Floats) -> Floats:
    """Sizes drawn towards one power of the distance; those of many windows apart from each other stay as they are."""
    if len(sizes) < 2 or not sizes.all():
        return sizes
    far, large = np.log(centres), np.log(sizes)
    middle_far, middle_large = np.average(far, weights=apart), np.average(large, weights=apart)
    steepness = np.average((far - middle_far) * (large - middle_large), weights=apart)
    steepness /= np.average((far - middle_far) ** 2, weights=apart)
    law = middle_large + min(max(steepness, 0.0), STEEPEST) * (far - middle_far)
    own = apart / (apart + OWN_WINDOWS)
    return np.asarray(np.exp(own * large + (1 - own) * law))


def weighted_quantiles(values: Floats, weights: Floats, levels: tuple[float, ...]) -> list[float]:
    order = np.argsort(values)
    position = np.cumsum(weights[order]) - 0.5 * weights[order]
    return [float(found) for found in np.interp(levels, position / weights.sum(), values[order])]


def _along(ahead: Indexes, centres: Floats, widths: Floats) -> Floats:
    """Straight between the centres of parts; beyond the last one it grows with the root of the distance."""
    drawn = np.interp(ahead, centres, widths)
    return np.asarray(drawn * np.sqrt(np.maximum(1.0, ahead / max(centres[-1], 1.0))))


def _as_random_walk(rolled: RolledForecasts) -> tuple[Floats, Floats]:
    """For a history too short to test anything: as far as its own steps would carry it."""
    width = NORMAL_TENTH * rolled.usual_move * np.sqrt(np.arange(1, rolled.steps + 1))
    return -width, width
