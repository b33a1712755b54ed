"""The tools of `watchkeeper mcp`: each reads from the hub and answers with JSON of limited size.

`cli.mcp.mcp` passes the tools to `mcp_protocol.McpServer`. In an answer that is too long, the longest lists are
truncated and `left_out` counts the omitted rows, so that the assistant can ask for less.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import watchkeeper
from watchkeeper.catalogue import causes
from watchkeeper.cli.mcp.mcp_protocol import McpResource, McpTool
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError, PackError
from watchkeeper.kit import durations, wire

# About 12,000 words: a large part of a model's context, but not all of it.
MAX_CHARACTERS = 60_000
MAX_SERIES, MAX_POINTS = 100, 200
MAX_ROWS = 500
MAX_PASTED_CHARACTERS = 4_000_000
LIMIT = {"type": "integer", "description": "maximum number of rows", "minimum": 1, "maximum": MAX_ROWS}
# A wheel has the runbooks in packs (see pyproject.toml), a checkout in docs.
PACKAGE_FOLDER = Path(watchkeeper.__file__).parent
RUNBOOK_FOLDERS = (PACKAGE_FOLDER / "packs" / "runbooks", PACKAGE_FOLDER.parent / "docs" / "runbooks")
INCIDENT_ID = "id of the incident, for example INC-1"


def tools(hub: Client, *, may_act: bool) -> list[McpTool]:
    read_tools = ReadTools(hub)
    read_only = [*_fleet_tools(read_tools), *_incident_tools(read_tools), *_workload_tools(read_tools)]
    return [*read_only, *_action_tools(ActionTools(hub))] if may_act else read_only


def resources() -> list[McpResource]:
    return [
        McpResource(f"watchkeeper://runbooks/{name}", name, title, partial(read_runbook, name))
        for name, title in runbook_titles().items()
    ]


def _tool(
    call: Callable[[dict[str, Any]], str],
    description: str,
    /,
    *required: str,
    changes_fleet: bool = False,
    **arguments: str | dict[str, Any],
) -> McpTool:
    """A tool with the name of its method; an argument is a JSON schema, or the description of a text."""
    schemas = {
        name: {"type": "string", "description": about} if isinstance(about, str) else about
        for name, about in arguments.items()
    }
    return McpTool(call.__name__, description, call, schemas, required, changes_fleet)


def _fleet_tools(read: ReadTools) -> Iterator[McpTool]:
    description = "Summarise the fleet: nodes by state, GPUs, open incidents, nodes with problems, free capacity."
    yield _tool(read.fleet_overview, description)
    description = "Show one node: state, scheduler state, GPUs with their holders, and an explanation of its state."
    yield _tool(read.node, description, "name", name="name of the node")
    description = "Show one GPU: node, holder, open incidents and newest readings."
    yield _tool(read.gpu, description, "name", name="UUID, or NODE/INDEX")
    yield _tool(
        read.query,
        "Run a PromQL query, instant or range; returns at most 100 series of 200 points.",
        "expr",
        expr="PromQL expression",
        since="length of a range query that ends now, for example 1h; omit for an instant query",
        step="step of the range query, for example 5m",
    )


def _incident_tools(read: ReadTools) -> Iterator[McpTool]:
    description = "List incidents, newest first, with cause, place, reason and next step."
    resolved = {"type": "boolean", "description": "include resolved incidents"}
    yield _tool(read.incidents, description, all=resolved, limit=LIMIT)
    description = "Show one incident: ranked causes, evidence, excluded causes, blast radius, timeline, repair plan."
    yield _tool(read.incident, description, "id", id=INCIDENT_ID)
    description = "Diagnose a pasted log or output: kernel log, nvidia-smi, NCCL, training, kubectl, Slurm."
    yield _tool(read.doctor, description, "text", text="log or output, unchanged")
    description = "Return the runbook of a cause as Markdown: how to confirm, fix and prevent it."
    yield _tool(read.runbook, description, "cause", cause="cause id, for example gpu_fell_off_bus")


def _workload_tools(read: ReadTools) -> Iterator[McpTool]:
    description = "List jobs, most severe problems first: efficiency, bottleneck, goodput, straggler."
    filters: dict[str, Any] = {"state": "return only jobs in this state", "team": "return only jobs of this team"}
    yield _tool(read.jobs, description, **filters, limit=LIMIT)
    description = "Show one job: GPU use, how to improve it, ranks, hardware events."
    yield _tool(read.job, description, "id", id="Slurm id, namespace/name, or name")
    window: dict[str, Any] = {"by": "group by team (default), user, job, node, model, …"}
    window["since"] = "length of the report, which ends now, for example 7d; default 1d"
    yield _tool(read.usage, "Report GPU-hours: allocated, used, wasted, idle, lost, unknown.", **window)
    yield _tool(read.cost, "Report cost by the hub's price book.", **window)
    description = "Show free capacity now, and forecast when the fleet is full, with an interval and advice."
    yield _tool(read.capacity, description, horizon="how far ahead to forecast, for example 4w; default 7d")


def _action_tools(act: ActionTools) -> Iterator[McpTool]:
    description = "Acknowledge an incident: confirm that a person works on it."
    yield _tool(act.acknowledge, description, "id", changes_fleet=True, id=INCIDENT_ID)
    description = "Add a note to the timeline of an incident."
    yield _tool(act.note, description, "id", "text", changes_fleet=True, id=INCIDENT_ID, text="text of the note")
    description = "Approve the repair plan of an incident, which changes machines. Use only if a person told you to."
    digest = "digest of the plan, from `repair` in the tool `incident`"
    yield _tool(act.approve, description, "id", "digest", changes_fleet=True, id=INCIDENT_ID, digest=digest)


class ReadTools:
    """The read-only tools; each method takes the arguments of its tool and returns text."""

    def __init__(self, hub: Client) -> None:
        self._hub = hub

    def fleet_overview(self, _: dict[str, Any]) -> str:
        nodes, cards = self._hub.nodes(), self._hub.incidents()
        status = self._hub.status()
        problem_nodes = [node for node in nodes if node.state != "up"]
        return truncated_json(
            {
                "hub": _select_keys(status, "cluster", "version", "mode", "now", "simulated", "degraded"),
                "nodes_by_state": Counter(node.state for node in nodes),
                "gpus_seen": sum(node.gpus_seen for node in nodes),
                "gpus_expected": sum(node.gpus_expected or 0 for node in nodes),
                "standing": self._hub.free_capacity(),
                "open_incidents_by_severity": Counter(card.severity for card in cards),
                "open_incidents": [_summarise_incident(card) for card in cards],
                "nodes_in_trouble": [_pick(node, "name", "state", "why", "holders") for node in problem_nodes],
            }
        )

    def node(self, arguments: dict[str, Any]) -> str:
        answer = self._hub.who(arguments["name"])
        if not answer.nodes:
            raise HubError(f"no node {arguments['name'][:60]}", remedy="Find names with fleet_overview or query")
        try:
            explained = self._hub.explain("node", arguments["name"]).text
        except HubError as error:
            explained = f"unknown: {error}"
        return truncated_json({"nodes": answer.plain["nodes"], "explained": explained})

    def gpu(self, arguments: dict[str, Any]) -> str:
        gpus = self._hub.who(arguments["name"]).gpus
        if not gpus:
            raise HubError(f"no GPU {arguments['name'][:60]}", remedy="Give a UUID, or NODE/INDEX")
        uuids = "|".join(gpu.uuid for gpu in gpus[:8])
        matching = self._hub.query(f'{{__name__=~"DCGM_FI_DEV_.*",UUID=~"{uuids}"}}', limit=MAX_ROWS).series
        readings = {
            f"{series.labels.get('__name__')} {series.labels.get('UUID')}": series.newest for series in matching
        }
        return truncated_json({"gpus": [gpu.plain for gpu in gpus], "readings": readings})

    def query(self, arguments: dict[str, Any]) -> str:
        expr = arguments["expr"]
        if "since" not in arguments:
            result = self._hub.query(expr, limit=MAX_SERIES)
        else:
            seconds, end = _parse_seconds(arguments["since"]), self._hub.status().now
            # The finest step that stays within the limit of points, unless a coarser one is requested.
            step = max(1, round(seconds / MAX_POINTS), round(_parse_seconds(arguments.get("step", "1s"))))
            start = end - timedelta(seconds=seconds)
            result = self._hub.query_range(expr, start=start, end=end, step=f"{step}s")
        series = [{"labels": dict(entry.labels), "points": entry.points[-MAX_POINTS:]} for entry in result.series]
        shown = series[:MAX_SERIES]
        return truncated_json({"series": shown, "series_shown": len(shown), "warnings": result.warnings})

    def incidents(self, arguments: dict[str, Any]) -> str:
        cards = self._hub.incidents(all=arguments.get("all", False))
        shown = cards[: max(0, arguments.get("limit", MAX_ROWS))]
        return truncated_json({"incidents": [_summarise_incident(card) for card in shown], "found": len(cards)})

    def incident(self, arguments: dict[str, Any]) -> str:
        answer, repair = self._hub.incident(arguments["id"]), self._hub.repair(arguments["id"])
        runbook = f"watchkeeper://runbooks/{causes.lookup(answer.incident.cause).runbook}"
        return truncated_json({**answer.plain, "repair": repair.plain, "runbook": runbook})

    def doctor(self, arguments: dict[str, Any]) -> str:
        from watchkeeper.doctor import examine, report
        from watchkeeper.readers import bundles

        text = arguments["text"]
        if len(text) > MAX_PASTED_CHARACTERS:
            raise HubError(f"the text has {len(text):,} characters, the limit is {MAX_PASTED_CHARACTERS:,}")
        answer = examine.examine(bundles.open_stream("pasted", io.BytesIO(text.encode())))
        return truncated_json(report.as_plain(answer))

    def runbook(self, arguments: dict[str, Any]) -> str:
        return read_runbook(causes.lookup(arguments["cause"]).runbook)

    def jobs(self, arguments: dict[str, Any]) -> str:
        return truncated_json(_select_keys(self._hub.jobs(**{"limit": 50, **arguments}), "jobs", "total", "problems"))

    def job(self, arguments: dict[str, Any]) -> str:
        return truncated_json(self._hub.job(arguments["id"]))

    def usage(self, arguments: dict[str, Any]) -> str:
        report = self._hub.usage(**self._window(arguments))
        return truncated_json(_select_keys(report, "since", "until", "by", "lines", "total", "notes"))

    def cost(self, arguments: dict[str, Any]) -> str:
        report = self._hub.cost(**self._window(arguments))
        return truncated_json(_select_keys(report, "since", "until", "by", "currency", "lines", "money", "notes"))

    def _window(self, arguments: dict[str, Any]) -> dict[str, Any]:
        now = self._hub.status().now
        since = now - timedelta(seconds=_parse_seconds(arguments.get("since", "1d")))
        return {"by": arguments.get("by", "team"), "since": wire.format_time(since)}

    def capacity(self, arguments: dict[str, Any]) -> str:
        answer: dict[str, Any] = {"standing": self._hub.free_capacity()}
        try:
            forecast = self._hub.forecast(horizon=arguments.get("horizon", "7d"))
        except HubError as error:
            # A new hub knows its free capacity but has too little history for a forecast.
            return truncated_json({**answer, "forecast": None, "why_not": str(error)})
        about = {name: value for name, value in forecast.plain.items() if name not in ("ok", "history")}
        return truncated_json({**answer, **about})


class ActionTools:
    """The tools that make changes; the role of the token limits them."""

    def __init__(self, hub: Client) -> None:
        self._hub = hub

    def acknowledge(self, arguments: dict[str, Any]) -> str:
        return f"{arguments['id']} is {self._hub.acknowledge(arguments['id']).incident.state}."

    def note(self, arguments: dict[str, Any]) -> str:
        self._hub.note(arguments["id"], text=arguments["text"])
        return f"Note added to {arguments['id']}."

    def approve(self, arguments: dict[str, Any]) -> str:
        repair = self._hub.approve(arguments["id"], digest=arguments["digest"])
        return f"{arguments['id']}: plan approved by {repair.approved_by}; the repair is {repair.state}: {repair.said}"


def truncated_json(value: Any, max_characters: int = MAX_CHARACTERS) -> str:
    """JSON of limited length: the longest lists are truncated, and `left_out` counts the omitted rows."""
    plain: dict[str, Any] = json.loads(json.dumps(wire.to_plain(value)))
    omitted: dict[str, int] = {}
    while len(text := json.dumps(plain, ensure_ascii=False)) > max_characters:
        path, longest = max(_find_lists(plain), key=lambda entry: len(json.dumps(entry[1])), default=("", []))
        if not longest:
            return json.dumps({"problem": f"the answer has {len(text):,} characters, the limit is {max_characters:,}"})
        kept_rows = len(longest) // 2
        omitted[path] = omitted.get(path, 0) + len(longest) - kept_rows
        del longest[kept_rows:]
        plain["left_out"] = omitted
    return text


def _find_lists(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _find_lists(item, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value:
        yield path, value
        for at, item in enumerate(value):
            yield from _find_lists(item, f"{path}[{at}]")


def _summarise_incident(card: answers.IncidentCard) -> dict[str, Any]:
    about = ("id", "title", "severity", "state", "cause", "place_name", "opened_at", "why", "next_step", "workloads")
    return _pick(card, *about)


def _pick(row: object, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _select_keys(answer: reading.HubAnswer, *names: str) -> dict[str, Any]:
    return {name: answer.plain[name] for name in names}


def _parse_seconds(text: str) -> float:
    try:
        return durations.parse_seconds(text)
    except ValueError as error:
        raise HubError(f"`{text[:40]}` is not a duration: {error}", remedy="Write for example 1h or 7d") from error


@cache
def runbook_titles() -> dict[str, str]:
    """Names of all runbooks with what each is about; empty if none are installed."""
    rows = {row.runbook: row.why for row in causes.all_causes()}
    return {name: title for name, title in sorted(rows.items()) if _find_runbook(name) is not None}


def read_runbook(name: str) -> str:
    path = _find_runbook(name) if name in runbook_titles() else None
    if path is None:
        raise PackError(f"no runbook {name[:60]}", remedy="Use the cause of an incident")
    return path.read_text(encoding="utf-8")


def _find_runbook(name: str) -> Path | None:
    return next((path for folder in RUNBOOK_FOLDERS if (path := folder / f"{name}.md").is_file()), None)
