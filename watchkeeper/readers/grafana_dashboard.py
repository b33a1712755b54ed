"""Read the queries of a Grafana dashboard's JSON: each query of each panel and variable.

The JSON is an export, or an API response (`{"dashboard": …}`). Grafana variables are not PromQL; `fill_variables`
replaces them with valid values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from watchkeeper.readers import json_facts

# Grafana does not nest rows; JSON with deeper nesting is not a dashboard.
MAX_DEPTH = 4
VARIABLE = r"(?:\$\{\w+(?::\w+)?\}|\$\w+|\[\[\w+\]\])"
QUOTED = re.compile(rf"""(?P<op>!=|=~|!~|=)\s*(?P<quote>["'])(?P<text>[^"']*{VARIABLE}[^"']*)["']""")
IN_RANGE = re.compile(rf"\[\s*{VARIABLE}(?=\s*[:\]])|(?<=:)\s*{VARIABLE}(?=\s*\])|(?<=offset )\s*{VARIABLE}")
IN_GROUPING = re.compile(
    rf"(?P<head>\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*?)(?:,\s*)?{VARIABLE}"
)
# ${prefix}_busy: only a name in braces or brackets can be followed by letters.
PREFIX = re.compile(r"(?:\$\{\w+(?::\w+)?\}|\[\[\w+\]\])(?=[a-zA-Z_])")
# label_values(up{job="x"}, instance), query_result(up), metrics(DCGM_.*)
LABEL_VALUES = re.compile(r"\s*label_values\s*\(\s*(?P<expr>.+?)\s*,\s*\w+\s*\)\s*", re.DOTALL)
QUERY_RESULT = re.compile(r"\s*query_result\s*\((?P<expr>.+)\)\s*", re.DOTALL)


class InvalidDashboard(ValueError):
    """The text is not a dashboard. `is_other` is true for valid JSON of another kind."""

    def __init__(self, problem: str, *, is_other: bool = False) -> None:
        super().__init__(problem)
        self.is_other = is_other


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """One query. `expr` is None if the data source is not Prometheus; `language` names the data source."""

    panel: str
    expr: str | None
    language: str = "prometheus"


@dataclass(frozen=True, slots=True)
class Dashboard:
    title: str
    queries: tuple[DashboardQuery, ...]


def read_dashboard(text: str) -> Dashboard:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidDashboard(f"not JSON: {error}") from error
    dashboard = document.get("dashboard", document) if isinstance(document, dict) else None
    if not isinstance(dashboard, dict) or not ({"panels", "rows", "templating"} & dashboard.keys()):
        raise InvalidDashboard("the JSON has neither panels nor variables", is_other=True)
    queries = [*_variables(dashboard), *_panels(dashboard, 0)]
    return Dashboard(json_facts.text(dashboard, "title") or "untitled", tuple(queries))


def fill_variables(expr: str) -> str:
    """Replace Grafana variables: any label value, a window of 5m, no grouping label."""
    expr = IN_RANGE.sub(lambda match: "[5m" if match[0].startswith("[") else "5m", expr)
    expr = QUOTED.sub(lambda match: '=~".*"' if match["op"] in ("=", "=~") else '!~"nothing"', expr)
    expr = IN_GROUPING.sub(lambda match: match["head"], expr)
    # A prefix of metric names is empty by default; every other variable is replaced by a number.
    return re.sub(VARIABLE, "1", PREFIX.sub("", expr))


def _panels(dashboard: Mapping[str, Any], depth: int) -> Iterator[DashboardQuery]:
    if depth > MAX_DEPTH:
        return
    for row in json_facts.rows(dashboard, "rows"):
        yield from _panels(row, depth + 1)
    for panel in json_facts.rows(dashboard, "panels"):
        title = json_facts.text(panel, "title") or json_facts.text(panel, "type") or "untitled panel"
        source = _source_kind(panel.get("datasource"))
        for target in json_facts.rows(panel, "targets"):
            yield _read_query(title, target, _source_kind(target.get("datasource")) or source)
        yield from _panels(panel, depth + 1)


def _read_query(title: str, target: Mapping[str, Any], source: str) -> DashboardQuery:
    expr = target.get("expr")
    if isinstance(expr, str) and expr.strip() and source in ("", "prometheus", "mixed"):
        return DashboardQuery(title, expr)
    for key in ("rawSql", "rawQuery", "query", "target", "expression"):
        if isinstance(target.get(key), str):
            return DashboardQuery(title, None, source or key)
    return DashboardQuery(title, None, source or "no query")


def _variables(dashboard: Mapping[str, Any]) -> Iterator[DashboardQuery]:
    for variable in json_facts.rows(dashboard.get("templating"), "list"):
        if variable.get("type") != "query":
            continue
        query = variable.get("query")
        text = query.get("query", "") if isinstance(query, dict) else query
        # label_values(instance) and metrics(…) have no expression to check.
        if isinstance(text, str) and (match := LABEL_VALUES.fullmatch(text) or QUERY_RESULT.fullmatch(text)):
            yield DashboardQuery(f"variable {json_facts.text(variable, 'name')}", match["expr"])


def _source_kind(value: Any) -> str:
    """The type of a data source; "" for old dashboards, which have only its name."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("datasource", ""):
        return "mixed" if "mixed" in kind else kind
    return ""
