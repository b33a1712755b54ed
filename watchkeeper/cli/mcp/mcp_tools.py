"""What an assistant may ask about a fleet: each tool is one question to the hub, answered as JSON of bounded size.

`cli.mcp.mcp` puts the tools into a `mcp_protocol.Server`. An answer that is too long loses rows from its longest
lists, and `left_out` says how many, so that the assistant can ask for less instead of guessing.
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

# About 12,000 words: a good part of what a model reads at once, and not all of it.
MOST_CHARACTERS = 60_000
MOST_SERIES, MOST_POINTS = 100, 200
MOST_ROWS = 500
PASTED_CHARACTERS = 4_000_000
TEXT: dict[str, Any] = {"type": "string"}


def tools(hub: Client, *, may_act: bool) -> list[McpTool]:
    asked = ReadTools(hub)
    found = [*_about_fleet(asked), *_about_trouble(asked), *_about_use(asked)]
    return [*found, *_actions(ActionTools(hub))] if may_act else found


def resources() -> list[McpResource]:
    return [
        McpResource(f"watchkeeper://runbooks/{name}", name, title, partial(runbooks.text, name))
        for name, title in runbooks.titles().items()
    ]


def _about_fleet(asked: ReadTools) -> Iterator[McpTool]:
    yield McpTool(
        "fleet_overview", "The fleet in numbers: nodes by state, GPUs, open incidents, free room.", asked.fleet
    )
    words = "One node: its state, what its scheduler says, its GPUs with their holders, and why it is as it is."
    yield McpTool("node", words, asked.node, {"name": _text("the node's name")}, ("name",))
    words = "One GPU by UUID or as node/3: where it is, who holds it, its incidents and its newest readings."
    yield McpTool("gpu", words, asked.gpu, {"name": _text("a UUID, or node/index")}, ("name",))
    words = "PromQL over the hub's samples, now or over a range; at most 100 series of 200 points."
    arguments = {
        "expr": _text("a PromQL expression"),
        "since": _text("for a range: how far back, such as 1h; without it the answer is for now"),
        "step": _text("for a range: the distance of points, such as 5m"),
    }
    yield McpTool("query", words, asked.query, arguments, ("expr",))


def _about_trouble(asked: ReadTools) -> Iterator[McpTool]:
    arguments = {"all": {"type": "boolean", "description": "resolved ones too"}, "limit": _number("how many")}
    words = "Incidents, newest first, with cause, place, why and the next step."
    yield McpTool("incidents", words, asked.incidents, arguments)
    words = "One incident in full: ranked causes with evidence, what was ruled out, blast radius, timeline, plan."
    yield McpTool("incident", words, asked.incident, {"id": _text("such as INC-1")}, ("id",))
    words = "What is wrong in a pasted log or command output: kernel log, nvidia-smi, NCCL, training, kubectl, Slurm."
    yield McpTool("doctor", words, asked.doctor, {"text": _text("the log or output as it is")}, ("text",))
    words = "How to confirm, fix and prevent a cause, as Markdown."
    yield McpTool("runbook", words, asked.runbook, {"cause": _text("a cause such as gpu_fell_off_bus")}, ("cause",))


def _about_use(asked: ReadTools) -> Iterator[McpTool]:
    chosen = {
        "state": _text("only jobs in this state"),
        "team": _text("only of this team"),
        "limit": _number("how many"),
    }
    yield McpTool("jobs", "Jobs, the gravest first: efficiency, bound by, goodput, straggler.", asked.jobs, chosen)
    words = "One job in full: used against held, what would help, ranks side by side, hardware events."
    yield McpTool("job", words, asked.job, {"id": _text("a Slurm id, namespace/name, or a name")}, ("id",))
    window = {
        "by": _text("dimensions such as team, user, job, node or model; team unless given"),
        "since": _text("how far back, such as 7d; 1d unless given"),
    }
    yield McpTool("usage", "GPU-hours: held, used, wasted, idle, lost, unknown.", asked.usage, window)
    yield McpTool("cost", "What it cost, by the hub's price book.", asked.cost, window)
    words = "Room now, and when the fleet is full: a forecast with its interval, and advice."
    yield McpTool("capacity", words, asked.capacity, {"horizon": _text("how far to look, such as 4w; 7d unless given")})


def _actions(acts: ActionTools) -> Iterator[McpTool]:
    id = {"id": _text("such as INC-1")}
    yield McpTool("acknowledge", "Say that somebody works on an incident.", acts.acknowledge, id, ("id",), changes=True)
    arguments = {**id, "text": _text("the note")}
    words = "Write a note into the timeline of an incident."
    yield McpTool("note", words, acts.note, arguments, ("id", "text"), changes=True)
    arguments = {**id, "digest": _text("the digest of the plan, as the tool `incident` shows it under repair")}
    words = "Approve the plan of an incident, so that machines are touched. Only when a person has said so."
    yield McpTool("approve", words, acts.approve, arguments, ("id", "digest"), changes=True)


class ReadTools:
    """Each method takes the arguments of its tool and answers with text."""

    def __init__(self, hub: Client) -> None:
        self._hub = hub

    def fleet(self, _: dict[str, Any]) -> str:
        nodes, cards = self._hub.nodes(), self._hub.incidents()
        status = self._hub.status()
        return bounded(
            {
                "hub": _part(status, "cluster", "version", "mode", "now", "simulated", "degraded"),
                "nodes_by_state": Counter(node.state for node in nodes),
                "gpus_seen": sum(node.gpus_seen for node in nodes),
                "gpus_expected": sum(node.gpus_expected or 0 for node in nodes),
                "standing": self._hub.free_capacity(),
                "open_incidents_by_severity": Counter(card.severity for card in cards),
                "open_incidents": [_brief(card) for card in cards],
                "nodes_in_trouble": [
                    {"name": node.name, "state": node.state, "why": node.why, "holders": node.holders}
                    for node in nodes
                    if node.state != "up"
                ],
            }
        )

    def node(self, given: dict[str, Any]) -> str:
        found = self._hub.who(given["name"])
        if not found.nodes:
            raise HubError(f"no node is called {given['name'][:60]}", remedy="fleet_overview and query name nodes")
        return bounded({"nodes": found.plain["nodes"], "explained": self._explained("node", given["name"])})

    def _explained(self, kind: str, name: str) -> str:
        try:
            return self._hub.explain(kind, name).text
        except HubError as error:
            return f"unknown: {error}"

    def gpu(self, given: dict[str, Any]) -> str:
        found = self._hub.who(given["name"]).gpus
        if not found:
            raise HubError(f"no GPU is called {given['name'][:60]}", remedy="Write a UUID, or node/index")
        uuids = "|".join(gpu.uuid for gpu in found[:8])
        readings = self._hub.query(f'{{__name__=~"DCGM_FI_DEV_.*",UUID=~"{uuids}"}}', limit=MOST_ROWS).series
        return bounded(
            {
                "gpus": [gpu.plain for gpu in found],
                "readings": {f"{one.labels.get('__name__')} {one.labels.get('UUID')}": one.newest for one in readings},
            }
        )

    def query(self, given: dict[str, Any]) -> str:
        if "since" not in given:
            found = self._hub.query(given["expr"], limit=MOST_SERIES)
        else:
            found = self._range(given)
        series = [{"labels": dict(one.labels), "points": one.points[-MOST_POINTS:]} for one in found.series]
        return bounded(
            {"series": series[:MOST_SERIES], "series_shown": min(len(series), MOST_SERIES), "warnings": found.warnings}
        )

    def _range(self, given: dict[str, Any]) -> promql.QueryResult:
        seconds, end = _seconds(given["since"]), self._hub.status().now
        # As many points as may be shown, unless a coarser step was asked for.
        finest = max(1, round(seconds / MOST_POINTS))
        step = max(finest, round(_seconds(given["step"]))) if "step" in given else finest
        return self._hub.query_range(given["expr"], start=end - timedelta(seconds=seconds), end=end, step=f"{step}s")

    def incidents(self, given: dict[str, Any]) -> str:
        cards = self._hub.incidents(all=given.get("all", False))
        shown = cards[: max(0, given.get("limit", MOST_ROWS))]
        return bounded({"incidents": [_brief(card) for card in shown], "found": len(cards)})

    def incident(self, given: dict[str, Any]) -> str:
        found = self._hub.incident(given["id"])
        repair = self._hub.repair(given["id"])
        cause = found.incident.cause
        return bounded(
            {**found.plain, "repair": repair.plain, "runbook": f"watchkeeper://runbooks/{runbooks.of_cause(cause)}"}
        )

    def doctor(self, given: dict[str, Any]) -> str:
        from watchkeeper.doctor import examine, report
        from watchkeeper.readers import bundles

        text = given["text"]
        if len(text) > PASTED_CHARACTERS:
            raise HubError(f"the text has {len(text):,} characters, the limit is {PASTED_CHARACTERS:,}")
        answer = examine.examine(bundles.open_stream("pasted", io.BytesIO(text.encode())))
        return bounded(report.as_plain(answer))

    def runbook(self, given: dict[str, Any]) -> str:
        return runbooks.text(runbooks.of_cause(given["cause"]))

    def jobs(self, given: dict[str, Any]) -> str:
        return bounded(_part(self._hub.jobs(**{"limit": 50, **given}), "jobs", "total", "problems"))

    def job(self, given: dict[str, Any]) -> str:
        return bounded(self._hub.job(given["id"]))

    def usage(self, given: dict[str, Any]) -> str:
        found = self._hub.usage(**self._window(given))
        return bounded(_part(found, "since", "until", "by", "lines", "total", "notes"))

    def cost(self, given: dict[str, Any]) -> str:
        found = self._hub.cost(**self._window(given))
        return bounded(_part(found, "since", "until", "by", "currency", "lines", "money", "notes"))

    def _window(self, given: dict[str, Any]) -> dict[str, Any]:
        now = self._hub.status().now
        since = now - timedelta(seconds=_seconds(given.get("since", "1d")))
        return {"by": given.get("by", "team"), "since": wire.format_time(since)}

    def capacity(self, given: dict[str, Any]) -> str:
        said: dict[str, Any] = {"standing": self._hub.free_capacity()}
        try:
            made = self._hub.forecast(horizon=given.get("horizon", "7d"))
        except HubError as error:
            # A young hub knows its room and has nothing to forecast from.
            return bounded({**said, "forecast": None, "why_not": str(error)})
        return bounded({**said, **{name: value for name, value in made.plain.items() if name not in ("ok", "history")}})


class ActionTools:
    """What changes something; the hub's token says whether it may."""

    def __init__(self, hub: Client) -> None:
        self._hub = hub

    def acknowledge(self, given: dict[str, Any]) -> str:
        return f"{given['id']} is {self._hub.acknowledge(given['id']).incident.state}."

    def note(self, given: dict[str, Any]) -> str:
        self._hub.note(given["id"], text=given["text"])
        return f"Noted at {given['id']}."

    def approve(self, given: dict[str, Any]) -> str:
        repair = self._hub.approve(given["id"], digest=given["digest"])
        return f"{given['id']}: the plan is approved by {repair.approved_by}; it is {repair.state}: {repair.said}"


