"""`render grafana`: dashboards and their provisioning.

A dashboard is a page of packs/dashboards: rows of panels with their queries, as a person writes them. `board` makes
Grafana's JSON of it, `grafana_panel` the JSON of one panel; tests hold the result against Grafana's own SDK, our engine
and Prometheus. docs/decisions/0016-dashboards.md says why the JSON is not written by that SDK.
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

# What Grafana 12 writes; older ones read it, newer ones bring it up to date.
SCHEMA_VERSION = 42
# In the order in which people come to them.
NAMES = ("fleet", "node", "gpu", "mig", "fabric", "training", "inference", "cost")
# A variable of a page, the words above it, and where its values come from.
VARIABLES = {
    "cluster": ("Cluster", "label_values(DCGM_FI_DEV_GPU_TEMP, cluster)"),
    "node": ("Node", 'label_values(DCGM_FI_DEV_GPU_TEMP{cluster=~"$cluster"}, Hostname)'),
    "gpu": ("GPU", 'label_values(DCGM_FI_DEV_GPU_TEMP{cluster=~"$cluster", Hostname=~"$node"}, gpu)'),
    "job": ("Job", 'label_values(training_last_step_timestamp_seconds{cluster=~"$cluster"}, job_name)'),
    "model": ("Model", 'label_values(inference_requests_total{cluster=~"$cluster"}, model_name)'),
}
# Which labels of an alert say that it is about what a page shows.
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
    """DCGM's fields that panels ask for."""
    pages = [page(name, settings) for name in NAMES]
    texts = [query.expr for one in pages for row in one.rows for panel in row.panels for query in panel.queries]
    return {name for text in texts for name in FIELD.findall(text)}


def as_text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


@cache
def _text(name: str) -> str:
    return resources.files("watchkeeper").joinpath("packs", "dashboards", f"{name}.yaml").read_text(encoding="utf-8")


def page(name: str, settings: config.Settings) -> DashboardPage:
    text = _text(name).replace("@price@", f"{settings.cost.dollars_per_gpu_hour:g}")
    return wire.from_plain(DashboardPage, kit_yaml.load(text))


def dashboard(name: str, settings: config.Settings) -> dict[str, Any]:
    found = page(name, settings)
    shelf = PanelGrid(LinkTargets(name, console_url(settings), settings.render.docs_url))
    for row in found.rows:
        shelf.add_row(row.title, row.panels)
    return {
        "uid": f"{UID}{name}",
        "title": found.title,
        "description": found.about,
        "tags": ["watchkeeper"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": REFRESH,
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": _links(settings),
        "templating": {"list": [_server_choice(), *(_variable(one) for one in found.variables)]},
        "annotations": {"list": [_alerts(found)]},
        "panels": shelf.panels,
    }


def console_url(settings: config.Settings) -> str:
    """The console's address for people, else the hub's own."""
    return (settings.notify.console_url or settings.render.hub_url).rstrip("/")


def _links(settings: config.Settings) -> list[dict[str, Any]]:
    """The other pages, and the console with what is behind the alerts."""
    pages = _link("Watchkeeper", "dashboards", "external link", "Pages of this fleet")
    incidents = _link(
        "Incidents", "link", "bolt", "What is wrong, why, and what to do", url=f"{console_url(settings)}/incidents"
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
    """A page works on every Prometheus, and on the hub itself, which answers as one."""
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
        # At each change of the time range: nodes and jobs come and go.
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts(found: DashboardPage) -> dict[str, Any]:
    """Firing alerts as marks on every chart, where they are about what the page shows."""
    about = [f'{ALERT_LABELS[name]}=~"${name}|"' for name in found.variables if name in ALERT_LABELS]
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
        "Grafana reads every dashboard of the folder again when a file changes. Copy `provisioning` to "
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
    """The server that has the samples: a Prometheus where the hub keeps none itself, else the hub."""
    if settings.query.url is not None:
        about = "Samples are kept by the server of `query.url`."
        return yaml_text.document(
            about, [yaml_text.YamlPart({"apiVersion": 1, "datasources": [_server(settings.query.url)]})]
        )
    about = (
        "The hub answers as a Prometheus. Give Grafana a viewer's token in its environment as WATCHKEEPER_TOKEN; where "
        "the hub has no tokens, leave the last three keys out."
    )
    signed = {
        **_server(settings.render.hub_url),
        "jsonData": {
            "httpMethod": "POST",
            "timeInterval": settings.fleet.scrape_interval,
            "httpHeaderName1": "Authorization",
        },
        "secureJsonData": {"httpHeaderValue1": "Bearer $WATCHKEEPER_TOKEN"},
    }
    return yaml_text.document(about, [yaml_text.YamlPart({"apiVersion": 1, "datasources": [signed]})])


def _server(url: str) -> dict[str, Any]:
    return {
        "name": "Watchkeeper",
        "uid": "watchkeeper",
        "type": "prometheus",
        "access": "proxy",
        "url": url.rstrip("/"),
    }
