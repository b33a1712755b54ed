"""Rules that are valid PromQL and mean something else: why, and the rule to use instead.

`rules check` and `migrate` print the mistakes. Each check is a function in `CHECKS`; what a metric can be is in
packs/metric_values.csv. A rule that is right has no mistakes: where the data does not decide, a check is silent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from watchkeeper.catalogue import metric_values, metrics, series
from watchkeeper.kit import durations
from watchkeeper.query.promql import ast, parser, printer, types, walk
from watchkeeper.rules import rulefile
from watchkeeper.rules.rule_expression import (
    RATES,
    Comparison,
    Mistake,
    RuleExpression,
    outside_subqueries,
    reads_code,
    reads_growth,
    reads_labels,
    reads_workload,
)
from watchkeeper.rules.value_ranges import COMPARE, strip

QUANTILES = frozenset({"quantile", "quantile_over_time", "histogram_quantile"})
REASON_LABELS = frozenset({"reason", "clock_event"})
# Thresholds that only drop the "blank" values of exporters: 0x7ffffff0 and above, 1e12 and above.
BLANK = 2147483632.0
NANOSECONDS = 1e9


def check_rule(rule: rulefile.Rule, recorded: Mapping[str, ast.Expr]) -> tuple[Mistake, ...]:
    """The mistakes of a valid rule; `recorded` has the expressions of recording rules, which alerts read by name."""
    expr = parser.parse(rule.expr)
    if isinstance(rule, rulefile.AlertingRule):
        return find_mistakes(RuleExpression(expr, True, rule.hold_seconds, recorded))
    return find_mistakes(RuleExpression(expr, recorded=recorded))


def recorded_expressions(rules: Iterable[rulefile.Rule]) -> dict[str, ast.Expr]:
    return {rule.name: parser.parse(rule.expr) for rule in rules if isinstance(rule, rulefile.RecordingRule)}


def find_mistakes(rule: RuleExpression) -> tuple[Mistake, ...]:
    """The first mistake of each part of the expression, in the order of `CHECKS`."""
    mistakes: dict[str, Mistake] = {}
    for check in CHECKS:
        for mistake in check(rule):
            mistakes.setdefault(mistake.part, mistake)
    return tuple(mistakes.values())


def impossible_thresholds(rule: RuleExpression) -> Iterator[Mistake]:
    """Comparisons that are never or always true, because of the unit or the range of the metric."""
    for comparison in rule.comparisons:
        values, threshold = comparison.values, comparison.threshold
        if values.low > threshold or values.high < threshold:
            is_always = comparison.holds(values.low if values.low > -inf else values.high)
            if not (is_always and _is_sanity_filter(comparison)):
                yield _impossible(comparison, "always" if is_always else "never", rule.hold_seconds)
        elif values.high == threshold and comparison.op == ">":
            yield _impossible(comparison, "never", rule.hold_seconds)
        elif values.whole >= 100 and 0.01 < threshold < 1:
            yield _unscaled_share(comparison)


def _impossible(comparison: Comparison, how_often: str, hold_seconds: float) -> Mistake:
    values, threshold = comparison.values, comparison.threshold
    what = values.metric.what if values.metric else f"the value is from {values.low:g} to {values.high:g}"
    if values.is_growth and not values.whole:
        hold = f" for {durations.format_seconds(hold_seconds)}" if hold_seconds else ""
        why = f"it is per second: {threshold:,g} is {threshold * 3600:,.0f} an hour, which cannot last{hold}"
        return comparison.mistake(f"{why} ({what})" if how_often == "never" else f"always true: {why}")
    if values.whole == 1:
        what = what if values.metric and values.metric.whole == 1 else "a ratio from 0 to 1, not percent"
        instead = _scaled(comparison, 0.01) if 1 < threshold <= 100 else ""
        return comparison.mistake(f"{how_often} true: {what}", instead=instead)
    what = "percent from 0 to 100" if values.whole == 100 else what
    return comparison.mistake(f"{how_often} true: {what}", names_alert=bool(values.whole))


def _unscaled_share(comparison: Comparison) -> Mistake:
    whole = comparison.values.whole
    if whole == NANOSECONDS:
        instead = f"{printer.to_text(comparison.side)} / 1e9 {comparison.op} {comparison.threshold:g}"
        return comparison.mistake("nanoseconds per second, not a ratio", instead=instead)
    unit = "percent from 0 to 100, not a ratio" if whole == 100 else f"a value from 0 to {whole:,g}, not a ratio"
    return comparison.mistake(unit, instead=_scaled(comparison, whole))


def _scaled(comparison: Comparison, factor: float) -> str:
    return f"{printer.to_text(comparison.side)} {comparison.op} {comparison.threshold * factor:g}"


def _is_sanity_filter(comparison: Comparison) -> bool:
    """Whether a comparison that is always true drops blank values, or asks only whether the series exists."""
    if comparison.op in (">", ">="):
        return comparison.threshold <= 0 or comparison.values.low <= 0
    return comparison.threshold >= BLANK or comparison.threshold <= comparison.values.high * 1.01


def true_on_healthy_gpus(rule: RuleExpression) -> Iterator[Mistake]:
    """Codes, bit masks and loads: comparisons that are also true for values that healthy GPUs have."""
    comparisons = [comparison for comparison in rule.comparisons if rule.is_alert and not comparison.is_excluded]
    for comparison in comparisons:
        row = comparison.values.metric
        if row is None or _is_deliberate(comparison, row, rule.expr):
            continue
        values_by_meaning: dict[str, list[str]] = defaultdict(list)
        for value, meaning in comparison.values.normal:
            if comparison.holds(value) and not _drops(rule, comparison, value):
                values_by_meaning[meaning].append(f"{value:g}")
        normal = ", ".join(f"{', '.join(values)} ({meaning})" for meaning, values in values_by_meaning.items())
        if normal:
            what = f"{row.what}; " if row.unless != "workload" and row.what else ""
            yield comparison.mistake(f"{what}also true for {normal}")


def _drops(rule: RuleExpression, comparison: Comparison, value: float) -> bool:
    """Whether another condition of the same rule on the same metric excludes a value."""
    if any(isinstance(part, ast.Binary) and part.op == "or" for part in walk.iterate_nodes(rule.expr)):
        return False
    return any(
        other.holds(value) is other.is_excluded
        for other in rule.comparisons
        if other.values.metric == comparison.values.metric and other.values.scale == comparison.values.scale != 0
    )


def _is_deliberate(comparison: Comparison, row: metric_values.MetricValues, expr: ast.Expr) -> bool:
    """Whether a rule excludes normal values by other means, asks for one code, or only drops blank values."""
    if row.unless == "workload":
        return not comparison.is_per_gpu or reads_workload(expr)
    if row.unless == "reason" and reads_labels(expr, REASON_LABELS):
        return True
    return (
        comparison.op == "=="
        or comparison.threshold >= BLANK
        or (row.unless == "growth" and reads_growth(expr, row.name))
    )


def whole_masks(rule: RuleExpression) -> Iterator[Mistake]:
    """A bit mask that must be equal to one bit: other bits are mostly set with it, so a fault is missed."""
    for comparison in rule.comparisons if rule.is_alert else ():
        row, normal = comparison.values.metric, {value for value, _ in comparison.values.normal}
        is_mask = row is not None and row.unit == "bitmask" and comparison.values.high == inf
        if is_mask and comparison.op == "==" and comparison.threshold and comparison.threshold not in normal:
            instead = f"floor({printer.to_text(comparison.side)} / {comparison.threshold:g}) % 2 == 1"
            yield comparison.mistake("a bit mask: not true while another bit is set as well", instead=instead)


def too_late(rule: RuleExpression) -> Iterator[Mistake]:
    """Thresholds at which the hardware has already protected itself."""
    for comparison in rule.comparisons if rule.is_alert else ():
        limit, row = comparison.values.too_late, comparison.values.metric
        if row and limit is not None and comparison.op in (">", ">=", "==") and comparison.threshold >= limit:
            yield comparison.mistake(f"too late or never: {row.what}")


def raw_counters(rule: RuleExpression) -> Iterator[Mistake]:
    """Counters compared with a number: they never fall, so the alert does not end."""
    for comparison in rule.comparisons if rule.is_alert else ():
        row = comparison.values.metric
        if (
            row is None
            or not comparison.values.is_counter
            or comparison.op not in (">", ">=", "!=")
            or comparison.threshold >= BLANK
        ):
            continue
        if not reads_growth(rule.expr, row.name):
            what = f" ({row.what})" if row.what else ""
            instead = row.instead or f"increase({row.name}[10m]) > 0"
            yield comparison.mistake(f"the counter does not fall, so the alert does not end{what}", instead=instead)


def rates_of_gauges(rule: RuleExpression) -> Iterator[Mistake]:
    for part in walk.iterate_nodes(rule.expr):
        if not isinstance(part, ast.FunctionCall) or part.function not in RATES:
            continue
        for name in sorted(walk.metric_names(part) - {""}):
            row = metrics.lookup(series.origin(name).replacement or name)
            if row is not None and (row.type == "gauge" or row.unit.endswith("/s")):
                kind = "a rate, not a counter" if row.unit.endswith("/s") else "a gauge"
                guide = f" ({row.bands})" if row.bands else ", so its rate means nothing"
                values = metric_values.lookup(row.name)
                alert = values.alert if values and values.unless == "growth" else ""
                yield Mistake(f"{part.function}({name})", f"it is {kind}{guide}", alert=alert)


def times_of_expressions(rule: RuleExpression) -> Iterator[Mistake]:
    """`timestamp()` of anything but a selector is the time of the evaluation; in a subquery, that is of use."""
    for part in outside_subqueries(rule.expr):
        if not isinstance(part, ast.Binary) or part.op not in (*COMPARE, "-", "+"):
            continue
        for call in (node for side in (part.left, part.right) for node in outside_subqueries(side)):
            if isinstance(call, ast.FunctionCall) and call.function == "timestamp":
                inner = strip(call.args[0])
                if not isinstance(inner, ast.Selector):
                    yield _time_mistake(call, inner)


def _time_mistake(call: ast.FunctionCall, inner: ast.Expr) -> Mistake:
    instead = f"time() - max_over_time({printer.to_text(call)}[1d:1m])"
    if isinstance(inner, ast.Binary) and inner.op in COMPARE and not inner.returns_bool:
        duration = printer.to_text(replace(inner, returns_bool=True))
        instead = f"sum_over_time(({duration})[24h:1m]) / 60 for the hours, {instead} for the time since"
    why = "the timestamp of an expression is the time of the evaluation, so the age is always 0"
    return Mistake(printer.to_text(call), why, instead)


def quantiles_in_percent(rule: RuleExpression) -> Iterator[Mistake]:
    for part in walk.iterate_nodes(rule.expr):
        quantile: ast.Expr | None = None
        if isinstance(part, ast.FunctionCall) and part.function in QUANTILES:
            quantile = part.args[0]
        elif isinstance(part, ast.Aggregate) and part.op in QUANTILES:
            quantile = part.parameter
        number = None if quantile is None else rule.values.read(quantile).constant
        if quantile is not None and number is not None and not 0 <= number <= 1:
            why = "a quantile is from 0 to 1; outside, the result is infinite"
            yield Mistake(
                f"quantile {printer.to_text(quantile)}", why, f"{number / 100:g}" if 50 <= number <= 100 else ""
            )


def broken_histograms(rule: RuleExpression) -> Iterator[Mistake]:
    """Quantiles of buckets that were summed without `le`, or that count from the start of the program."""
    for part in walk.iterate_nodes(rule.expr):
        if not isinstance(part, ast.FunctionCall) or part.function != "histogram_quantile":
            continue
        inner = list(walk.iterate_nodes(part.args[1]))
        if not any(isinstance(node, ast.Selector) and (node.name or "").endswith("_bucket") for node in inner):
            continue
        sums = [node for node in inner if isinstance(node, ast.Aggregate)]
        if any(("le" in node.grouping) is node.is_without for node in sums):
            yield Mistake(printer.to_text(part), "the label le is gone, so there is no result", "sum by (le, …)")
        elif not any(isinstance(node, ast.RangeSelector | ast.Subquery) for node in inner):
            instead = "rate(…[5m]) of the buckets"
            yield Mistake(printer.to_text(part), "the buckets count since the program started", instead)


def missing_fields(rule: RuleExpression) -> Iterator[Mistake]:
    """Names that look like DCGM's and that guides spread, but that no version of DCGM has."""
    for name in sorted(walk.metric_names(rule.expr)):
        row = metrics.lookup(name) if name.startswith("DCGM_FI_") else None
        if row is not None and not row.field_id and not series.origin(name).replacement:
            yield Mistake(name, row.meaning, row.look_next)


