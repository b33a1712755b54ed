"""The signatures of all PromQL functions, one row for each.

The parser checks calls against this table, and the evaluator has an implementation for each name.
Source: prometheus/prometheus, promql/parser/functions.go, read 2026-08; experimental functions are behind
a feature flag there.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.query.promql.ast import ValueType


@dataclass(frozen=True, slots=True)
class Function:
    """A function signature; the last argument is optional and may repeat up to `variadic` times, -1 is no limit."""

    name: str
    args: tuple[ValueType, ...]
    variadic: int = 0
    returns: ValueType = ValueType.INSTANT
    is_experimental: bool = False

    @property
    def min_args(self) -> int:
        return len(self.args) - (1 if self.variadic else 0)

    @property
    def max_args(self) -> int | None:
        return None if self.variadic < 0 else self.min_args + self.variadic


V, R, S, T = ValueType.INSTANT, ValueType.RANGE, ValueType.SCALAR, ValueType.STRING
VECTOR_FUNCTIONS = (
    "abs absent acos acosh asin asinh atan atanh ceil cos cosh deg exp floor histogram_avg histogram_count "
    "histogram_stddev histogram_stdvar histogram_sum ln log10 log2 rad sgn sin sinh sort sort_desc sqrt tan tanh "
    "timestamp"
)
RANGE_FUNCTIONS = (
    "absent_over_time avg_over_time changes count_over_time delta deriv idelta increase irate last_over_time "
    "max_over_time min_over_time present_over_time rate resets stddev_over_time stdvar_over_time sum_over_time"
)
EXPERIMENTAL_RANGE_FUNCTIONS = (
    "first_over_time mad_over_time ts_of_first_over_time ts_of_last_over_time ts_of_max_over_time ts_of_min_over_time"
)
CALENDAR_FUNCTIONS = "day_of_month day_of_week day_of_year days_in_month hour minute month year"
OTHER_FUNCTIONS = (
    Function("clamp", (V, S, S)),
    Function("clamp_max", (V, S)),
    Function("clamp_min", (V, S)),
    Function("double_exponential_smoothing", (R, S, S), is_experimental=True),
    Function("end", (), returns=S, is_experimental=True),
    Function("histogram_fraction", (S, S, V)),
    Function("histogram_quantile", (S, V)),
    Function("histogram_quantiles", (V, T, S, S), variadic=9, is_experimental=True),
    Function("info", (V, V), variadic=1, is_experimental=True),
    Function("integral", (R, S), variadic=1, is_experimental=True),
    Function("label_join", (V, T, T, T), variadic=-1),
    Function("label_replace", (V, T, T, T, T)),
    Function("max_of", (S, S), returns=S, is_experimental=True),
    Function("min_of", (S, S), returns=S, is_experimental=True),
    Function("pi", (), returns=S),
    Function("predict_linear", (R, S)),
    Function("quantile_over_time", (S, R)),
    Function("range", (), returns=S, is_experimental=True),
    Function("round", (V, S), variadic=1),
    Function("scalar", (V,), returns=S),
    Function("sort_by_label", (V, T), variadic=-1, is_experimental=True),
    Function("sort_by_label_desc", (V, T), variadic=-1, is_experimental=True),
    Function("start", (), returns=S, is_experimental=True),
    Function("start_timestamp", (V,), is_experimental=True),
    Function("step", (), returns=S, is_experimental=True),
    Function("time", (), returns=S),
    Function("vector", (S,)),
)
FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in (
        *(Function(name, (V,)) for name in VECTOR_FUNCTIONS.split()),
        *(Function(name, (R,)) for name in RANGE_FUNCTIONS.split()),
        *(Function(name, (R,), is_experimental=True) for name in EXPERIMENTAL_RANGE_FUNCTIONS.split()),
        *(Function(name, (V,), variadic=1) for name in CALENDAR_FUNCTIONS.split()),
        *OTHER_FUNCTIONS,
    )
}

# The parameter type of each aggregation with a parameter.
AGGREGATION_PARAMETERS = {"topk": S, "bottomk": S, "quantile": S, "limitk": S, "limit_ratio": S, "count_values": T}
AGGREGATIONS = AGGREGATION_PARAMETERS.keys() | {"sum", "avg", "count", "min", "max", "group", "stddev", "stdvar"}
