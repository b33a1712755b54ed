"""Element-wise functions: rounding, logarithms, trigonometry, clamping, and dates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from watchkeeper.query.engine import Floats
from watchkeeper.query.evaluate.values import Invocation, PromFunction, Scalar, Vector, drop_name, empty_vector

# 1970-01-01 was a Thursday; Prometheus counts days of the week from Sunday.
EPOCH_WEEKDAY = 4

NUMPY_FUNCTIONS = "abs ceil cos cosh exp floor log10 log2 sin sinh sqrt tan tanh"
ELEMENTWISE: dict[str, Callable[[Floats], Floats]] = {
    **{name: getattr(np, name) for name in NUMPY_FUNCTIONS.split()},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    "deg": lambda values: values * 180 / np.pi,
    "ln": np.log,
    "rad": lambda values: values * np.pi / 180,
    "sgn": np.sign,
}


def _elementwise(compute: Callable[[Floats], Floats]) -> PromFunction:
    def call(invocation: Invocation) -> Vector:
        vector = invocation.vector(0)
        with np.errstate(all="ignore"):
            return drop_name(Vector(vector.series, compute(vector.values), vector.present))

    return call


def _clamp(invocation: Invocation, low: Scalar | None, high: Scalar | None) -> Vector:
    """Clamp values; the result is empty at steps where the minimum is above the maximum."""
    vector = invocation.vector(0)
    values, present = vector.values, vector.present
    if low is not None and high is not None:
        present = present & ~(high.values < low.values)
    if high is not None:
        values = minimum(values, high.values)
    if low is not None:
        values = maximum(values, low.values)
    return drop_name(Vector(vector.series, values, present))


def maximum(left: Floats, right: Floats) -> Floats:
    """The maximum as Go's math.Max: NaN if either is NaN, but infinity if either is infinity."""
    larger = np.maximum(left, right)
    return np.where((left == np.inf) | (right == np.inf), np.inf, larger) if np.isnan(larger).any() else larger


def minimum(left: Floats, right: Floats) -> Floats:
    """The minimum as Go's math.Min: NaN if either is NaN, but -infinity if either is -infinity."""
    smaller = np.minimum(left, right)
    return np.where((left == -np.inf) | (right == -np.inf), -np.inf, smaller) if np.isnan(smaller).any() else smaller


def _round(invocation: Invocation) -> Vector:
    """Round to the nearest multiple, halves up; dividing by the inverse keeps 0.1 exact, as in Prometheus."""
    vector = invocation.vector(0)
    with np.errstate(all="ignore"):
        inverse = 1.0 / (invocation.scalar(1).values if len(invocation.args) > 1 else np.ones(1))
        values = np.floor(vector.values * inverse + 0.5) / inverse
    return drop_name(Vector(vector.series, values, vector.present))


def _calendar(compute: Callable[[Floats], Floats]) -> PromFunction:
    """Wrap a date function of seconds; without an argument it uses the time of the step."""

    def call(invocation: Invocation) -> Vector:
        step_seconds = Scalar(invocation.times_ms / 1000)
        seconds = invocation.vector(0) if invocation.args else invocation.single_series(step_seconds)
        if not len(seconds.series):
            return empty_vector(len(invocation.times_ms))
        with np.errstate(all="ignore"):
            is_valid = np.isfinite(seconds.values) & (np.abs(seconds.values) < 2.0**53)
            values = np.where(is_valid, compute(np.where(is_valid, np.trunc(seconds.values), 0.0)), np.nan)
        return drop_name(Vector(seconds.series, values, seconds.present))

    return call


def _dates(seconds: Floats) -> np.typing.NDArray[np.datetime64]:
    return seconds.astype(np.int64).astype("datetime64[s]")


def _units_within(seconds: Floats, unit: str, larger_unit: str) -> Floats:
    """The number of whole units since the larger unit began."""
    dates = _dates(seconds)
    passed = dates.astype(f"datetime64[{unit}]") - dates.astype(f"datetime64[{larger_unit}]").astype(
        f"datetime64[{unit}]"
    )
    return np.asarray(passed.astype(np.int64), dtype=np.float64)


def _days_in_month(seconds: Floats) -> Floats:
    month = _dates(seconds).astype("datetime64[M]")
    length = (month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")
    return np.asarray(length.astype(np.int64), dtype=np.float64)


CALENDAR: dict[str, Callable[[Floats], Floats]] = {
    "minute": lambda seconds: _units_within(seconds, "m", "h"),
    "hour": lambda seconds: _units_within(seconds, "h", "D"),
    "day_of_week": lambda seconds: (np.floor(seconds / 86_400) + EPOCH_WEEKDAY) % 7,
    "day_of_month": lambda seconds: _units_within(seconds, "D", "M") + 1,
    "day_of_year": lambda seconds: _units_within(seconds, "D", "Y") + 1,
    "days_in_month": _days_in_month,
    "month": lambda seconds: _units_within(seconds, "M", "Y") + 1,
    "year": lambda seconds: _dates(seconds).astype("datetime64[Y]").astype(np.float64) + 1970,
}

FUNCTIONS: dict[str, PromFunction] = {
    **{name: _elementwise(compute) for name, compute in ELEMENTWISE.items()},
    **{name: _calendar(compute) for name, compute in CALENDAR.items()},
    "clamp": lambda call: _clamp(call, call.scalar(1), call.scalar(2)),
    "clamp_min": lambda call: _clamp(call, call.scalar(1), None),
    "clamp_max": lambda call: _clamp(call, None, call.scalar(1)),
    "round": _round,
    "max_of": lambda invocation: Scalar(maximum(invocation.scalar(0).values, invocation.scalar(1).values)),
    "min_of": lambda invocation: Scalar(minimum(invocation.scalar(0).values, invocation.scalar(1).values)),
}