def always_firing(rule: RuleExpression) -> Iterator[Mistake]:
    """Alerts whose result never becomes empty: no comparison, or one with `bool`, which returns 0 instead."""
    root = strip(rule.expr)
    if not rule.is_alert:
        return
    if isinstance(root, ast.Binary) and root.returns_bool:
        yield Mistake(printer.to_text(root), "`bool` returns 0 for what is not true, so the alert always fires")
        return
    names = walk.metric_names(root)
    is_always_there = bool(names) and all(name.startswith("DCGM_FI_") for name in names) and not reads_code(root)
    if is_always_there and not any(_may_be_empty(part) for part in walk.iterate_nodes(root)):
        yield Mistake(printer.to_text(root), "no comparison: the alert fires for every series, whatever its value")


CHECKS: tuple[Callable[[RuleExpression], Iterator[Mistake]], ...] = (
    missing_fields,
    impossible_thresholds,
    true_on_healthy_gpus,
    whole_masks,
    too_late,
    raw_counters,
    rates_of_gauges,
    times_of_expressions,
    quantiles_in_percent,
    broken_histograms,
    always_firing,
)


def _may_be_empty(expr: ast.Expr) -> bool:
    if isinstance(expr, ast.FunctionCall):
        return expr.function.startswith("absent")
    return isinstance(expr, ast.Binary) and (expr.op in types.SET_OPERATORS or expr.op in types.COMPARISONS)
