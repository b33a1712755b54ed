"""Ask everything at one moment: every GET endpoint, page model, query of a tile, metric and command.

`take_look` returns a Look, plain JSON by name, which the invariants compare. Time is frozen meanwhile, so that all
answers are of the same moment.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any
from urllib.parse import quote, urlencode

from watchkeeper.catalogue import pack
from watchkeeper.drill.consistency.product import RunningProduct
from watchkeeper.kit import wire

# Endpoints that are not asked, and why.
NOT_ASKED = {
    "/api/live": "a WebSocket, which the open page reads",
    "/api/picture": "the frame of the open page, packed",
    "/api/orders": "waits for work orders, as an agent does",
    "/api/orders/{id}": "the simulated fleet has no work orders",
    "/api/orders/recent": "the simulated fleet has no work orders",
    "/federate": "needs a selector",
    "/api/bundle": "an archive",
    "/api/recording": "an archive",
    "/assets/{name}": "a file of the console",
    "/api/explain/pod/{name}": "the same answer as with the namespace",
}
# Lists that are also asked for one row, whose total must stay the same, and lists with their resolved or ended rows.
VARIANTS = (
    "/api/jobs?limit=10000",
    "/api/jobs?limit=1",
    "/api/fabric/links?limit=1000",
    "/api/fabric/links?limit=1",
    "/api/incidents?open=0&limit=1000",
    "/api/incidents?limit=1",
    "/api/repairs?all=1",
    "/api/journal?limit=1000",
    "/api/usage?by=node",
    "/api/cost?by=job",
)
# Counts that the pages show, as a user would query them. Not ALERTS of before the last start: as in Prometheus, series
# of alerts that ended while the hub was down last for the lookback.
QUERIES = {
    "firing": 'count(ALERTS{alertstate="firing"} and time() - timestamp(ALERTS) < $uptime) or vector(0)',
    "pending": 'count(ALERTS{alertstate="pending"} and time() - timestamp(ALERTS) < $uptime) or vector(0)',
    "up": "sum(up)",
    "expected": "sum(watchkeeper_node_expected_gpus)",
}
# Alerts that notify a person and began again within ten minutes.
FLAPS = (
    'changes(ALERTS_FOR_STATE{severity!="info"}[10m]) > 1 and ignoring (alertstate)'
    ' count_over_time(ALERTS{alertstate="firing"}[10m])'
)
COMMANDS = (
    ("nodes",),
    ("jobs",),
    ("incidents",),
    ("act", "list"),
    ("topology",),
    ("usage",),
    ("cost", "report"),
    ("capacity", "now"),
    ("slo",),
    ("lemons",),
)
MAX_COMMANDS_EACH = 3
# The newest of them; after hours of random faults there are hundreds.
MAX_RESOLVED = 10
# Runs a command line and returns its exit code and output.
RunCommand = Callable[[Sequence[str]], tuple[int, str]]
PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Look:
    """All answers of one moment, by path, query or command."""

    at: datetime
    moment: str
    answers: dict[str, Any] = field(default_factory=dict)
    # Starts of the hub until then.
    restarts: int = 0

    def get(self, name: str, *keys: str, default: Any = None) -> Any:
        """The value at a path of keys in an answer; `default` where the answer has none of it."""
        value: Any = self.answers.get(name)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return default if value is None else value

    def rows(self, name: str, *keys: str) -> list[Any]:
        rows: list[Any] = self.get(name, *keys, default=[])
        return rows


async def take_look(product: RunningProduct, moment: str, run_command: RunCommand | None) -> Look:
    look = Look(product.now, moment, restarts=product.restarts)
    with product.loop.frozen():
        look.answers["simulator"] = read_simulator(product)
        look.answers["page: incidents"], look.answers["page: map"] = product.panel, product.frame
        document = await product.get("/api/openapi.json")
        templates = [path for path, methods in document.get("paths", {}).items() if "get" in methods]
        await _ask(product, look, chain((path for path in templates if is_plain(path, document)), VARIANTS))
        await _ask(product, look, detail_paths(look, templates))
        look.answers["/metrics"] = read_metrics(look.get("/metrics", default=""))
        look.answers["query: flaps"] = await product.get(query_path(FLAPS, product.now.timestamp()))
        for name, expr in QUERIES.items():
            path = query_path(expr.replace("$uptime", str(product.uptime_seconds)), product.now.timestamp())
            look.answers[f"query: {name}"] = read_number(await product.get(path))
        for name, expr in tile_queries().items():
            # The tiles are of the frame, which is some seconds old.
            path = query_path(expr, look.get("page: map", "at", default=product.now.timestamp()))
            look.answers[f"query: {name}"] = read_number(await product.get(path))
        if run_command is not None:
            for line in command_lines(look):
                look.answers[f"watchkeeper {' '.join(line)}"] = await _run(product, line, run_command)
    return look


def is_plain(path: str, document: Mapping[str, Any]) -> bool:
    parameters = document["paths"][path]["get"].get("parameters", ())
    return path not in NOT_ASKED and "{" not in path and not any(parameter.get("required") for parameter in parameters)


async def _ask(product: RunningProduct, look: Look, paths: Iterable[str]) -> None:
    for path in paths:
        look.answers[path] = await product.get(path)


async def _run(product: RunningProduct, line: Sequence[str], run_command: RunCommand) -> Any:
    code, output = await asyncio.to_thread(run_command, [*line, "--hub", product.url])
    if "--json" not in line:
        return {"code": code, "text": output}
    try:
        return json.loads(output)
    except json.JSONDecodeError:
        return {"code": code, "error": output[:2000]}


def read_simulator(product: RunningProduct) -> dict[str, Any]:
    """What is true in the simulated fleet: its active faults, and the state of each node."""
    simulation = product.simulation
    faults = [
        {"id": fault.id, "scenario": fault.scenario.name, "node": fault.node.name, "at": fault.at}
        for fault in simulation.faults.active.values()
    ]
    views = {node.name: wire.to_plain(simulation.cluster.view(node)) for node in simulation.layout.nodes}
    boots = {node.name: simulation.machines.kernel.boot_of(node.name) for node in simulation.layout.nodes}
    return {"faults": faults, "nodes": views, "boots": boots}


def tile_queries() -> dict[str, str]:
    """The queries of the fleet page's charts, by label, and that of the tile Power."""
    charts = json.loads(pack.text_of("console/fleet.json"))
    return {"watts": "sum(DCGM_FI_DEV_POWER_USAGE)", **{f"chart {chart['label']}": chart["expr"] for chart in charts}}


