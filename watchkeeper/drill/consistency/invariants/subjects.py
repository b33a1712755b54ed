"""Read the objects of a Look that several invariants compare: incidents, jobs, nodes, GPUs and repairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from watchkeeper.drill.consistency.looks import Look
from watchkeeper.web.fleet.frames import GpuMapState

Plain = dict[str, Any]
ALL_INCIDENTS = "/api/incidents?open=0&limit=1000"


def _fields(answer: Plain | None) -> Plain:
    return answer or {}


def cards(look: Look) -> list[Plain]:
    """The cards of open incidents."""
    return look.rows("/api/incidents", "incidents")


def all_cards(look: Look) -> list[Plain]:
    return look.rows(ALL_INCIDENTS, "incidents")


def page(look: Look, card: Plain) -> Plain:
    """The page of an incident."""
    return _fields(look.get(f"/api/incidents/{card['id']}"))


def members(look: Look, card: Plain) -> list[Plain]:
    return look.rows(f"/api/incidents/{card['id']}", "incident", "members")


def lasting(look: Look, card: Plain) -> list[Plain]:
    """The signals of an incident that are still true."""
    return [member for member in members(look, card) if member.get("until") is None]


def blast(look: Look, card: Plain) -> Plain:
    return _fields(page(look, card).get("blast"))


def jobs(look: Look) -> list[Plain]:
    return look.rows("/api/jobs?limit=10000", "jobs")


def job_pages(look: Look) -> Iterator[tuple[Plain, Plain]]:
    """Each job of the list that has a page, with its page."""
    for job in jobs(look):
        report = _fields(look.get(f"/api/jobs/{quote(job['id'], safe='')}"))
        if "job" in report:
            yield job, report


def explained_job(look: Look, job: Plain) -> Plain:
    path = "/".join(quote(part, safe="") for part in job["id"].rsplit("/", 1))
    return _fields(look.get(f"/api/explain/job/{path}", "explained"))


def node_lines(look: Look) -> list[Plain]:
    return look.rows("/api/nodes", "nodes")


def simulated(look: Look) -> dict[str, Plain]:
    """What is true of each node in the simulated fleet."""
    return _fields(look.get("simulator", "nodes"))


def repairs(look: Look) -> list[Plain]:
    """Repairs that wait, run, or keep a node cordoned."""
    return look.rows("/api/repairs", "repairs")


def topology_nodes(look: Look) -> list[Plain]:
    racks = look.rows("/api/topology", "racks")
    return [node for rack in racks for leaf in rack["leaves"] for node in leaf["nodes"]]


def slots(look: Look) -> list[Plain]:
    """The GPUs of /api/fleet in the order of the map, each with its node."""
    return [{**(gpu or {}), "node": node["name"]} for node in look.rows("/api/fleet", "nodes") for gpu in node["gpus"]]


def map_states(look: Look) -> dict[str, str]:
    """State on the map by UUID; empty while the frame is of another inventory."""
    is_current = look.get("page: map", "version") == look.get("/api/fleet", "version")
    named = zip(slots(look), look.rows("page: map", "states"), strict=False) if is_current else ()
    return {slot["uuid"]: GpuMapState(state).name.lower() for slot, state in named if slot.get("uuid")}


def prices(look: Look) -> tuple[float, float] | None:
    """The lowest and highest price of a GPU-hour in the price book for this fleet."""
    rates = [rate["per_gpu_hour"] for rate in look.rows("/api/cost", "rates")]
    return (min(rates), max(rates)) if rates else None
