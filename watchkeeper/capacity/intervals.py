"""How far off: intervals from what the same procedure missed before, by how far ahead.

At an origin only residuals count whose outcome was known then, the newer ones more. In each part of the horizon they
are divided by their own mean size, so that parts can lend each other their tails: 80 % of what was missed lies between
them. The size never shrinks with distance: a week ahead is not surer than a day ahead, whatever a short history says.
Where a part was never tested, it goes on as a random walk's would. `forecast` adds the offsets to its path.
"""

from __future__ import annotations

import math

import numpy as np

from watchkeeper.capacity.backtest import Indexes, Rolled
from watchkeeper.capacity.forecast_models import Floats

# Windows that overlap and a fleet that changes make what comes a little wider than what was: 8 % and 92 % of what was
# missed hold 80 % of what comes (chosen by looking at synthetic series and all public traces).
TAIL = 0.08
# A residual of a day ago counts 7 % less: wide weeks of long ago should not make this week wide.
RESIDUAL_FADES = 0.93
# What the next part of the horizon says about the tails of this one.
NEIGHBOUR_SHARE = 0.3
# Fewer rows than this in a part say nothing about its tails.
LEAST_ROWS = 3
# One window that does not overlap others widens by half, ten by a twentieth: a spread of few is too small.
FEW_WINDOWS = 0.5
# The standard normal distribution has a tenth above this.
NORMAL_TENTH = 1.2816


def offsets(residuals: Floats, origins: Indexes, rolled: Rolled, *, now: int) -> tuple[Floats, Floats]:
    """What to add to a path made at step `now` for its lower and upper edge, by step ahead."""
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
    sizes = np.maximum.accumulate([float(weights @ np.abs(values)) for values, weights in parts])
    widths = sizes * (1 + FEW_WINDOWS / np.array(apart))
    tails = np.array([_tails(parts, sizes, at) for at in range(len(parts))])
    low, high = (_along(ahead, np.array(centres), widths * tails[:, side]) for side in (0, 1))
    return low, high


def _tails(parts: list[tuple[Floats, Floats]], sizes: Floats, at: int) -> tuple[float, float]:
    """Both tails at one part of the horizon in units of its size, its neighbours lending theirs."""
    scaled = [values / size if size > 0 else values for (values, _), size in zip(parts, sizes, strict=True)]
    weights = [weights * NEIGHBOUR_SHARE ** abs(other - at) for other, (_, weights) in enumerate(parts)]
    low, high = weighted_quantiles(np.concatenate(scaled), np.concatenate(weights), (TAIL, 1 - TAIL))
    return min(0.0, low), max(0.0, high)


def weighted_quantiles(values: Floats, weights: Floats, levels: tuple[float, ...]) -> list[float]:
    order = np.argsort(values, kind="stable")
    position = np.cumsum(weights[order]) - 0.5 * weights[order]
    return [float(found) for found in np.interp(levels, position / weights.sum(), values[order])]


def _along(ahead: Indexes, centres: Floats, widths: Floats) -> Floats:
    """Straight between the centres of parts; beyond the last one it grows with the root of the distance."""
    drawn = np.interp(ahead, centres, widths)
    return np.asarray(drawn * np.sqrt(np.maximum(1.0, ahead / max(centres[-1], 1.0))))


def _as_random_walk(rolled: Rolled) -> tuple[Floats, Floats]:
    """For a history too short to test anything: as far as its own steps would carry it."""
    width = NORMAL_TENTH * rolled.usual_move * np.sqrt(np.arange(1, rolled.steps + 1))
    return -width, width
