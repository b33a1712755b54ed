"""A contradiction for each invariant: where it is planted in a look of a real hub, and with which value.

Each row is the answer, the keys that lead to the value, and the value or a function of the one that is there. `{…}` in
names stand for the incident, job, node and GPU of the look. `before: ` is the look before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Key = str | int
Value = Any
Plant = tuple[str, tuple[Key, ...], Value]
BEFORE = "before: "
PAGE_MAP, CARDS, ALL_CARDS = "page: map", "/api/incidents", "/api/incidents?open=0&limit=1000"
JOBS, JOB, CAPACITY = "/api/jobs?limit=10000", "/api/jobs/{job}", "/api/capacity/now"
INCIDENT, REPAIRS, NODES = "/api/incidents/{incident}", "/api/repairs", "/api/nodes"
LATE, EARLY = "2030-01-01T00:00:00.000000Z", "2020-01-01T00:00:00.000000Z"
CARD, LINE = ("incidents", 0), ("jobs", 0)


def plus(amount: float) -> Callable[[Any], Any]:
    return lambda value: value + amount


def with_row(**fields: Any) -> Callable[[Any], Any]:
    """A list with a copy of its first row, some fields changed."""
    return lambda rows: [*rows, {**(rows[0] if rows else {}), **fields}]


PLANTS: dict[str, Plant | tuple[Plant, ...]] = {
    # Numbers
    "gpus-of-the-fleet": (CAPACITY, ("standing", "gpus"), plus(1)),
    "nodes-of-the-fleet": (PAGE_MAP, ("summary", "nodes"), plus(1)),
    "reporting-nodes": (PAGE_MAP, ("summary", "nodes_reporting"), plus(-1)),
    "states-of-the-map": (PAGE_MAP, ("summary", "ok"), plus(1)),
    "down-gpus": (PAGE_MAP, ("summary", "down"), plus(1)),
    "silent-gpus": (PAGE_MAP, ("summary", "silent"), plus(1)),
    "free-gpus": (PAGE_MAP, ("summary", "free"), plus(5)),
    "allocated-gpus": (PAGE_MAP, ("summary", "held"), plus(3)),
    "gpus-of-jobs": ("/api/jobs?limit=10000", ("gpus", "allocated"), plus(3)),
    "gpus-by-state": ("/api/status", ("gpus", "not_reporting"), plus(3)),
    "gpus-in-service": (CAPACITY, ("standing", "in_service_gpus"), plus(7)),
    "allocated-share": (PAGE_MAP, ("summary", "allocated_percent"), 12.5),
    "active-share": (PAGE_MAP, ("summary", "working_percent"), 3.0),
    "fleet-power": (PAGE_MAP, ("summary", "power_watts"), plus(20_000)),
    "number-of-jobs": ("/api/jobs?limit=1", ("total",), 1),
    "number-of-links": ("/api/fabric/map", ("counts", "links"), plus(1)),
    "links-that-are-down": ("/api/fabric/map", ("counts", "down"), plus(1)),
    "number-of-slos": ("/api/slos", ("slos",), []),
    "number-of-open-incidents": ("/api/digest", ("digest", "still_open"), plus(1)),
    "incidents-of-the-digest": ("/api/digest", ("digest", "incidents"), plus(1)),
    "firing-alerts": ("query: firing", (), plus(1)),
    "pending-alerts": ("query: pending", (), plus(1)),
    "targets-that-are-up": ("query: up", (), plus(1)),
    "number-of-repairs": ("watchkeeper act list --json", ("repairs",), []),
    "number-of-drills": ("/api/drills", ("score", "drills"), plus(1)),
    "parts-of-usage": ("/api/usage", ("total", "idle"), plus(9)),
    "gpu-hours": ("/api/usage?by=node", ("lines", 0, "total"), plus(9)),
    "allocated-gpu-hours": ("/api/usage", ("total", "spare"), plus(9)),
    "cost-of-the-fleet": ("/api/cost", ("lines", 0, "money"), plus(9)),
    "cost-of-waste": ("/api/cost", ("total", "wasted_money"), plus(9)),
    # Places
    "healthy-and-down": (PAGE_MAP, ("states", 0), 1),
    "nodes-that-are-off": (NODES, ("nodes", 0, "state"), "silent"),
    "truth-about-nodes": ("simulator", ("nodes", "{up}", "state"), "rebooting"),
    "missing-gpus": (NODES, ("nodes", 0, "gpus_expected"), 99),
    "gpus-of-a-node": ("/api/fleet", ("workloads",), {}),
    "dead-gpus-are-not-free": (CAPACITY, ("standing", "free_gpus"), 60),
    # Incidents
    "open-incidents": ("page: incidents", ("open",), []),
    "incident-card": ("watchkeeper incidents show {incident} --json", ("incident", "severity"), "info"),
    "number-of-signals": (CARDS, (*CARD, "signals"), plus(1)),
    "resolved-means-over": (ALL_CARDS, (*CARD, "state"), "resolved"),
    "firing-alerts-are-signals": (INCIDENT, ("incident", "members"), []),
    "own-times": (ALL_CARDS, (*CARD, "resolved_at"), EARLY),
    "root-of-a-job": (CARDS, (*CARD, "root"), "INC-99"),
    "fault-at-a-place": (CARDS, ("incidents",), with_row(id="INC-99")),
    "diagnosed-causes": (CARDS, (*CARD, "cause"), "node_down"),
    "credit-of-drills": ("/api/drills", ("drills", 0, "node"), "gpu-r09-09"),
    "incident-on-the-gpu-page": ("/api/gpu/{gpu}", ("incidents",), []),
    "incident-on-the-node-list": (NODES, ("nodes",), lambda rows: [{**row, "incidents": []} for row in rows]),
    "node-list-names-open-incidents": ("/api/explain/node/{node}", ("explained", "lines"), []),
    "incident-on-the-job-page": (JOBS, (*LINE, "incidents"), ["INC-99"]),
    "events-in-the-history": (
        ("/api/history?node={node}", ("events",), []),
        ("/api/history?node={node}", ("total",), 0),
    ),
    # Jobs
    "job-line": (JOB, ("job", "gpus"), plus(1)),
    "goodput-of-a-job": ((JOBS, (*LINE, "goodput"), 0.1), (JOB, ("goodput", "share"), 0.99)),
    "wall-time-of-a-job": (JOB, ("goodput", "wall_seconds"), plus(1000)),
    "longest-pause": (JOB, ("goodput", "longest_pause_seconds"), 0.5),
    "shares-of-a-job": (JOBS, (*LINE, "used"), 1.7),
    "jobs-on-dead-nodes": (NODES, ("nodes", 0, "state"), "silent"),
    "stopped-jobs-have-incidents": (JOBS, (*LINE, "incidents"), []),
    "impact-on-a-job": (JOBS, (*LINE, "state"), "running"),
    "verdict-of-a-job": ("{explained job}", ("explained", "headline"), "job is healthy"),
    "hardware-of-a-stopped-job": (JOB, ("hardware",), []),
    # Money
    "cost-of-open-incidents": (INCIDENT, ("blast", "hits"), [{"workload": "x", "team": "t", "gpus": 0}]),
    "price-of-an-incident": (INCIDENT, ("blast", "dollars_per_hour"), 9999.0),
    "price-of-a-job": (JOBS, (*LINE, "cost", "amount"), 9999.0),
    "possible-gpu-hours": ("/api/usage", ("total", "lost"), -1.0),
    # Repairs
    "repaired-to-the-end": (ALL_CARDS, ("incidents",), lambda rows: [{**row, "state": "resolved"} for row in rows]),
    "repair-of-the-incident-page": (REPAIRS, ("repairs", 0, "incidents"), ["INC-99"]),
    "cordons-of-repairs": ("simulator", ("nodes", "{up}", "cordoned_by"), "watchkeeper:INC-99/1-cordon"),
    "cordon-marks": (CAPACITY, ("standing", "out_of_service"), []),
    "rebooted-for-real": (
        (REPAIRS, ("repairs", 0, "actions", 0, "kind"), "reboot"),
        (REPAIRS, ("repairs", 0, "id"), "INC-99.1"),
        ("simulator", ("nodes", "{node}", "state"), "rebooting"),
    ),
    "repair-approval": (REPAIRS, ("repairs", 0, "approved_by"), None),
    "repair-audit": ("/api/repairs/log", ("entries",), []),
    # Moments
    "future-times": ("/api/jobs", (*LINE, "stalled_since"), LATE),
    "every-answer": ("/api/slos", (), {"ok": False, "status": 500, "error": "internal error"}),
    "working-hub": ("/metrics", ("watchkeeper_hub_loop_failures_total", 'loop="rules"}'), 1.0),
    "flapping-alerts": ("query: flaps", ("data", "result"), [{"metric": {"alertname": "X"}, "value": [0, "4"]}]),
    "early-forecasts": ("/api/capacity/advice", ("sentence",), "Add 2,520 GPUs"),
    "same-incident": (ALL_CARDS, ("incidents",), []),
    "returns-under-its-id": (
        (BEFORE + ALL_CARDS, (*CARD, "state"), "resolved"),
        (BEFORE + ALL_CARDS, (*CARD, "id"), "INC-0"),
        (BEFORE + "/api/incidents/INC-0", ("incident",), {"members": [{"kind": "alert", "ref": "r"}]}),
        (INCIDENT, ("incident", "members"), [{"kind": "alert", "ref": "r"}]),
    ),
    "growing-counters": ("/metrics", ("watchkeeper_hub_events_total", 'kind="xid"}'), 0.0),
    "growing-totals": ("/api/cost", ("money",), -1.0),
}
