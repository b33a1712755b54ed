"""Checks one existing PromQL expression: do its series and labels exist here, and does it mean what it seems to?

`files` calls this for each rule and each panel. A metric or label that the hub renames as it scrapes
(`scrape.dcgm_names`) is looked up under its stored name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.catalogue import metrics, series
from watchkeeper.errors import QueryError
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser, walk

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
OVER_TIME = frozenset({"rate", "irate", "increase"})


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


def judge_expression(text: str, recorded: frozenset[str] = frozenset()) -> ExpressionVerdict:
    """Judge one expression; `recorded` are names that rules of the same migration record."""
    try:
        expr = parser.parse(text)
    except QueryError as error:
        metricsql = "; VictoriaMetrics' MetricsQL has more functions" if "unknown function" in error.problem else ""
        return ExpressionVerdict(Compatibility.CANNOT, (f"not PromQL: {error.problem}{metricsql}",))
    judgements = [*_names(expr, recorded), *_labels(expr), *_meaning(expr)]
    worst = max((compatibility for compatibility, _ in judgements), key=ORDER.index, default=Compatibility.WORKS)
    return ExpressionVerdict(worst, tuple(dict.fromkeys(why for _, why in judgements if why)))


def _names(expr: ast.Expr, recorded: frozenset[str]) -> Iterator[tuple[Compatibility, str]]:
    for name in sorted(walk.metric_names(expr) - recorded - {""}):
        origin = series.origin(name)
        match origin.source:
            case series.SeriesSource.AGENT | series.SeriesSource.HUB | series.SeriesSource.RULE:
                pass
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


def _meaning(expr: ast.Expr) -> Iterator[tuple[Compatibility, str]]:
    """Find expressions that work but mislead: rates of gauges."""
    for part in walk.iterate_nodes(expr):
        if not isinstance(part, ast.FunctionCall) or part.function not in OVER_TIME:
            continue
        for selector in _gpu_selectors(part):
            row = metrics.lookup(selector.name or "")
            if row is not None and row.type == "gauge":
                guide = f" ({row.bands})" if row.bands else ", so its rate means nothing"
                yield Compatibility.CHANGES, f"{part.function}({selector.name}): it is a gauge{guide}"


def _gpu_selectors(expr: ast.Expr) -> list[ast.Selector]:
    return [selector for selector in walk.selectors(expr) if (selector.name or "").startswith("DCGM_FI_")]
