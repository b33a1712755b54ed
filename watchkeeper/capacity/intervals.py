"""Compute prediction intervals from the errors (residuals) of past forecasts, by distance ahead.

A history of weeks has few independent windows of a week, so parts of the horizon share information: residuals divided
by the mean size of their part give one pair of tail quantiles, and the sizes are fitted to a power law of the distance.
Past intervals are compared with the outcomes, and the new interval is scaled by half of the correction that would have
given them 80 % coverage, or less with little evidence (adaptive conformal prediction).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.backtest import Indexes, RolledForecasts
from watchkeeper.capacity.demand import Floats

INTERVAL_SHARE = 0.8
# Future errors are slightly larger than past ones: the 8 % and 92 % quantiles of past errors cover 80 % of future ones.
# Tuned on the public traces; how parts share information was tuned on synthetic series and confirmed on others.
TAIL = 0.08
# Each day, a residual counts 12 % less, so that old weeks with large errors do not widen this week (tuned on synthetic
# series and two thirds of the public ones).
RESIDUAL_DECAY = 0.88
# A part with fewer rows has too little evidence for its tails.
MIN_ROWS = 3
# With so many independent windows, the measured size of a part counts as much as the power law.
OWN_WINDOWS = 5.0
# The exponent of a random walk: errors grow with the square root of the distance.
MAX_STEEPNESS = 0.5
# Intervals from fewer past forecasts are not evaluated, because a history of weeks has more.
MIN_CALIBRATED = 8
# With `CORRECTION_WINDOWS` independent windows, half of the correction is applied, and never more, because the full
# correction had a worse score (tuned like `backtest.PLAIN_WINDOWS`). The correction is limited to the factor
# `MAX_CORRECTION`, because intervals after a constant series have no width.
CORRECTION_WINDOWS, MAX_CORRECTION_SHARE, MAX_CORRECTION = 2.0, 0.5, 4.0
# The 90 % quantile of the standard normal distribution.
NORMAL_TENTH = 1.2816


@dataclass(frozen=True, slots=True, eq=False)
class ForecastResiduals:
    """Residuals at past origins, and their `ratios` to the interval at that origin; at most 1 is inside."""

    residuals: Floats
    origins: Indexes
    rolled: RolledForecasts
    ratios: Floats

    @classmethod
    def of(cls, residuals: Floats, origins: Indexes, rolled: RolledForecasts) -> ForecastResiduals:
        ratios = np.full(residuals.shape, math.nan)
        for row in range(MIN_CALIBRATED, len(origins)):
            low, high = uncorrected_offsets(residuals[:row], origins[:row], rolled, now=int(origins[row]))
            edges = np.where(residuals[row] < 0, -low, high)
            ratios[row] = np.abs(residuals[row]) / np.maximum(edges, 1e-9)
        return cls(residuals, origins, rolled, ratios)

    def offsets(self, now: int) -> tuple[Floats, Floats]:
        """Return the offsets from a path forecast at step `now` to its lower and upper limit, by step ahead."""
        rows = int(np.searchsorted(self.origins, now))
        low, high = uncorrected_offsets(self.residuals[:rows], self.origins[:rows], self.rolled, now=now)
        correction = self._correction(rows, now)
        return low * correction, high * correction

    def _correction(self, rows: int, now: int) -> float:
        """Return the factor that would have given past intervals 80 % coverage, reduced if windows are few."""
        steps, day = self.rolled.steps, self.rolled.scale.day
        is_usable = np.arange(rows) >= MIN_CALIBRATED
        is_usable &= self.origins[:rows] + min(day, steps) <= now
        origins, ratios = self.origins[:rows][is_usable], self.ratios[:rows][is_usable]
        has_outcome = (origins[:, None] + np.arange(1, steps + 1) <= now) & ~np.isnan(ratios)
        if not has_outcome.any():
            return 1.0
        decay = RESIDUAL_DECAY ** ((now - origins) / day)
        weights = np.broadcast_to(decay[:, None], has_outcome.shape)[has_outcome]
        needed = find_weighted_quantiles(ratios[has_outcome], weights, (INTERVAL_SHARE,))[0]
        windows = (now - int(origins[0])) / steps
        share = min(MAX_CORRECTION_SHARE, windows / (windows + CORRECTION_WINDOWS))
        return float(np.clip(needed, 1 / MAX_CORRECTION, MAX_CORRECTION) ** share)


def uncorrected_offsets(
    residuals: Floats, origins: Indexes, rolled: RolledForecasts, *, now: int
) -> tuple[Floats, Floats]:
    ahead = np.arange(1, rolled.steps + 1)
    past_residuals = np.where(origins[:, None] + ahead <= now, residuals, math.nan)
    decay = RESIDUAL_DECAY ** ((now - origins) / rolled.scale.day)
    centres, parts, windows = [], [], []
    for start, end in zip(rolled.edges[:-1], rolled.edges[1:], strict=True):
        has_value = ~np.isnan(past_residuals[:, start:end])
        if int(has_value.any(axis=1).sum()) >= MIN_ROWS:
            weights = np.broadcast_to(decay[:, None], has_value.shape)[has_value]
            centres.append((start + end + 1) / 2)
            parts.append((past_residuals[:, start:end][has_value], weights / weights.sum()))
            windows.append(1 + float(np.ptp(origins[has_value.any(axis=1)])) / end)
    if not parts:
        # A history too short to test: a random walk with the step changes of the series.
        width = NORMAL_TENTH * rolled.rms_step_change * np.sqrt(ahead)
        return -width, width
    sizes = np.array([float(weights @ np.abs(values)) for values, weights in parts])
    pairs = zip(parts, sizes, strict=True)
    scaled = np.concatenate([values / size if size > 0 else values for (values, _), size in pairs])
    weights = np.concatenate([weights for _, weights in parts])
    low, high = find_weighted_quantiles(scaled, weights, (TAIL, 1 - TAIL))
    symmetric = find_weighted_quantiles(np.abs(scaled), weights, (1 - 2 * TAIL,))[0]
    # Within a day the side of recent errors says little about the next ones; further ahead a missed trend stays missed.
    symmetry = np.minimum(1.0, rolled.scale.day / ahead)
    fitted = fit_power_law(np.array(centres), sizes, windows=np.array(windows))
    # Beyond the last centre, sizes grow with the root of the distance.
    sizes_ahead = np.interp(ahead, centres, fitted) * np.sqrt(np.maximum(1.0, ahead / max(centres[-1], 1.0)))
    return (
        sizes_ahead * ((1 - symmetry) * min(0.0, low) - symmetry * symmetric),
        sizes_ahead * ((1 - symmetry) * max(0.0, high) + symmetry * symmetric),
    )


def fit_power_law(centres: Floats, sizes: Floats, *, windows: Floats) -> Floats:
    """Fit the sizes to a power law of the distance; sizes with many independent windows change little."""
    if len(sizes) < 2 or not sizes.all():
        return sizes
    far, large = np.log(centres), np.log(sizes)
    middle_far, middle_large = np.average(far, weights=windows), np.average(large, weights=windows)
    steepness = np.average((far - middle_far) * (large - middle_large), weights=windows)
    steepness /= np.average((far - middle_far) ** 2, weights=windows)
    law = middle_large + min(max(steepness, 0.0), MAX_STEEPNESS) * (far - middle_far)
    own_share = windows / (windows + OWN_WINDOWS)
    return np.asarray(np.exp(own_share * large + (1 - own_share) * law))


def find_weighted_quantiles(values: Floats, weights: Floats, levels: tuple[float, ...]) -> list[float]:
    order = np.argsort(values)
    position = np.cumsum(weights[order]) - 0.5 * weights[order]
    return [float(quantile) for quantile in np.interp(levels, position / weights.sum(), values[order])]
