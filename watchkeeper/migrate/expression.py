"""One PromQL expression of somebody else's: are its series and labels here, and does it mean what it seems?

`files` calls this for each rule and each panel. A metric or label that the hub renames as it scrapes
(`scrape.dcgm_names`) is looked up under the usual name here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watchkeeper.catalogue import metrics, series
from watchkeeper.errors import QueryError
from watchkeeper.migrate.verdict import Compatibility, worst
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser, walk

# Labels of a GPU's series: the exporter's own, who holds it, and what scraping adds.
LABELS = frozenset(
    {
        *("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "GPU_I_PROFILE", "GPU_I_ID", "nvlink"),
        *("DCGM_FI_DRIVER_VERSION", "err_code", "err_msg", "container", "namespace", "pod", "pod_uid", "hpc_job"),
        *("instance", "job", "cluster", "__name__"),
    }
)
# What others call a label that has another name here.
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


@dataclass(frozen=True, slots=True)
class ExpressionVerdict:
    standing: Compatibility
    why: tuple[str, ...] = ()


def judge_expression(text: str, recorded: frozenset[str] = frozenset()) -> ExpressionVerdict:
    """How an expression fares; `recorded` are names that rules of the same migration make."""
    try:
        expr = parser.parse(text)
    except QueryError as error:
        metricsql = "; VictoriaMetrics' MetricsQL has more functions" if "unknown function" in error.problem else ""
        return ExpressionVerdict(Compatibility.CANNOT, (f"not PromQL: {error.problem}{metricsql}",))
    found = [*_names(expr, recorded), *_labels(expr), *_meaning(expr)]
    notes = tuple(dict.fromkeys(why for _, why in found if why))
    return ExpressionVerdict(worst([standing for standing, _ in found]), notes)


def _names(expr: ast.Expr, recorded: frozenset[str]) -> Iterator[tuple[Compatibility, str]]:
    for name in sorted(walk.names(expr) - recorded):
        if not name:
            yield Compatibility.WORKS, ""
            continue
        origin = series.origin(name)
        match origin.maker:
            case series.SeriesSource.AGENT | series.SeriesSource.HUB | series.SeriesSource.RULE:
                yield Compatibility.WORKS, ""
            case series.SeriesSource.AGENT_OPTIONAL:
                yield Compatibility.CHANGES, f"{name}: the agent shows it when a file of --counters names it"
            case series.SeriesSource.RENAMED | series.SeriesSource.ALIAS:
                yield Compatibility.CHANGES, f"{name}: write {origin.instead}"
            case series.SeriesSource.NOT_A_FIELD:
                near = f"; near it: {origin.who}" if origin.who else ""
                yield Compatibility.CANNOT, f"{name}: no field that NVML gives has this name{near}"
            case _:
                yield Compatibility.NEEDS, f"{name} is made by {origin.who}; scrape it as well"


def _labels(expr: ast.Expr) -> Iterator[tuple[Compatibility, str]]:
    asked = {matcher.name for one in _gpu_selectors(expr) for matcher in one.matchers if _asks(matcher)}
    if asked or any(True for _ in _gpu_selectors(expr)):
        for part in walk.parts(expr):
            if isinstance(part, ast.Aggregate) and any(True for _ in _gpu_selectors(part)):
                asked |= set(part.grouping)
    for name in sorted(asked - LABELS):
        if name in LABEL_NAMES:
            yield Compatibility.CHANGES, f"label {name}: it is {LABEL_NAMES[name]} here"
        else:
            yield Compatibility.NEEDS, f"label {name}: no GPU series has it here unless you relabel it on"


def _meaning(expr: ast.Expr) -> Iterator[tuple[Compatibility, str]]:
    """Questions that work and mislead: growth of what is no counter."""
    for part in walk.parts(expr):
        if not isinstance(part, ast.FunctionCall) or part.function not in OVER_TIME:
            continue
        for selector in _gpu_selectors(part):
            row = metrics.lookup(selector.name or "")
            if row is None or row.type != "gauge":
                continue
            yield Compatibility.CHANGES, f"{part.function}({selector.name}): it is a gauge{_guide(row)}"


def _guide(row: metrics.MetricRow) -> str:
    return f" ({row.bands})" if row.bands else ", so its growth means nothing"


def _gpu_selectors(expr: ast.Expr) -> Iterator[ast.Selector]:
    return (one for one in walk.selectors(expr) if (one.name or "").startswith("DCGM_FI_"))


def _asks(matcher: engine.Matcher) -> bool:
    """Whether a matcher needs the label to be there; `.*` and the like take series without it."""
    return matcher.op in (engine.MatchOp.EQUAL, engine.MatchOp.REGEX) and matcher.value not in ("", ".*", "$__all")