def query_path(expr: str, at: object) -> str:
    return f"/api/v1/query?{urlencode({'query': expr, 'time': at})}"


def read_number(answer: Mapping[str, Any]) -> float | None:
    """The value of a query with one result; None if there is none."""
    result = (answer.get("data") or {}).get("result")
    return float(result[0]["value"][1]) if result else None


def read_metrics(page: str) -> dict[str, dict[str, float]]:
    """The samples of a metrics page, by metric and labels."""
    metrics: dict[str, dict[str, float]] = {}
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        if not line.startswith("#") and series:
            metrics.setdefault(name, {})[labels] = float(value)
    return metrics


def detail_paths(look: Look, templates: Sequence[str]) -> Iterator[str]:
    """One path for each incident, job, node, GPU, pod and link that the lists name."""
    subjects = list_subjects(look)
    for template in templates:
        if template not in NOT_ASKED and (key := subject_key(template)) in subjects:
            for values in subjects[key]:
                yield fill(template, values)


def subject_key(template: str) -> str:
    """The name in `list_subjects` for the path of one object, or for a path with a required query."""
    if template in ("/api/who", "/api/history", "/api/fabric/port", "/api/explore/complete"):
        return template
    names = PARAMETER.findall(template)
    prefix = template.partition("/{")[0]
    return f"{prefix}/{'/'.join(names)}" if names else ""


def list_subjects(look: Look) -> dict[str, list[dict[str, str]]]:
    nodes = [node["name"] for node in look.rows("/api/nodes", "nodes")]
    jobs = [job["id"] for job in look.rows("/api/jobs?limit=10000", "jobs")]
    uuids = [uuid for node in look.rows("/api/fleet", "nodes") for uuid in gpu_uuids(node)]
    cards = look.rows("/api/incidents?open=0&limit=1000", "incidents")
    resolved = [card for card in cards if card["state"] == "resolved"][:MAX_RESOLVED]
    incidents = [{"id": card["id"]} for card in cards if card in resolved or card["state"] != "resolved"]
    pods = [pod.rpartition("/") for pod in sorted(set(look.get("/api/fleet", "workloads", default={}).values()))]
    links = [link["id"] for link in look.rows("/api/fabric/links?limit=1000", "links")]
    in_namespace = [dict(zip(("namespace", "_", "name"), job.rpartition("/"), strict=True)) for job in jobs]
    return {
        "/api/incidents/id": incidents,
        "/api/gpu/uuid": [{"uuid": uuid} for uuid in uuids],
        "/api/jobs/id": [{"id": job} for job in jobs],
        "/api/explain/node/name": [{"name": node} for node in nodes],
        "/api/explain/job/name": [{"name": job} for job in jobs if "/" not in job],
        "/api/explain/job/namespace/name": [names for names in in_namespace if names["namespace"]],
        "/api/explain/pod/namespace/name": [{"namespace": space, "name": name} for space, _, name in pods if space],
        "/api/v1/label/name": [{"name": "alertname"}],
        "/api/who": [{"name": name} for name in (*nodes, *jobs)],
        "/api/history": [{"node": node} for node in nodes],
        "/api/fabric/port": [{"id": link} for link in links[:2]],
        "/api/explore/complete": [{"query": "u"}],
    }


def gpu_uuids(node: Mapping[str, Any]) -> Iterator[str]:
    """The UUIDs of a node of /api/fleet; a slot without a GPU has none."""
    return (gpu["uuid"] for gpu in node["gpus"] if gpu is not None and gpu.get("uuid"))


def fill(template: str, values: Mapping[str, str]) -> str:
    path = PARAMETER.sub(lambda match: quote(values[match[1]], safe=""), template)
    return path if path != template else f"{path}?{urlencode(values)}"


def command_lines(look: Look) -> Iterator[tuple[str, ...]]:
    for command in COMMANDS:
        yield (*command, "--json")
        yield command
    cards, jobs = look.rows("/api/incidents", "incidents"), look.rows("/api/jobs", "jobs")
    nodes = dict.fromkeys(card["place"]["node"] for card in cards if card["place"]["node"])
    for card in cards[:MAX_COMMANDS_EACH]:
        yield ("incidents", "show", card["id"], "--json")
        yield ("act", "explain", card["id"], "--json")
    for job in jobs[:MAX_COMMANDS_EACH]:
        yield ("jobs", "show", job["id"], "--json")
        yield ("explain", "job", job["id"], "--json")
    for node in [*nodes][:MAX_COMMANDS_EACH]:
        yield ("explain", "node", node, "--json")
