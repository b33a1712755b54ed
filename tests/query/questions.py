"""PromQL by the thousand over the series of `differential`: functions, operators, matchings, modifiers, mistakes.

The same seed gives the same list. Nothing is asked whose answer hangs on the last bit of a sum or on the order of a
server's own: of what `limitk` and a tie choose among series that were made, only the count is asked.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from watchkeeper.query.promql import functions

V, R = functions.V, functions.R
FLOATS = ("temp", "temp", "energy_total", "odd", "num", "num", "sparse", "ended", '{"gpu.load"}')
# Without `bounds`, whose custom bounds change: 3.5 does not reconcile them.
NATIVE = ("latency", "latency", "depth", "custom", "mixed", "zeros")
RANGES = ("15s", "30s", "1m", "90s", "2m", "5m", "10m", "1h", "150")
OFFSETS = ("", "", "", "", " offset 1m", " offset 5m", " offset -2m", " offset 1m30s", " @ 1700000600", " @ start()")
OFFSETS += (" @ end() offset 3m", " offset 2m @ 1700000900.5", " @ -1")
SUBQUERIES = ("[5m:1m]", "[10m:30s]", "[4m:]", "[90s:15s]", "[4m:1m] offset 2m", "[5m:1m] @ 1700001000", "[3m:7s]")
COUNTER_FUNCTIONS = ("rate", "increase", "irate", "resets")
ABSENT = ("absent", "absent_over_time")
# What calls them and what comes back is decided below; the others are called by their signature.
DATES = ("day_of_month", "day_of_week", "day_of_year", "days_in_month", "hour", "minute", "month", "year")
PLAIN = tuple(name for name, known in functions.FUNCTIONS.items() if known.args == (V,) and name not in ABSENT)
PLAIN = tuple(name for name in PLAIN if name not in ("scalar", "start_timestamp", "sort", "sort_desc", *DATES))
# The tangent of 1e45 is whatever the last bit of its argument says.
TAME = ("abs", "ceil", "floor", "sgn", "sqrt", "ln", "log2", "log10", "exp", "deg", "rad", "atan", "asinh", "tanh")
# 3.5 has no first sample, and another mind about NaN.
LATER = ("first_over_time", "ts_of_first_over_time", "mad_over_time")
WINDOWED = tuple(name for name, known in functions.FUNCTIONS.items() if known.args == (R,))
WINDOWED = tuple(name for name in WINDOWED if name not in (*ABSENT, *LATER))
SPARING = tuple(name for name in WINDOWED if name not in ("rate", "increase"))
NATIVE_WINDOWED = ("rate", "increase", "delta", "irate", "idelta", "changes", "resets", "sum_over_time")
NATIVE_WINDOWED += ("avg_over_time", "count_over_time", "last_over_time", "present_over_time", "max_over_time")
ESTIMATES = ("histogram_avg", "histogram_count", "histogram_sum", "histogram_stddev", "histogram_stdvar")
AGGREGATIONS = ("sum", "avg", "min", "max", "count", "stddev", "stdvar", "group")
GROUPINGS = ("", "", " by (node)", " by (gpu)", " without (gpu)", " without (node, gpu)", " by (node, missing)")
GROUPINGS += (" by ()", " without ()", " by (__name__)", " without (__name__)")
ARITHMETIC = ("+", "-", "*", "/", "%", "^", "atan2")
COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
SCALARS = ("0", "1", "-1", "2.5", "0.5", "NaN", "Inf", "-Inf", "1e-3", "0x1F", "5m", "time()", "pi()", "1e3 / 7")
SCALARS += ("scalar(num{node='n1', gpu='0'})", "scalar(temp)", "scalar(sum(num))", "vector(3) == bool 3")
MATCHERS = ("", "", "", '{node="n1"}', '{node!="n2"}', '{gpu=~"0|1"}', '{node=~"n[12]", gpu!~"1.*"}', '{gpu=""}')
MATCHERS += ('{node=~".+"}', '{node!~"n3|", gpu!=""}', '{job=~"[ab]"}', '{missing="x"}')
# What both must refuse, or both must not.
DOUBTFUL = (
    "temp[5m]",
    "rate(temp)",
    "rate(temp[5m:])",
    "sum(temp[5m])",
    "temp + temp[5m]",
    "temp offset 5m offset 5m",
    "temp @ 1 @ 2",
    "temp{node='n1'",
    'temp{node=~"("}',
    "sum(temp, temp)",
    "topk(temp, temp)",
    "quantile('a', temp)",
    "temp and 1",
    "1 and 2",
    "1 > 2",
    "1 > bool 2",
    "temp > bool on (node) num",
    "temp + on (node) num",
    "temp + on (node) group_left () num",
    "temp * on (node) group_left (rack) place",
    "temp * on (node) group_right (rack) place",
    "place * on (node) group_right (rack) temp",
    "temp * ignoring (gpu) group_left (rack) place",
    "temp + on (node) group_left (gpu) num{gpu='0'}",
    "sum by (node) (temp) / on (node) place",
    "sum(temp) + ignoring () sum(num)",
    "label_replace(temp, 'gpu', '0', 'gpu', '.*')",
    "label_replace(temp, '~x', '$1', 'node', '(.*)')",
    "label_replace(temp, '', '$1', 'node', '(.*)')",
    "label_replace(temp, 'x', '${first}-$2', 'node', '(?P<first>n)(.)')",
    "label_replace(temp, '__name__', 'heat_$1', 'node', 'n(.)')",
    "label_replace(temp, 'node', '', 'node', '.*')",
    "label_join(temp, 'x', ',', 'node', 'missing', 'gpu')",
    "label_join(temp, 'x', ',')",
    "count_values('~x', num)",
    "count_values('', num)",
    "count_values('node', num)",
    "count_values by (node) ('v', odd)",
    "count(count_values('v', latency))",
    "vector(temp)",
    "scalar(1)",
    "time() + 'a'",
    "'text'",
    "1",
    "-1 ^ 2",
    "2 ^ 3 ^ 2",
    "1 / 0",
    "0 / 0",
    "-5 % 3",
    "5.5 % -2",
    "1 atan2 0",
    "+Inf - Inf",
    "nosuch",
    "sum(nosuch)",
    "absent(nosuch{a='b', c!='d', e=~'f'})",
    "absent(nosuch{a='b', a='c'})",
    "absent(sum(nosuch{a='b'}))",
    "absent(temp)",
    "absent_over_time(ended[1m])",
    "absent_over_time(nosuch{a='b'}[5m])",
    "absent_over_time(rate(nosuch[5m])[5m:])",
    "histogram_quantile(0.9, wait_bucket)",
    "histogram_quantile(0.9, broken_bucket)",
    "histogram_quantile(0.5, temp)",
    "histogram_quantile(1.1, wait_bucket)",
    "histogram_quantile(NaN, latency)",
    "histogram_quantile(-0.1, latency)",
    "histogram_quantile(0.5, both)",
    "histogram_fraction(0, 1, both)",
    "histogram_fraction(1, 0, latency)",
    "histogram_fraction(NaN, 1, latency)",
    "quantile(2, temp)",
    "quantile(-1, temp)",
    "quantile(NaN, temp)",
    "quantile_over_time(1.5, temp[5m])",
    "quantile_over_time(scalar(num{node='n1', gpu='0'}), temp[5m])",
    "topk(0, temp)",
    "topk(-3, temp)",
    "topk(NaN, temp)",
    "topk(1e30, temp)",
    "bottomk(2, odd)",
    "topk(3, odd)",
    "topk(scalar(num{node='n1', gpu='0'}), num + temp)",
    "limitk(-1, temp)",
    "limitk(2, temp)",
    "limit_ratio(0.4, temp)",
    "limit_ratio(-0.6, num{gpu='0'})",
    "limit_ratio(0.5, rate(energy_total{gpu='0'}[5m]))",
    "limit_ratio by (node) (0.7, latency)",
    "count(limitk(2, temp))",
    "count by (node) (limitk by (node) (1, temp))",
    "count(limit_ratio(1.5, temp))",
    "count(limit_ratio(-1.5, temp))",
    "count(limit_ratio(NaN, temp))",
    "sort(temp)",
    "sort_desc(odd)",
    "sort(latency)",
    "sort_by_label(temp, 'gpu')",
    "sort_by_label_desc(temp, 'node', 'gpu')",
    "round(temp, 0)",
    "round(num, -2)",
    "clamp(temp, 60, 50)",
    "clamp(temp, NaN, 50)",
    "clamp_min(latency, 1)",
    "predict_linear(sparse[1m], 60)",
    "deriv(sparse[10m])",
    "deriv(odd[5m])",
    "double_exponential_smoothing(temp[5m], 0.5, 0.5)",
    "double_exponential_smoothing(temp[5m], 1, 0.5)",
    "double_exponential_smoothing(temp[5m], 0.5, 0)",
    "sum(mixed)",
    "avg(mixed)",
    "sum_over_time(mixed[5m])",
    "sum({__name__=~'latency|custom'})",
    "avg by (job) ({__name__=~'latency|custom'})",
    "latency + on (job) custom",
    "latency * on (job) latency",
    "2 / latency",
    "latency / 0",
    "latency ^ 2",
    "latency > 1",
    "1 > latency",
    "latency == latency",
    "latency != bool latency",
    "latency == on (job) custom",
    "-latency",
    "abs(latency)",
    "min(latency)",
    "max(mixed)",
    "stddev(mixed)",
    "topk(1, latency)",
    "quantile(0.5, latency)",
    "rate(temp[5m])",
    "rate(mixed[5m])",
    "delta(latency[5m])",
    "delta(depth[5m])",
    "idelta(latency[5m])",
    "irate(mixed[5m])",
    "rate({__name__=~'energy_total|num'}[5m])",
    "{__name__=~'temp|num'} * 2",
    "sum by (__name__) (rate({__name__=~'energy_total|num'}[5m]))",
    "timestamp(temp)",
    "timestamp(temp offset 1m)",
    "timestamp(-temp)",
    "timestamp((temp))",
    "timestamp(timestamp(temp))",
    "timestamp(latency)",
    "temp == temp",
    "temp != temp",
    "odd == odd",
    "odd != bool odd",
    "odd > -Inf",
    "Inf > odd",
    "1 < bool odd",
    "temp unless on () (num > 1000)",
    "temp or on (node) num",
    "place or temp",
    "temp and ignoring (gpu, rack) place",
    "(temp or num) + on (node, gpu) temp",
    "-temp ^ 2",
    "temp > 50 < 80",
    "temp == 60 or temp != 60",
    "sum(temp) by (node) > 100 and on (node) place",
    "max_over_time(temp[5m]) - min_over_time(temp[5m])",
    "max_over_time((temp > 50)[5m:30s])",
    "sum_over_time(vector(1)[5m:1m])",
    "count_over_time((1 > bool 0)[5m:1m])",
    "avg_over_time(time()[5m:1m])",
    "rate(rate(energy_total[1m])[5m:1m])",
    "last_over_time(ended[10m])",
    "increase(odd{node='n1'}[5m])",
    "rate(odd{node='n2'}[3m])",
    "changes(odd[10m])",
    "resets(odd[10m])",
    "sum_over_time(odd[10m])",
    "avg_over_time(odd[10m])",
    "min_over_time(odd[10m])",
    "max_over_time(odd[10m])",
    "stddev_over_time(odd[10m])",
    "quantile_over_time(0.3, odd[10m])",
    "sum(odd)",
    "avg(odd)",
    "min(odd)",
    "max(odd)",
    "stdvar(odd)",
    "quantile(0.3, odd)",
    "count(odd)",
    "group(odd)",
)


# Questions that 3.5 answers wrongly, and we do not.
UNFAIR = (
    # The offset is lost where @ stands beside it.
    re.compile(r"timestamp\(.*@.*offset|timestamp\(.*offset.*@"),
)


class Questions:
    """Expressions that parse, and nearly all of which have an answer."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def _pick(self, choices: tuple[str, ...]) -> str:
        return self._chance.choice(choices)

    def _selector(self, names: tuple[str, ...]) -> str:
        name, matchers = self._pick(names), self._pick(MATCHERS)
        if name.startswith("{") and matchers:
            return f"{name[:-1]}, {matchers[1:]}"
        return name + matchers

    def _range(self, names: tuple[str, ...]) -> str:
        return f"{self._selector(names)}[{self._pick(RANGES)}]{self._pick(OFFSETS)}"

    def _windowed(self, depth: int) -> str:
        shapes = (
            f"{self._pick(COUNTER_FUNCTIONS)}({self._range(('energy_total',))})",
            f"{self._pick(WINDOWED)}({self._range(FLOATS)})",
            f"{self._pick(WINDOWED)}({self._range(FLOATS)})",
            f"{self._pick(WINDOWED)}(({self.vector(depth - 1)}){self._pick(SUBQUERIES)})",
            f"quantile_over_time({self._pick(('0', '0.25', '0.9', '1'))}, {self._range(FLOATS)})",
            f"predict_linear({self._range(('temp', 'num', 'sparse'))}, {self._chance.randrange(-600, 7200)})",
            f"double_exponential_smoothing({self._range(('temp', 'num'))}, 0.3, 0.7)",
            f"absent_over_time({self._range(FLOATS)})",
        )
        return self._pick(shapes)

    def _math(self, depth: int) -> str:
        inner = self.vector(depth - 1)
        shapes = (
            f"{self._pick(TAME)}({inner})",
            f"{self._pick(PLAIN)}({self._selector(('num', 'temp'))})",
            f"clamp({inner}, {self._pick(SCALARS)}, {self._chance.randrange(20, 90)})",
            f"clamp_min({inner}, {self._pick(SCALARS)})",
            f"clamp_max({inner}, {self._pick(SCALARS)})",
            f"round({self._selector(FLOATS)}, {self._pick(('0.1', '5', '20', '1e-3'))})",
            f"{self._pick(DATES)}({self._selector(('energy_total', 'num'))})",
            f"{self._pick(DATES)}(vector({self._pick(SCALARS[:5])}))",
            f"timestamp({inner})",
            f"-({inner})",
            f"vector({self._pick(SCALARS)})",
        )
        return self._pick(shapes)

    def _labels(self, depth: int) -> str:
        inner = self.vector(depth - 1)
        shapes = (
            f"label_replace({inner}, 'host', 'h-$1', 'node', '(n.)')",
            f"label_replace({inner}, 'node', '$1', 'gpu', '(.*)')",
            f"label_replace({inner}, 'copy', '${{1}}x', '__name__', '(..).*')",
            f"label_join({inner}, 'both', '-', 'node', 'gpu')",
            f"absent({inner})",
            f"sort({inner})",
            f"scalar({inner}) + {self._selector(FLOATS)}",
        )
        return self._pick(shapes)

    def _aggregated(self, depth: int) -> str:
        inner, grouping = self.vector(depth - 1), self._pick(GROUPINGS)
        shapes = (
            *(f"{self._pick(AGGREGATIONS)}{grouping} ({inner})" for _ in range(6)),
            f"quantile{grouping} ({self._pick(('0.5', '0.99', '0', '1'))}, {inner})",
            f"count(topk{grouping} ({self._chance.randrange(0, 4)}, {inner}))",
            f"topk{grouping} ({self._chance.randrange(1, 4)}, {self._selector(('temp',))})",
            f"bottomk{grouping} (2, {self._selector(('temp',))})",
            f"count_values{grouping} ('seen', round({self._selector(('num', 'odd'))}, 2))",
            f"count(limitk{grouping} (2, {inner}))",
        )
        return self._pick(shapes)

    def _combined(self, depth: int) -> str:
        left, right = self.vector(depth - 1), self.vector(depth - 1)
        one, bool_ = f"max by (node) ({right})", self._pick(("", "bool "))
        shapes = (
            f"({left}) {self._pick(ARITHMETIC)} {self._pick(SCALARS[:-1])}",
            f"{self._pick(SCALARS[:-1])} {self._pick(ARITHMETIC)} ({left})",
            f"({left}) {self._pick(COMPARISONS)} {bool_}{self._chance.randrange(40, 80)}",
            f"{self._chance.randrange(40, 80)} {self._pick(COMPARISONS)} {bool_}({left})",
            f"({left}) {self._pick(ARITHMETIC[:4])} ({right})",
            f"{self._selector(FLOATS)} {self._pick(COMPARISONS)} {bool_}ignoring (rack) {self._selector(FLOATS)}",
            f"({left}) {self._pick(ARITHMETIC[:4])} on (node) group_left () ({one})",
            f"({one}) {self._pick(ARITHMETIC[:4])} on (node) group_right () ({left})",
            f"({left}) * on (node) group_left (rack) place",
            f"({left}) * ignoring (gpu, rack) group_left (rack) place",
            f"({left}) {self._pick(('and', 'or', 'unless'))} ({right})",
            f"({left}) {self._pick(('and', 'or', 'unless'))} on (node, gpu) ({right})",
            f"({left}) {self._pick(('and', 'or', 'unless'))} ignoring (gpu) ({one})",
            f"sum ({left}) {self._pick(ARITHMETIC[:4])} scalar(avg({right}))",
        )
        return self._pick(shapes)

    def _classic(self) -> str:
        buckets = f"sum by ({self._pick(('le', 'le, node'))}) (rate({self._range(('wait_bucket',))}))"
        chosen = self._pick((buckets, self._selector(("wait_bucket", "broken_bucket", "both"))))
        # Without histogram_fraction, which 3.5 does not know of classic buckets.
        return f"histogram_quantile({self._pick(('0.1', '0.5', '0.99', '1', '0'))}, {chosen})"

    def native(self, depth: int) -> str:
        """A vector of native histograms, or mostly."""
        if depth <= 0:
            return self._selector(NATIVE) + self._pick(OFFSETS)
        inner = self.native(depth - 1)
        shapes = (
            f"{self._pick(NATIVE_WINDOWED[2:5])}({self._range(NATIVE)})",
            f"{self._pick(NATIVE_WINDOWED[:5])}({self._range(('latency', 'custom'))})",
            f"{self._pick(('sum', 'avg'))}_over_time({self._range(NATIVE)})",
            f"{self._pick(NATIVE_WINDOWED[2:])}(({inner}){self._pick(SUBQUERIES)})",
            f"{self._pick(('sum', 'avg'))}{self._pick(('', ' by (job)', ' without (job)'))} ({inner})",
            f"({inner}) {self._pick(('*', '/'))} {self._pick(('2', '-1', '0.25', '3'))}",
            f"2.5 * ({inner})",
            f"({inner}) {self._pick(('+', '-'))} ({self.native(depth - 1)})",
            f"({inner}) {self._pick(('and', 'or', 'unless'))} on (job) ({self.native(depth - 1)})",
            f"({inner}) {self._pick(('==', '!='))} ({inner})",
            f"label_replace({inner}, 'copy', '$1', 'job', '(.*)')",
            f"-({inner})",
        )
        return self._pick(shapes)

    def _estimated(self, depth: int) -> str:
        inner = self.native(depth - 1)
        quantile = self._pick(("0", "0.1", "0.37", "0.5", "0.8", "0.99", "1"))
        low, high = self._pick(("0", "-1", "-Inf", "0.2", "-3")), self._pick(("1", "3.3", "Inf", "-0.1", "0.7"))
        shapes = (
            f"{self._pick(ESTIMATES)}({inner})",
            f"histogram_quantile({quantile}, {inner})",
            f"histogram_fraction({low}, {high}, {inner})",
            f"{self._pick(NATIVE_WINDOWED[5:])}({self._range(NATIVE)})",
            f"{self._pick(AGGREGATIONS)} ({inner})",
            f"({inner}) {self._pick(ARITHMETIC)} {self._pick(('2', '(num)', 'on (job) group_left () num'))}",
            f"({inner}) {self._pick(COMPARISONS)} {self._pick(('2', '(num)', 'bool 1'))}",
            f"{self._pick(PLAIN)}({inner})",
            f"{self._pick(SPARING)}({self._range(NATIVE)})",
        )
        return self._pick(shapes)

    def vector(self, depth: int) -> str:
        """An instant vector, mostly of numbers."""
        if depth <= 0:
            return self._selector(FLOATS) + self._pick(OFFSETS)
        ways: tuple[Callable[[int], str], ...]
        ways = (self._windowed, self._windowed, self._math, self._labels, self._aggregated, self._combined)
        return self._chance.choice(ways)(depth)

    def question(self) -> str:
        kind = self._chance.randrange(12)
        depth = self._chance.choice((1, 1, 2, 2, 3))
        if kind == 0:
            return self._classic()
        if kind <= 2:
            return self._estimated(depth)
        return self.native(min(depth, 2)) if kind == 3 else self.vector(depth)

    def __iter__(self) -> Iterator[str]:
        while True:
            yield self.question()


def questions(count: int, seed: int) -> list[str]:
    """The doubtful ones, then every function over every kind of series it may have, then generated ones."""
    sure = list(DOUBTFUL)
    sure += [f"{name}({metric})" for name in PLAIN for metric in ("num", "odd", "latency")]
    sure += [f"{name}({metric})" for name in DATES for metric in ("energy_total * 3e4", "num", "latency")]
    sure += [f"{name}({metric}[5m])" for name in WINDOWED for metric in ("energy_total", "odd", "sparse", "mixed")]
    sure += [f"{name} by (node) ({metric})" for name in AGGREGATIONS for metric in ("temp", "odd", "mixed")]
    sure += [f"num {operator} temp" for operator in (*ARITHMETIC, *COMPARISONS)]
    sure += [f"odd {operator} num" for operator in (*ARITHMETIC, *COMPARISONS)]
    sure += [f"latency {operator} depth" for operator in (*ARITHMETIC, *COMPARISONS)]
    found = dict.fromkeys(sure)
    for question in Questions(seed):
        if len(found) >= count:
            break
        if not any(unfair.search(question) for unfair in UNFAIR):
            found[question] = None
    return list(found)[:count]