def bounded(value: Any, most: int = MOST_CHARACTERS) -> str:
    """JSON of at most so many characters; the longest lists are cut, and `left_out` says by how many rows."""
    plain: dict[str, Any] = json.loads(json.dumps(wire.to_plain(value)))
    left_out: dict[str, int] = {}
    while len(text := json.dumps(plain, ensure_ascii=False)) > most:
        path, longest = max(_lists(plain), key=lambda found: len(json.dumps(found[1])), default=("", []))
        if not longest:
            return json.dumps({"problem": f"the answer has {len(text):,} characters, the limit is {most:,}"})
        kept = len(longest) // 2
        left_out[path] = left_out.get(path, 0) + len(longest) - kept
        del longest[kept:]
        plain["left_out"] = left_out
    return text


def _lists(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Every list with rows, by its dotted path."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _lists(item, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value:
        yield path, value
        for at, item in enumerate(value):
            yield from _lists(item, f"{path}[{at}]")


def _brief(card: answers.IncidentCard) -> dict[str, Any]:
    names = ("id", "title", "severity", "state", "cause", "place_name", "opened_at", "why", "next_step", "workloads")
    return {name: wire.to_plain(getattr(card, name)) for name in names}


def _part(answer: reading.HubAnswer, *names: str) -> dict[str, Any]:
    return {name: answer.plain[name] for name in names}


def _text(words: str) -> dict[str, Any]:
    return {**TEXT, "description": words}


def _number(words: str) -> dict[str, Any]:
    return {"type": "integer", "description": words, "minimum": 1, "maximum": MOST_ROWS}


def _seconds(text: str) -> float:
    try:
        return durations.parse_seconds(text)
    except ValueError as error:
        raise HubError(f"`{text[:40]}` is no length of time: {error}", remedy="Write it like 1h or 7d") from error
