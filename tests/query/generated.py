"""Expressions by the hundred: every stable function, aggregation, operator and modifier in combinations that parse.

The same seed gives the same list. `test_embedded_against_prometheus` asks two engines about each; the metrics are
those of its fleet: `temp` and `energy` by node and gpu, `place` by node with its rack, `wait_bucket` by node and bound.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from watchkeeper.query.promql import functions

# All are multiples of a minute: together with the odd times of the fleet, no sample and no step of a subquery lies
# on the left edge of a window, which 2.42 counts in and Prometheus 3 does not.
RANGES = ("1m", "2m", "3m", "5m", "10m", "7m", "300s")
OFFSETS = ("", "", "", " offset 1m", " offset 5m", " offset -2m", " @ 1700001020", " @ start()", " @ end() offset 3m")
SUBQUERIES = ("[5m:1m]", "[10m:30s]", "[6m:2m]", "[4m:1m] offset 2m", "[5m:1m] @ 1700002000")
COUNTER_FUNCTIONS = ("rate", "increase", "irate", "resets")
# Those that take one vector and answer with one; the rest has arguments of its own below.
PLAIN = tuple(
    name
    for name, known in functions.FUNCTIONS.items()
    if known.args == (functions.V,) and not known.is_experimental and known.returns is functions.V
    if name not in ("absent", "sort", "sort_desc", "timestamp") and not name.startswith("histogram_")
)
# The tangent of 1e45 is whatever the last bit of its argument says.
TAME = ("abs", "ceil", "exp", "floor", "ln", "log10", "log2", "sgn", "sqrt")
WINDOWED = tuple(
    name
    for name, known in functions.FUNCTIONS.items()
    if known.args == (functions.R,) and not known.is_experimental
    if name not in (*COUNTER_FUNCTIONS, "absent_over_time")
)
AGGREGATIONS = ("sum", "avg", "min", "max", "count", "stddev", "stdvar", "group")
GROUPINGS = ("", " by (node)", " by (gpu)", " without (gpu)", " without (node, gpu)", " by (node, missing)")
# Without atan2: 2.42 keeps the metric name of its left side, Prometheus 3 does not.
ARITHMETIC = ("+", "-", "*", "/", "%")
COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")


class Generator:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.is_within_subquery = False

    def pick(self, choices: tuple[str, ...]) -> str:
        return self.chance.choice(choices)

    def selector(self, name: str) -> str:
        matchers = ('{node="n1"}', '{node!="n2"}', '{gpu=~"0|1"}', '{node=~"n[12]", gpu!~"1.*"}', "", "", "")
        return name + self.pick(matchers)

    def leaf(self) -> str:
        return self.selector(self.pick(("temp", "temp", "energy"))) + self.pick(OFFSETS)

    def windowed(self, depth: int) -> str:
        window = f"[{self.pick(RANGES)}]{self.pick(OFFSETS)}"
        kind = self.chance.randrange(5)
        if kind == 0:
            return f"{self.pick(COUNTER_FUNCTIONS)}({self.selector('energy')}[{self.pick(RANGES[2:])}])"
        if kind == 1 and not self.is_within_subquery:
            return self.subquery(depth)
        if kind == 2:
            return f"quantile_over_time({self.chance.choice((0, 0.25, 0.9, 1))}, {self.selector('temp')}{window})"
        if kind == 3:
            # Without @: 2.42 loses the later steps of predict_linear(x[5m] @ t, s).
            window = f"[{self.pick(RANGES)}]{self.pick(OFFSETS[2:6])}"
            return f"predict_linear({self.selector('temp')}{window}, {self.chance.randrange(60, 7200)})"
        return f"{self.pick(WINDOWED)}({self.selector('temp')}{window})"

    def subquery(self, depth: int) -> str:
        """The steps of a subquery are whole minutes, so a second one inside would have steps on its left edge."""
        self.is_within_subquery = True
        inner = self.vector(depth - 1)
        self.is_within_subquery = False
        return f"{self.pick(WINDOWED)}(({inner}){self.pick(SUBQUERIES)})"

    def plain(self, depth: int) -> str:
        inner = self.vector(depth - 1)
        shapes = (
            f"{self.pick(TAME)}({inner})",
            f"clamp({inner}, 10, {self.chance.randrange(20, 90)})",
            f"clamp_min({inner}, {self.chance.randrange(90)})",
            f"clamp_max({inner}, {self.chance.randrange(90)})",
            f"round({inner}, {self.pick(('0.1', '5', '20'))})",
            f"label_replace({inner}, 'host', 'h-$1', 'node', '(n.)')",
            f"label_join({inner}, 'both', '-', 'node', 'gpu')",
            f"timestamp({inner}) - 1700000000",
            f"-({inner})",
        )
        return self.pick(shapes)

    def aggregated(self, depth: int) -> str:
        inner, grouping = self.vector(depth - 1), self.pick(GROUPINGS)
        shapes = (
            *(f"{self.pick(AGGREGATIONS)}{grouping} ({inner})" for _ in range(5)),
            f"quantile{grouping} ({self.pick(('0.5', '0.99', '0'))}, {inner})",
            f"topk{grouping} ({self.chance.randrange(1, 4)}, {inner} + {self.selector('temp')} * 1e-3)",
            f"bottomk{grouping} (2, {inner} + {self.selector('temp')} * 1e-3)",
            f"count_values{grouping} ('seen', round({self.selector('temp')}, 20))",
        )
        return self.pick(shapes)

    def combined(self, depth: int) -> str:
        left, right = self.vector(depth - 1), self.vector(depth - 1)
        one = f"max by (node) ({right})"
        shapes = (
            f"({left}) {self.pick(ARITHMETIC)} {self.chance.randrange(1, 9)}",
            f"({left}) {self.pick(COMPARISONS)} {self.pick(('', 'bool '))}{self.chance.randrange(40, 80)}",
            f"({left}) {self.pick(ARITHMETIC)} ({right})",
            f"({left}) ^ {self.pick(('2', '-1', '0.5'))}",
            f"({left}) {self.pick(COMPARISONS)} {self.pick(('', 'bool '))}({right})",
            f"({left}) {self.pick(ARITHMETIC)} on (node) group_left () ({one})",
            f"({one}) {self.pick(ARITHMETIC)} on (node) group_right () ({left})",
            f"({left}) * on (node) group_left (rack) {self.selector('place')[:5]}",
            f"({left}) {self.pick(('and', 'or', 'unless'))} on (node, gpu) ({right})",
            f"({left}) {self.pick(('and', 'unless'))} ignoring (gpu) ({one})",
            # Not %, which makes much of the last bit of a sum.
            f"sum ({left}) {self.pick(ARITHMETIC[:4])} scalar(avg({right}))",
        )
        return self.pick(shapes)

    def histogram(self) -> str:
        grouping = self.pick(("le", "le, node"))
        buckets = f"sum by ({grouping}) (rate(wait_bucket[{self.pick(RANGES[1:])}]))"
        return f"histogram_quantile({self.pick(('0.1', '0.5', '0.99'))}, {buckets})"

    def vector(self, depth: int) -> str:
        """An instant vector whose series have a node and a gpu, or fewer labels."""
        if depth <= 0:
            return self.leaf()
        ways: tuple[Callable[[int], str], ...] = (self.windowed, self.plain, self.combined, self.aggregated)
        return self.chance.choice(ways)(depth)

    def expression(self) -> str:
        kind = self.chance.randrange(12)
        if kind == 0:
            return self.histogram()
        if kind == 1:
            return f"{self.pick(('absent', 'scalar'))}({self.vector(1)})"
        return self.vector(self.chance.choice((1, 2, 2, 3)))


def expressions(count: int, seed: int = 3) -> list[str]:
    """Different expressions in a fixed order; the first ones make sure that every function and operator occurs."""
    generator = Generator(seed)
    sure = [f"{name}(temp)" for name in PLAIN]
    sure += [
        f"{name}({'energy' if name in COUNTER_FUNCTIONS else 'temp'}[5m])" for name in (*WINDOWED, *COUNTER_FUNCTIONS)
    ]
    sure += [f"{name} by (node) (temp)" for name in AGGREGATIONS]
    sure += [f"temp {operator} energy" for operator in ("^", *ARITHMETIC, *COMPARISONS)]
    found = dict.fromkeys(sure)
    while len(found) < count:
        found[generator.expression()] = None
    return list(found)
