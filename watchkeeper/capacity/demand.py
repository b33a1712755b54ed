"""Convert points of demand to a regular series with one value for each step; gaps stay gaps.

The value of a step is the mean of its points; a step without a point is a gap (NaN). A fall to zero that recovers in
days is an outage of the fleet or of its recording, not a change of demand: it counts as a gap once it is over, and as
measured while it lasts.
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
# Usual sampling intervals; an interval within 10 % of one of these is treated as that one.
USUAL_MINUTES = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440, 10_080)
USUAL_STEPS = (10, 15, 30, *(60 * minutes for minutes in USUAL_MINUTES))
# History: twelve weeks in steps of five minutes. Ahead: a week in steps of five minutes takes a second and 64 MB.
MAX_STEPS, MAX_STEPS_AHEAD = 25_000, 2_500
# An outage: below 2 % of the usual demand for at most three days, then back to at least 50 % within six hours.
OUTAGE_SHARE, OUTAGE_DAYS, BACK_SHARE = 0.02, 3, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class DemandSeries:
    """One value for each step from `start_seconds` on, NaN for gaps. `notes` say how the values were changed."""

    start_seconds: float
    step_seconds: float
    values: Floats
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + len(self.values) * self.step_seconds

    def with_notes(self, notes: Sequence[str]) -> DemandSeries:
        return replace(self, notes=(*notes, *self.notes))


def regular_series(
    points: Sequence[tuple[float, float]] | Floats,
    *,
    combine: str = "",
    step_seconds: float | None = None,
    horizon_seconds: float = 0.0,
    where: str = "demand",
) -> DemandSeries:
    """Return a series with one value for each step; raise CollectError if there are too few points."""
    # Without `step_seconds`, the step is that of the points, or longer if the horizon would have too many steps.
    notes: list[str] = []
    times, values = _sort_points(points, combine, notes, where=where)
    step = step_seconds or _detect_step(times, notes)
    while step_seconds is None and horizon_seconds > MAX_STEPS_AHEAD * step:
        step = float(next((usual for usual in USUAL_STEPS if usual > step), 2 * step))
    if step_seconds is None and horizon_seconds and step != _detect_step(times, []):
        notes.append(f"resampled to {durations.format_seconds(step)}: the limit is {MAX_STEPS_AHEAD:,} steps ahead")
    # Times at regular steps keep their start; other times start at a full step.
    is_even = float(np.mean((times - times[0]) % step == 0)) >= 0.9
    start = float(times[0]) if is_even else math.floor(times[0] / step) * step
    steps = int((times[-1] - start) // step) + 1
    if steps > MAX_STEPS:
        start, steps = start + (steps - MAX_STEPS) * step, MAX_STEPS
        times, values = times[times >= start], values[times >= start]
        notes.append(f"only the last {steps:,} steps are used")
    step_indexes = ((times - start) // step).astype(np.int64)
    missing = steps - len(np.unique(step_indexes))
    if missing:
        notes.append(f"{missing} of {steps} steps of {durations.format_seconds(step)} have no point and are gaps")
    return DemandSeries(start, step, _combine_by_step(step_indexes, values, steps, combine=combine), tuple(notes))


def _sort_points(
    points: Sequence[tuple[float, float]] | Floats, combine: str, notes: list[str], *, where: str
) -> tuple[Floats, Floats]:
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    times, values = array[np.argsort(array[:, 0], kind="stable")].T
    unique, first, counts = np.unique(times, return_index=True, return_counts=True)
    if len(unique) < 2:
        raise CollectError(f"{len(unique)} distinct times; a forecast needs at least 2", where=where)
    if counts.max() == 1 or combine:
        return times, values
    sums, repeats = np.add.reduceat(values, first), float(np.median(counts))
    if repeats <= 1:
        return unique, sums / counts
    groups = f"each time has {int(repeats)} rows, one for each group"
    notes.append(f"{groups}: values are summed; --combine and --where change this")
    return unique, sums


def _detect_step(times: Floats, notes: list[str]) -> float:
    gaps = np.diff(np.unique(times))
    typical = float(np.median(gaps))
    step = next((float(usual) for usual in USUAL_STEPS if abs(usual - typical) <= 0.1 * usual), None)
    if step is None:
        # Irregular times: with the next longer usual step, nearly every step has a point.
        whole_days = DAY_SECONDS * math.ceil(typical / DAY_SECONDS)
        step = float(next((usual for usual in USUAL_STEPS if usual >= typical), whole_days))
        apart = durations.format_seconds(typical) if typical >= 1 else f"{typical:.2g} s"
        used = f"the mean of each {durations.format_seconds(step)} is used"
        notes.append(f"irregular times, typically {apart} apart: {used}")
    elif float(np.mean(np.abs(gaps - typical) > 0.1 * typical)) > 0.1:
        notes.append(f"times are not evenly spaced: the mean of each {durations.format_seconds(step)} is used")
    return step


def _combine_by_step(step_indexes: npt.NDArray[np.int64], values: Floats, steps: int, *, combine: str) -> Floats:
    counts = np.bincount(step_indexes, minlength=steps)
    step_values = np.full(steps, math.nan)
    if combine == "max":
        peaks = np.full(steps, -math.inf)
        np.maximum.at(peaks, step_indexes, values)
        step_values[counts > 0] = peaks[counts > 0]
    elif combine == "last":
        step_values[step_indexes] = values
    else:
        sums = np.bincount(step_indexes, weights=values, minlength=steps)
        step_values[counts > 0] = sums[counts > 0] / (1 if combine == "sum" else counts[counts > 0])
    return step_values


def find_outages(values: Floats, *, day: int) -> list[tuple[int, int, int]]:
    """Return each outage as its first step, the step after its last, and the step that confirmed the recovery."""
    outages: list[tuple[int, int, int]] = []
    steps, after = len(values), 2 * day
    # The usual level is at most the highest value, so an outage can start only at these steps.
    for step in np.flatnonzero(values <= OUTAGE_SHARE * values.max()) if steps else ():
        if step < after:
            continue
        past = values[max(0, step - 14 * day) : step]
        usual = float(np.median(past))
        fell = past[-3:].mean() > 0.25 * usual and float(np.mean(past <= 0.1 * usual)) < 0.1
        if usual <= 0 or values[step] > OUTAGE_SHARE * usual or not fell:
            continue
        later = np.flatnonzero(values[step:] > OUTAGE_SHARE * usual)
        end = after = int(step + later[0]) if len(later) else steps
        clear = np.flatnonzero(values[end : end + max(1, day // 4)] >= BACK_SHARE * usual)
        if end - step <= OUTAGE_DAYS * day and len(clear):
            outages.append((int(step), end, end + int(clear[0]) + 1))
    return outages


def fill_gaps(values: Floats, *, day: int, week: int) -> Floats:
    """Fill gaps from the past only: the value a week earlier, else a day earlier, else the previous value."""
    filled = values.copy()
    with_value = np.flatnonzero(~np.isnan(values))
    first = int(with_value[0]) if len(with_value) else 0
    filled[:first] = values[first] if len(with_value) else 0.0
    for step in np.flatnonzero(np.isnan(filled)):
        back = week if step - week >= first else day if step - day >= first else 1
        filled[step] = filled[step - back]
    return filled
