"""Checks one existing PromQL expression: do its series and labels exist here, and does it mean what it seems to?

`files` calls this for each rule and each panel. A metric or label that the hub renames as it scrapes
(`scrape.dcgm_names`) is looked up under its stored name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.catalogue import metrics, series
from watchkeeper.errors import QueryError
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser, walk
from watchkeeper.rules import rule_expression, rule_mistakes

# Labels of a GPU's series: of the exporter, of the workload, and added by scraping.
LABELS = frozenset(
    {
        *("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "GPU_I_PROFILE", "GPU_I_ID", "nvlink"),
        *("DCGM_FI_DRIVER_VERSION", "err_code", "err_msg", "container", "namespace", "pod", "pod_uid", "hpc_job"),
        *("instance", "job", "cluster", "__name__"),
    }
)
# Labels that have another name here.
LABEL_NAMES = {
    "hostname": "Hostname",
    "node": "Hostname",
    "kubernetes_node": "Hostname",
    "uuid": "UUID",
    "exported_pod": "pod",
    "exported_namespace": "namespace",
    "exported_container": "container",
}

# Metrics that work here and are not quite what their names say; packs/metric_guide.csv has what to know about them.
MISREAD = frozenset({"DCGM_FI_DEV_FB_TOTAL"})


class Compatibility(StrEnum):
    """Whether it works here, in order of the work it needs; `needs` works if another exporter is scraped as well."""

    WORKS = "works"
    NEEDS = "needs"
    CHANGES = "changes"
    CANNOT = "cannot"


ORDER = tuple(Compatibility)


@dataclass(frozen=True, slots=True)
class ExpressionVerdict:
    compatibility: Compatibility
    why: tuple[str, ...] = ()
    mistakes: tuple[rule_expression.Mistake, ...] = ()


def judge_expression(
    text: str, recorded: Mapping[str, ast.Expr] | None = None, *, is_alert: bool = False, hold_seconds: float = 0.0
) -> ExpressionVerdict:
    """Judge one expression; `recorded` are the rules by name whose series it can read, such as those beside it."""
    try:
        expr = parser.parse(text)
    except QueryError as error:
        metricsql = "; VictoriaMetrics' MetricsQL has more functions" if "unknown function" in error.problem else ""
        return ExpressionVerdict(Compatibility.CANNOT, (f"not PromQL: {error.problem}{metricsql}",))
    rule = rule_expression.RuleExpression(expr, is_alert, hold_seconds, recorded or {})
    names = walk.metric_names(expr)
    mistakes = tuple(mistake for mistake in rule_mistakes.find_mistakes(rule) if mistake.part not in names)
    judgements = [*_names(names - rule.recorded.keys()), *_labels(expr)]
    judgements += [(Compatibility.CHANGES, line) for mistake in mistakes for line in mistake.lines]
    worst = max((compatibility for compatibility, _ in judgements), key=ORDER.index, default=Compatibility.WORKS)
    return ExpressionVerdict(worst, tuple(dict.fromkeys(why for _, why in judgements if why)), mistakes)


def _names(names: frozenset[str]) -> Iterator[tuple[Compatibility, str]]:
    for name in sorted(names - {""}):
        origin = series.origin(name)
        match origin.source:
            case series.SeriesSource.AGENT | series.SeriesSource.HUB | series.SeriesSource.RULE:
                if name in MISREAD and (row := metrics.lookup(name)) is not None:
                    yield Compatibility.WORKS, f"{name}: {row.bands}"
            case series.SeriesSource.AGENT_OPTIONAL:
                yield Compatibility.CHANGES, f"{name}: the agent exports it if a --counters file lists it"
            case series.SeriesSource.RENAMED | series.SeriesSource.ALIAS:
                yield Compatibility.CHANGES, f"{name}: write {origin.replacement}"
            case series.SeriesSource.UNKNOWN_FIELD:
                near = f"; similar: {origin.exporter}" if origin.exporter else ""
                yield Compatibility.CANNOT, f"{name}: NVML has no field of this name{near}"
            case _:
                yield Compatibility.NEEDS, f"{name} is exported by {origin.exporter}; scrape it as well"


def _labels(expr: ast.Expr) -> Iterator[tuple[Compatibility, str]]:
    # `.*` also matches series without the label.
    needed = {
        matcher.name
        for selector in _gpu_selectors(expr)
        for matcher in selector.matchers
        if matcher.op in (engine.MatchOp.EQUAL, engine.MatchOp.REGEX) and matcher.value not in ("", ".*", "$__all")
    }
    for part in walk.iterate_nodes(expr):
        if isinstance(part, ast.Aggregate) and _gpu_selectors(part):
            needed |= set(part.grouping)
    for name in sorted(needed - LABELS):
        if name in LABEL_NAMES:
            yield Compatibility.CHANGES, f"label {name}: use {LABEL_NAMES[name]} here"
        else:
            yield Compatibility.NEEDS, f"label {name}: no GPU series has it unless you add it by relabelling"


def _gpu_selectors(expr: ast.Expr) -> list[ast.Selector]:
    return [selector for selector in walk.selectors(expr) if (selector.name or "").startswith("DCGM_FI_")]
