"""The tools of `watchkeeper mcp`: each reads from the hub and answers with JSON of limited size.

`cli.mcp.mcp` passes the tools to `mcp_protocol.McpServer`. In an answer that is too long, the longest lists are
truncated and `left_out` counts the omitted rows, so that the assistant can ask for less.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from watchkeeper.cli.mcp import runbooks
from watchkeeper.cli.mcp.mcp_protocol import McpResource, McpTool
from watchkeeper.client import answers, promql, reading
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.kit import durations, wire

# About 12,000 words: a large part of a model's context, but not all of it.
MAX_CHARACTERS = 60_000
MAX_SERIES, MAX_POINTS = 100, 200
MAX_ROWS = 500
MAX_PASTED_CHARACTERS = 4_000_000
INCIDENT_ID = "id of the incident, for example INC-1"


def tools(hub: Client, *, may_act: bool) -> list[McpTool]:
    read_tools = ReadTools(hub)
    read_only = [*_fleet_tools(read_tools), *_incident_tools(read_tools), *_workload_tools(read_tools)]
    return [*read_only, *_action_tools(ActionTools(hub))] if may_act else read_only


def resources() -> list[McpResource]:
    return [
        McpResource(f"watchkeeper://runbooks/{name}", name, title, partial(runbooks.read_runbook, name))
        for name, title in runbooks.titles().items()
    ]


def _fleet_tools(read_tools: ReadTools) -> Iterator[McpTool]:
    yield McpTool(
        "fleet_overview",
        "Summarise the fleet: nodes by state, GPUs, open incidents, nodes with problems, free capacity.",
        read_tools.fleet,
    )
    description = "Show one node: state, scheduler state, GPUs with their holders, and an explanation of its state."
    yield McpTool("node", description, read_tools.node, {"name": _text_argument("name of the node")}, ("name",))
    description = "Show one GPU: node, holder, open incidents and newest readings."
    yield McpTool("gpu", description, read_tools.gpu, {"name": _text_argument("UUID, or NODE/INDEX")}, ("name",))
    description = "Run a PromQL query, instant or range; returns at most 100 series of 200 points."
    arguments = {
        "expr": _text_argument("PromQL expression"),
        "since": _text_argument("length of a range query that ends now, for example 1h; omit for an instant query"),
        "step": _text_argument("step of the range query, for example 5m"),
    }
    yield McpTool("query", description, read_tools.query, arguments, ("expr",))


def _incident_tools(read_tools: ReadTools) -> Iterator[McpTool]:
    arguments = {"all": {"type": "boolean", "description": "include resolved incidents"}, "limit": _limit_argument()}
    description = "List incidents, newest first, with cause, place, reason and next step."
    yield McpTool("incidents", description, read_tools.incidents, arguments)
    description = "Show one incident: ranked causes, evidence, excluded causes, blast radius, timeline, repair plan."
    yield McpTool("incident", description, read_tools.incident, {"id": _text_argument(INCIDENT_ID)}, ("id",))
    description = "Diagnose a pasted log or output: kernel log, nvidia-smi, NCCL, training, kubectl, Slurm."
    yield McpTool(
        "doctor", description, read_tools.doctor, {"text": _text_argument("log or output, unchanged")}, ("text",)
    )
    description = "Return the runbook of a cause as Markdown: how to confirm, fix and prevent it."
    arguments = {"cause": _text_argument("cause id, for example gpu_fell_off_bus")}
    yield McpTool("runbook", description, read_tools.runbook, arguments, ("cause",))


def _workload_tools(read_tools: ReadTools) -> Iterator[McpTool]:
    filters = {
        "state": _text_argument("return only jobs in this state"),
        "team": _text_argument("return only jobs of this team"),
        "limit": _limit_argument(),
    }
    description = "List jobs, most severe problems first: efficiency, bottleneck, goodput, straggler."
    yield McpTool("jobs", description, read_tools.jobs, filters)
    description = "Show one job: GPU use, how to improve it, ranks, hardware events."
    yield McpTool(
        "job", description, read_tools.job, {"id": _text_argument("Slurm id, namespace/name, or name")}, ("id",)
    )
    window = {
        "by": _text_argument("group by team (default), user, job, node, model, …"),
        "since": _text_argument("length of the report, which ends now, for example 7d; default 1d"),
    }
    description = "Report GPU-hours: allocated, used, wasted, idle, lost, unknown."
    yield McpTool("usage", description, read_tools.usage, window)
    yield McpTool("cost", "Report cost by the hub's price book.", read_tools.cost, window)
    description = "Show free capacity now, and forecast when the fleet is full, with an interval and advice."
    arguments = {"horizon": _text_argument("how far ahead to forecast, for example 4w; default 7d")}
    yield McpTool("capacity", description, read_tools.capacity, arguments)


def _action_tools(actions: ActionTools) -> Iterator[McpTool]:
    id = {"id": _text_argument(INCIDENT_ID)}
    description = "Acknowledge an incident: confirm that a person works on it."
    yield McpTool("acknowledge", description, actions.acknowledge, id, ("id",), changes_fleet=True)
    arguments = {**id, "text": _text_argument("text of the note")}
    description = "Add a note to the timeline of an incident."
    yield McpTool("note", description, actions.note, arguments, ("id", "text"), changes_fleet=True)
    arguments = {**id, "digest": _text_argument("digest of the plan, from `repair` in the tool `incident`")}
    description = "Approve the repair plan of an incident, which changes machines. Use only if a person told you to."
    yield McpTool("approve", description, actions.approve, arguments, ("id", "digest"), changes_fleet=True)


class ReadTools:
    """The read-only tools; each method takes the arguments of its tool and returns text."""

    def __init__(self, hub: Client) -> None:
        self._hub = hub

    def fleet(self, _: dict[str, Any]) -> str:
        nodes, cards = self._hub.nodes(), self._hub.incidents()
        status = self._hub.status()
        return truncated_json(
            {
                "hub": _select_keys(status, "cluster", "version", "mode", "now", "simulated", "degraded"),
                "nodes_by_state": Counter(node.state for node in nodes),
                "gpus_seen": sum(node.gpus_seen for node in nodes),
                "gpus_expected": sum(node.gpus_expected or 0 for node in nodes),
                "standing": self._hub.free_capacity(),
                "open_incidents_by_severity": Counter(card.severity for card in cards),
                "open_incidents": [_summarise_incident(card) for card in cards],
                "nodes_in_trouble": [
                    {"name": node.name, "state": node.state, "why": node.why, "holders": node.holders}
                    for node in nodes
                    if node.state != "up"
                ],
            }
        )

    def node(self, arguments: dict[str, Any]) -> str:
        answer = self._hub.who(arguments["name"])
        if not answer.nodes:
            raise HubError(f"no node {arguments['name'][:60]}", remedy="Find names with fleet_overview or query")
        return truncated_json({"nodes": answer.plain["nodes"], "explained": self._explain("node", arguments["name"])})

    def _explain(self, kind: str, name: str) -> str:
        try:
            return self._hub.explain(kind, name).text
        except HubError as error:
            return f"unknown: {error}"

    def gpu(self, arguments: dict[str, Any]) -> str:
        gpus = self._hub.who(arguments["name"]).gpus
        if not gpus:
            raise HubError(f"no GPU {arguments['name'][:60]}", remedy="Give a UUID, or NODE/INDEX")
        uuids = "|".join(gpu.uuid for gpu in gpus[:8])
        readings = self._hub.query(f'{{__name__=~"DCGM_FI_DEV_.*",UUID=~"{uuids}"}}', limit=MAX_ROWS).series
        return truncated_json(
            {
                "gpus": [gpu.plain for gpu in gpus],
                "readings": {
                    f"{series.labels.get('__name__')} {series.labels.get('UUID')}": series.newest for series in readings
                },
            }
        )

    def query(self, arguments: dict[str, Any]) -> str:
        if "since" not in arguments:
            result = self._hub.query(arguments["expr"], limit=MAX_SERIES)
        else:
            result = self._query_range(arguments)
        series = [{"labels": dict(entry.labels), "points": entry.points[-MAX_POINTS:]} for entry in result.series]
        return truncated_json(
            {"series": series[:MAX_SERIES], "series_shown": min(len(series), MAX_SERIES), "warnings": result.warnings}
        )

    def _query_range(self, arguments: dict[str, Any]) -> promql.QueryResult:
        seconds, end = _parse_seconds(arguments["since"]), self._hub.status().now
        # The finest step that stays within the limit of points, unless a coarser one is requested.
        finest_step = max(1, round(seconds / MAX_POINTS))
        step = max(finest_step, round(_parse_seconds(arguments["step"]))) if "step" in arguments else finest_step
        return self._hub.query_range(
            arguments["expr"], start=end - timedelta(seconds=seconds), end=end, step=f"{step}s"
        )

    def incidents(self, arguments: dict[str, Any]) -> str:
        cards = self._hub.incidents(all=arguments.get("all", False))
        shown = cards[: max(0, arguments.get("limit", MAX_ROWS))]
        return truncated_json({"incidents": [_summarise_incident(card) for card in shown], "found": len(cards)})

    def incident(self, arguments: dict[str, Any]) -> str:
        answer = self._hub.incident(arguments["id"])
        repair = self._hub.repair(arguments["id"])
        cause = answer.incident.cause
        return truncated_json(
            {
                **answer.plain,
                "repair": repair.plain,
                "runbook": f"watchkeeper://runbooks/{runbooks.find_runbook(cause)}",
            }
        )

    def doctor(self, arguments: dict[str, Any]) -> str:
        from watchkeeper.doctor import examine, report
        from watchkeeper.readers import bundles

        text = arguments["text"]
        if len(text) > MAX_PASTED_CHARACTERS:
            raise HubError(f"the text has {len(text):,} characters, the limit is {MAX_PASTED_CHARACTERS:,}")
        answer = examine.examine(bundles.open_stream("pasted", io.BytesIO(text.encode())))
        return truncated_json(report.as_plain(answer))

    def runbook(self, arguments: dict[str, Any]) -> str:
        return runbooks.read_runbook(runbooks.find_runbook(arguments["cause"]))

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
        return truncated_json(
            {**answer, **{name: value for name, value in forecast.plain.items() if name not in ("ok", "history")}}
        )


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
    """All non-empty lists in a value, with their dotted paths."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _find_lists(item, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value:
        yield path, value
        for at, item in enumerate(value):
            yield from _find_lists(item, f"{path}[{at}]")


def _summarise_incident(card: answers.IncidentCard) -> dict[str, Any]:
    names = ("id", "title", "severity", "state", "cause", "place_name", "opened_at", "why", "next_step", "workloads")
    return {name: wire.to_plain(getattr(card, name)) for name in names}


def _select_keys(answer: reading.HubAnswer, *names: str) -> dict[str, Any]:
    return {name: answer.plain[name] for name in names}


def _text_argument(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _limit_argument() -> dict[str, Any]:
    return {"type": "integer", "description": "maximum number of rows", "minimum": 1, "maximum": MAX_ROWS}


def _parse_seconds(text: str) -> float:
    try:
        return durations.parse_seconds(text)
    except ValueError as error:
        raise HubError(f"`{text[:40]}` is not a duration: {error}", remedy="Write for example 1h or 7d") from error
