"""Demand as a regular series: points of any spacing become one value for each step, with gaps named and never invented.

A value of a step is the mean of what was measured in it. A step without a point is a gap (NaN). A fall to nothing that
comes back within days is an outage of the fleet or of its recording: nobody's demand went away, so it counts as a gap
as well, once it is over; while it lasts nobody can know, and it counts as it reads. `forecast` takes the series;
points come from `demand_table` or, in `web/capacity_api`, from the hub's own samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from watchkeeper.errors import CollectError
from watchkeeper.kit import durations

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
DAY_SECONDS = 86_400
# What exporters, schedulers and people sample at; a spacing within a tenth of one of these is meant to be it.
USUAL_MINUTES = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440, 10_080)
USUAL_STEPS = (10, 15, 30, *(60 * minutes for minutes in USUAL_MINUTES))
# Twelve weeks are looked at: so many steps of five minutes. Ahead, a week of five minutes takes a second and 64 MB.
MOST_STEPS, MOST_AHEAD = 25_000, 2_500
# An outage: below a fiftieth of what was usual, for at most three days, back to at least half of it within six hours.
OUTAGE_SHARE, OUTAGE_DAYS, BACK_SHARE = 0.02, 3, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class DemandSeries:
    """One value for each step from `start_seconds` on; NaN where nothing is known. `notes` say what was done to it."""

    start_seconds: float
    step_seconds: float
    values: Floats
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end_seconds(self) -> float:
        """When the first step after the series begins."""
        return self.start_seconds + len(self.values) * self.step_seconds

    def noted(self, notes: Sequence[str]) -> DemandSeries:
        return replace(self, notes=(*notes, *self.notes))


def regular_series(
    points: Sequence[tuple[float, float]] | Floats,
    *,
    combine: str = "",
    step_seconds: float | None = None,
    horizon_seconds: float = 0.0,
    where: str = "demand",
) -> DemandSeries:
    """A series with one value for each step; CollectError if the points cannot make one.

    Without `step_seconds` the step is that of the points, or a longer one where the horizon has too many of them.
    """
    notes: list[str] = []
    times, values = _in_order(points, combine, notes, where=where)
    step = step_seconds or _usual_step(times, notes)
    while step_seconds is None and horizon_seconds > MOST_AHEAD * step:
        step = float(next((usual for usual in USUAL_STEPS if usual > step), 2 * step))
    if step_seconds is None and horizon_seconds and step != _usual_step(times, []):
        notes.append(f"resampled to {durations.format_seconds(step)}: {MOST_AHEAD:,} steps ahead are the most")
    start = _first_edge(times, step)
    steps = int((times[-1] - start) // step) + 1
    if steps > MOST_STEPS:
        start, steps = start + (steps - MOST_STEPS) * step, MOST_STEPS
        times, values = times[times >= start], values[times >= start]
        notes.append(f"only the last {steps:,} steps are used")
    at = ((times - start) // step).astype(np.int64)
    return DemandSeries(
        start, step, _binned(at, values, steps, combine=combine), tuple(_gap_note(at, steps, step, notes))
    )


def _first_edge(times: Floats, step: float) -> float:
    """The first time itself where the others follow it evenly, else the whole step before it."""
    is_even = float(np.mean((times - times[0]) % step == 0)) >= 0.9
    return float(times[0]) if is_even else math.floor(times[0] / step) * step


def _in_order(
    points: Sequence[tuple[float, float]] | Floats, combine: str, notes: list[str], *, where: str
) -> tuple[Floats, Floats]:
    """Times and values by time, one for each time."""
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    times, values = array[np.argsort(array[:, 0], kind="stable")].T
    unique, first, counts = np.unique(times, return_index=True, return_counts=True)
    if len(unique) < 2:
        raise CollectError(f"{len(unique)} different times; a forecast needs at least 2", where=where)
    if counts.max() == 1 or combine:
        return times, values
    if float(np.median(counts)) > 1:
        many = int(np.median(counts))
        notes.append(
            f"each time stands {many} times, as of several groups: added up, unless --combine or --where is given"
        )
        return unique, np.add.reduceat(values, first)
    return unique, np.add.reduceat(values, first) / counts


def _usual_step(times: Floats, notes: list[str]) -> float:
    gaps = np.diff(np.unique(times))
    typical = float(np.median(gaps))
    step = next((float(usual) for usual in USUAL_STEPS if abs(usual - typical) <= 0.1 * usual), None)
    if step is None:
        # Neither regular nor usual: the next longer usual step has a point in nearly all of its steps.
        step = float(
            next((usual for usual in USUAL_STEPS if usual >= typical), DAY_SECONDS * math.ceil(typical / DAY_SECONDS))
        )
        apart = durations.format_seconds(typical) if typical >= 1 else f"{typical:.2g} s"
        notes.append(
            f"irregular times, mostly {apart} apart: the mean of each {durations.format_seconds(step)} is used"
        )
    elif float(np.mean(np.abs(gaps - typical) > 0.1 * typical)) > 0.1:
        notes.append(f"times are not evenly spaced: the mean of each {durations.format_seconds(step)} is used")
    return step


def _binned(at: npt.NDArray[np.int64], values: Floats, steps: int, *, combine: str) -> Floats:
    counts = np.bincount(at, minlength=steps)
    made = np.full(steps, math.nan)
    if combine == "max":
        peaks = np.full(steps, -math.inf)
        np.maximum.at(peaks, at, values)
        made[counts > 0] = peaks[counts > 0]
    elif combine == "last":
        made[at] = values
    else:
        sums = np.bincount(at, weights=values, minlength=steps)
        made[counts > 0] = sums[counts > 0] / (1 if combine == "sum" else counts[counts > 0])
    return made


def _gap_note(at: npt.NDArray[np.int64], steps: int, step: float, notes: list[str]) -> list[str]:
    missing = steps - len(np.unique(at))
    if missing:
        notes.append(f"{missing} of {steps} steps of {durations.format_seconds(step)} have no point and count as gaps")
    return notes


def find_outages(values: Floats, *, day: int) -> list[tuple[int, int, int]]:
    """Falls to nothing that came back: first step, the step after the last, and the step at which it was clear."""
    found: list[tuple[int, int, int]] = []
    steps, after = len(values), 2 * day
    # No usual level is above the highest value, so only these steps can be a fall.
    for at in np.flatnonzero(values <= OUTAGE_SHARE * values.max()) if steps else ():
        if at < after:
            continue
        past = values[max(0, at - 14 * day) : at]
        usual = float(np.median(past))
        fell = past[-3:].mean() > 0.25 * usual and float(np.mean(past <= 0.1 * usual)) < 0.1
        if usual <= 0 or values[at] > OUTAGE_SHARE * usual or not fell:
            continue
        later = np.flatnonzero(values[at:] > OUTAGE_SHARE * usual)
        end = after = int(at + later[0]) if len(later) else steps
        clear = np.flatnonzero(values[end : end + max(1, day // 4)] >= BACK_SHARE * usual)
        if end - at <= OUTAGE_DAYS * day and len(clear):
            found.append((int(at), end, end + int(clear[0]) + 1))
    return found


def fill_gaps(values: Floats, *, day: int, week: int) -> Floats:
    """Gaps take the value of a week before, else of a day before, else the last one known: the past only."""
    made = values.copy()
    known = np.flatnonzero(~np.isnan(values))
    first = int(known[0]) if len(known) else 0
    made[:first] = values[first] if len(known) else 0.0
    for at in np.flatnonzero(np.isnan(made)):
        back = week if at - week >= first else day if at - day >= first else 1
        made[at] = made[at - back]
    return made
