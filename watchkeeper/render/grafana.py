"""`render grafana`: dashboards and their provisioning.

A dashboard is a file of packs/dashboards: rows of panels with queries. `dashboard` makes its Grafana JSON and
`grafana_panel` that of one panel; tests check the result with Grafana's own SDK, the embedded engine and Prometheus.
docs/decisions/0016-dashboards.md explains why that SDK does not write the JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from watchkeeper.config import settings as config
from watchkeeper.kit import wire
from watchkeeper.kit import yaml_text as kit_yaml
from watchkeeper.render import yaml_text
from watchkeeper.render.grafana_panel import DATASOURCE, UID, DashboardPanel, LinkTargets, PanelGrid
from watchkeeper.render.tree import RenderedFile

# The version that Grafana 12 writes; older releases read it, newer ones migrate it.
SCHEMA_VERSION = 42
# In the order of the menu.
NAMES = ("fleet", "node", "gpu", "mig", "fabric", "training", "inference", "cost")
# A variable of a page: its label, and the query for its values.
VARIABLES = {
    "cluster": ("Cluster", "label_values(DCGM_FI_DEV_GPU_TEMP, cluster)"),
    "node": ("Node", 'label_values(DCGM_FI_DEV_GPU_TEMP{cluster=~"$cluster"}, Hostname)'),
    "gpu": ("GPU", 'label_values(DCGM_FI_DEV_GPU_TEMP{cluster=~"$cluster", Hostname=~"$node"}, gpu)'),
    "job": ("Job", 'label_values(training_last_step_timestamp_seconds{cluster=~"$cluster"}, job_name)'),
    "model": ("Model", 'label_values(inference_requests_total{cluster=~"$cluster"}, model_name)'),
}
# The alert label that corresponds to a variable.
ALERT_LABELS = {"node": "Hostname", "gpu": "gpu", "job": "job_name", "model": "model_name"}
REFRESH = "30s"
FIELD = re.compile(r"\bDCGM_FI_\w+")


@dataclass(frozen=True, slots=True)
class DashboardRow:
    title: str
    panels: tuple[DashboardPanel, ...]


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """One file of packs/dashboards."""

    title: str
    about: str
    variables: tuple[str, ...]
    rows: tuple[DashboardRow, ...]


def files(settings: config.Settings) -> list[RenderedFile]:
    texts = {f"dashboards/{name}.json": as_text(board) for name, board in dashboards(settings).items()}
    return [
        *(RenderedFile(path, text) for path, text in texts.items()),
        RenderedFile("provisioning/dashboards/watchkeeper.yaml", _provider()),
        RenderedFile("provisioning/datasources/watchkeeper.yaml", _source(settings)),
    ]


def dashboards(settings: config.Settings) -> dict[str, dict[str, Any]]:
    """Every dashboard by its name."""
    return {name: dashboard(name, settings) for name in NAMES}


def dcgm_fields(settings: config.Settings) -> set[str]:
    """DCGM fields that panels query."""
    pages = [page(name, settings) for name in NAMES]
    texts = [
        query.expr
        for dashboard_page in pages
        for row in dashboard_page.rows
        for panel in row.panels
        for query in panel.queries
    ]
    return {name for text in texts for name in FIELD.findall(text)}


def as_text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


@cache
def _text(name: str) -> str:
    return resources.files("watchkeeper").joinpath("packs", "dashboards", f"{name}.yaml").read_text(encoding="utf-8")


def page(name: str, settings: config.Settings) -> DashboardPage:
    text = _text(name).replace("@price@", f"{settings.cost.dollars_per_gpu_hour:g}")
    return wire.from_plain(DashboardPage, kit_yaml.load(text))


def dashboard(name: str, settings: config.Settings) -> dict[str, Any]:
    dashboard_page = page(name, settings)
    grid = PanelGrid(LinkTargets(name, console_url(settings), settings.render.docs_url))
    for row in dashboard_page.rows:
        grid.add_row(row.title, row.panels)
    return {
        "uid": f"{UID}{name}",
        "title": dashboard_page.title,
        "description": dashboard_page.about,
        "tags": ["watchkeeper"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": REFRESH,
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": _links(settings),
        "templating": {"list": [_server_choice(), *(_variable(name) for name in dashboard_page.variables)]},
        "annotations": {"list": [_alerts(dashboard_page)]},
        "panels": grid.panels,
    }


def console_url(settings: config.Settings) -> str:
    """The console's public address, by default the hub's."""
    return (settings.notify.console_url or settings.render.hub_url).rstrip("/")


def _links(settings: config.Settings) -> list[dict[str, Any]]:
    """Links to the other dashboards, and to the incidents in the console."""
    pages = _link("Watchkeeper", "dashboards", "external link", "Pages of this fleet")
    incidents = _link(
        "Incidents", "link", "bolt", "Open incidents with cause and next step", url=f"{console_url(settings)}/incidents"
    )
    return [
        pages | {"tags": ["watchkeeper"], "asDropdown": True, "includeVars": True, "keepTime": True},
        incidents | {"targetBlank": True},
    ]


def _link(title: str, type: str, icon: str, *tooltip: str, url: str = "") -> dict[str, Any]:
    return {
        "title": title,
        "type": type,
        "icon": icon,
        "tooltip": " ".join(tooltip),
        "url": url,
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": False,
        "keepTime": False,
    }


def _server_choice() -> dict[str, Any]:
    """A dashboard works with every Prometheus and with the hub's Prometheus API."""
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    label, query = VARIABLES[name]
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        # Updated when the time range changes: nodes and jobs come and go.
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts(dashboard_page: DashboardPage) -> dict[str, Any]:
    """Annotations for firing alerts that match the page's variables."""
    about = [f'{ALERT_LABELS[name]}=~"${name}|"' for name in dashboard_page.variables if name in ALERT_LABELS]
    matchers = ", ".join(['alertstate="firing"', 'cluster=~"$cluster"', *about])
    return {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": f"ALERTS{{{matchers}}}",
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{Hostname}} {{gpu}} {{severity}}",
    }


