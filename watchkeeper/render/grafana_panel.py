"""One panel of a dashboard as Grafana's JSON, and its place on the page.

A panel that names an alert links to its runbook and takes the threshold from the alert's expression, so that it is
written once. `grafana.dashboard` fills a `PanelGrid` row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

from watchkeeper.kit import yaml_text
from watchkeeper.query.promql import ast, parser

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The width of Grafana's grid.
PAGE = 24
REF_IDS = "ABCDEFGH"
# The prefix of a dashboard's uid.
UID = "watchkeeper-"
# Parameters that a link to another dashboard keeps.
KEPT_PARAMETERS = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"


class PanelKind(StrEnum):
    STAT = "stat"
    TIMESERIES = "timeseries"
    BARS = "bars"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class PanelQuery:
    expr: str
    legend: str = ""
    # Round counts that `increase` extrapolates.
    round: bool = False


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """`width` 0 shares the row; `colors` maps a lower bound to a colour; `alert` gives runbook and limit."""

    title: str
    kind: PanelKind
    about: str
    queries: tuple[PanelQuery, ...]
    unit: str = "short"
    width: int = 0
    max: float | None = None
    stacked: bool = False
    scale: str = "linear"
    colors: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    alert: str | None = None
    shows_limit: bool = False


@dataclass(frozen=True, slots=True)
class AlertThreshold:
    value: float
    is_upper: bool


@dataclass(frozen=True, slots=True)
class LinkTargets:
    """Link targets of a dashboard: the console, and the documentation if it is published."""

    page: str
    console_url: str
    docs_url: str | None


class PanelGrid:
    """Places panels from left to right and from top to bottom."""

    def __init__(self, site: LinkTargets) -> None:
        self.panels: list[dict[str, Any]] = []
        self._site = site
        self._top = 0

    def add_row(self, title: str, panels: tuple[DashboardPanel, ...]) -> None:
        self._put({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, width=PAGE, height=1)
        self._top += 1
        left = tallest = 0
        # Stat panels share one row; two charts fill a row.
        stat_width = PAGE // max(1, sum(panel.kind is PanelKind.STAT for panel in panels))
        for panel in panels:
            is_stat = panel.kind is PanelKind.STAT
            width, height = panel.width or (stat_width if is_stat else PAGE // 2), 4 if is_stat else 8
            if left + width > PAGE:
                self._top += tallest
                left = tallest = 0
            self._put(panel_json(panel, self._site), left, width=width, height=height)
            left, tallest = left + width, max(tallest, height)
        self._top += tallest

    def _put(self, panel: dict[str, Any], left: int, *, width: int, height: int) -> None:
        at = {"x": left, "y": self._top, "w": width, "h": height}
        self.panels.append({"id": len(self.panels) + 1, **panel, "gridPos": at})


def panel_json(panel: DashboardPanel, site: LinkTargets) -> dict[str, Any]:
    panel_object: dict[str, Any] = {
        "type": "bargauge" if panel.kind is PanelKind.BARS else panel.kind.value,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "targets": [_target(panel, number) for number in range(len(panel.queries))],
        "fieldConfig": {"defaults": _defaults(panel) | _drilldown_links(panel, site), "overrides": _cell_links(panel)},
        "options": _options(panel),
    }
    if panel.kind is PanelKind.TABLE:
        # Only the columns that the panel lists, in its order, with its titles.
        order = {"indexByName": {name: at for at, name in enumerate(panel.columns)}}
        columns = {"excludeByName": {"Time": True, "Value": True}, **order, "renameByName": dict(panel.columns)}
        panel_object["transformations"] = [{"id": "organize", "options": columns}]
    if panel.alert is not None and site.docs_url is not None:
        where = f"{site.docs_url.rstrip('/')}/{runbook_path(panel.alert).removeprefix('docs/')}"
        panel_object["links"] = [{"title": f"Runbook of {panel.alert}", "url": where, "targetBlank": True}]
    return panel_object


def _target(panel: DashboardPanel, number: int) -> dict[str, Any]:
    query = panel.queries[number]
    is_instant = panel.kind is not PanelKind.TIMESERIES
    target: dict[str, Any] = {
        "refId": REF_IDS[number],
        "datasource": DATASOURCE,
        "expr": f"round({query.expr})" if query.round else query.expr,
        "instant": is_instant,
        "range": not is_instant,
        "legendFormat": query.legend or "__auto",
        "editorMode": "code",
    }
    return target | ({"format": "table"} if panel.kind is PanelKind.TABLE else {})


def _defaults(panel: DashboardPanel) -> dict[str, Any]:
    steps = [(float(at), color) for at, color in panel.colors.items()] or _limit_steps(panel)
    defaults: dict[str, Any] = {"unit": panel.unit, "noValue": "–"}
    if steps:
        # The first step has no number: its colour also applies below it.
        written = [{"value": at if number else None, "color": color} for number, (at, color) in enumerate(steps)]
        defaults["thresholds"] = {"mode": "absolute", "steps": written}
        defaults["color"] = {"mode": "palette-classic" if panel.kind is PanelKind.TIMESERIES else "thresholds"}
    if panel.max is not None:
        defaults |= {"min": 0, "max": panel.max}
    if panel.kind is PanelKind.TIMESERIES:
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 0,
            "showPoints": "never",
            # Gaps stay gaps: missing samples are not interpolated.
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "scaleDistribution": {"type": "log", "log": 10} if panel.scale == "log" else {"type": "linear"},
            "thresholdsStyle": {"mode": "line" if steps else "off"},
        }
    return defaults


def _drilldown_links(panel: DashboardPanel, site: LinkTargets) -> dict[str, Any]:
    """Links of a series: from a node to its dashboard, from a GPU to its dashboard, and from there to the console."""
    legends = [query.legend for query in panel.queries]
    if not all("{{Hostname}}" in legend for legend in legends):
        return {}
    if not all("{{gpu}}" in legend for legend in legends):
        return {"links": [_page_link("node", "This node", {"node": "Hostname"})]} if site.page != "node" else {}
    if site.page != "gpu":
        return {"links": [_page_link("gpu", "This GPU", {"node": "Hostname", "gpu": "gpu"})]}
    url = f"{site.console_url}/gpu/${{__field.labels.UUID}}"
    return {"links": [{"title": "This GPU in the console", "url": url, "targetBlank": True}]}


def _page_link(page: str, title: str, chosen: dict[str, str]) -> dict[str, Any]:
    variables = "".join(f"&var-{name}=${{__field.labels.{label}}}" for name, label in chosen.items())
    return {"title": title, "url": f"/d/{UID}{page}?{KEPT_PARAMETERS}{variables}", "targetBlank": False}


def _cell_links(panel: DashboardPanel) -> list[dict[str, Any]]:
    if panel.columns.get("Hostname") is None:
        return []
    url = f"/d/{UID}node?{KEPT_PARAMETERS}&var-node=${{__value.text}}"
    link = {"title": "This node", "url": url, "targetBlank": False}
    column = {"id": "byName", "options": panel.columns["Hostname"]}
    return [{"matcher": column, "properties": [{"id": "links", "value": [link]}]}]


def _limit_steps(panel: DashboardPanel) -> list[tuple[float, str]]:
    if panel.alert is None or not panel.shows_limit:
        return []
    limit = alert_threshold(panel.alert)
    below, above = ("green", "red") if limit.is_upper else ("red", "green")
    return [(-math.inf, below), (limit.value, above)]


def _options(panel: DashboardPanel) -> dict[str, Any]:
    if panel.kind is PanelKind.TIMESERIES:
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind is PanelKind.TABLE:
        return {"showHeader": True, "cellHeight": "sm"}
    reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind is PanelKind.BARS:
        return {"orientation": "horizontal", "displayMode": "basic", "showUnfilled": True, "reduceOptions": reduced}
    modes = {"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": "value"}
    return {**modes, "reduceOptions": reduced}


def runbook_path(alert: str) -> str:
    return str(_rules()[alert]["annotations"]["runbook_url"])


@cache
def alert_threshold(alert: str) -> AlertThreshold:
    """The threshold of the shipped alert of this name; ValueError if it does not compare with a number."""
    tree = parser.parse(_rules()[alert]["expr"])
    if isinstance(tree, ast.Binary) and isinstance(tree.right, ast.Number) and tree.op in (">", ">=", "<", "<="):
        return AlertThreshold(tree.right.value, tree.op.startswith(">"))
    raise ValueError(f"{alert} does not end in a comparison with a number, so there is no limit to draw")


@cache
def _rules() -> dict[str, dict[str, Any]]:
    folder = resources.files("watchkeeper").joinpath("packs", "rules")
    texts = [file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".yaml")]
    groups = [group for text in texts for group in yaml_text.load(text)["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