def _provider() -> str:
    about = (
        "Grafana reloads the dashboards of the folder when a file changes. Copy `provisioning` to "
        "/etc/grafana/provisioning and `dashboards` to the path below."
    )
    provider = {
        "name": "watchkeeper",
        "folder": "Watchkeeper",
        "type": "file",
        "allowUiUpdates": False,
        "updateIntervalSeconds": 30,
        "options": {"path": "/var/lib/grafana/dashboards/watchkeeper"},
    }
    return yaml_text.document(about, [yaml_text.YamlPart({"apiVersion": 1, "providers": [provider]})])


def _source(settings: config.Settings) -> str:
    """The data source: the server of `query.url`, or the hub."""
    if settings.query.url is not None:
        about = "Samples are stored by the server of `query.url`."
        return yaml_text.document(
            about, [yaml_text.YamlPart({"apiVersion": 1, "datasources": [_server(settings.query.url)]})]
        )
    about = (
        "The hub has Prometheus' API. Set WATCHKEEPER_TOKEN in Grafana's environment to a viewer's token; if "
        "the hub has no tokens, remove the last three keys."
    )
    datasource = {
        **_server(settings.render.hub_url),
        "jsonData": {
            "httpMethod": "POST",
            "timeInterval": settings.fleet.scrape_interval,
            "httpHeaderName1": "Authorization",
        },
        "secureJsonData": {"httpHeaderValue1": "Bearer $WATCHKEEPER_TOKEN"},
    }
    return yaml_text.document(about, [yaml_text.YamlPart({"apiVersion": 1, "datasources": [datasource]})])


def _server(url: str) -> dict[str, Any]:
    return {
        "name": "Watchkeeper",
        "uid": "watchkeeper",
        "type": "prometheus",
        "access": "proxy",
        "url": url.rstrip("/"),
    }
