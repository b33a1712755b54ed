"""Repairs: a repair is a state that its incident, its node and every list show until the node is back."""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.invariants.table import Contradiction, agree, invariant, require
from watchkeeper.drill.consistency.looks import Look

SHOWN = ("id", "state", "step", "has_cordon", "approved_by")
OURS = "watchkeeper:"


@invariant
def repaired_to_the_end(look: Look) -> Iterator[Contradiction]:
    """A resolved incident has no repair that runs or keeps its node cordoned."""
    states = {card["id"]: card["state"] for card in subjects.all_cards(look)}
    for repair in subjects.repairs(look):
        own = {id: states.get(id) for id in repair["incidents"]}
        is_right = not (repair["is_running"] or repair["has_cordon"]) or set(own.values()) != {"resolved"}
        yield from require(is_right, repair["id"], repair=repair["state"], incidents=own)


@invariant
def repair_of_the_incident_page(look: Look) -> Iterator[Contradiction]:
    """The incidents of a repair exist, and their pages show the repair of the list."""
    ids = {card["id"] for card in subjects.all_cards(look)}
    for repair in subjects.repairs(look):
        yield from require(set(repair["incidents"]) <= ids, repair["id"], incidents=repair["incidents"])
        page = look.get(f"/api/incidents/{repair['incident']}/repair", "repair", default={})
        if page.get("id") == repair["id"]:
            shown = {"list": repair, "page": page}
            yield from agree(repair["id"], {name: {key: row[key] for key in SHOWN} for name, row in shown.items()})


@invariant
def cordons_of_repairs(look: Look) -> Iterator[Contradiction]:
    """A cordon of ours on a node belongs to a repair, and a repair with a cordon has one on its node."""
    owners = {repair["node"]["node"]: repair["id"] for repair in subjects.repairs(look) if repair["has_cordon"]}
    for name, node in subjects.simulated(look).items():
        mark = node["cordoned_by"] or ""
        # A repair of a rack cordons each of its nodes.
        is_right = (not mark.startswith(OURS) or name in owners or None in owners) and (mark or name not in owners)
        yield from require(is_right, name, cordoned_by=mark, repair=owners.get(name))


@invariant
def cordon_marks(look: Look) -> Iterator[Contradiction]:
    """A node that a repair keeps cordoned says so on the node list, and is out of service in capacity."""
    out = {row[0] for row in look.rows("/api/capacity/now", "standing", "out_of_service")}
    lines = {line["name"]: line for line in subjects.node_lines(look)}
    for repair in subjects.repairs(look):
        name = repair["node"]["node"]
        if repair["has_cordon"] and name in lines:
            text = str({key: value for key, value in lines[name].items() if key != "incidents"})
            is_marked = repair["incident"] in text or "cordon" in text
            yield from require(is_marked and name in out, name, marked=is_marked, out_of_service=sorted(out))


@invariant
def rebooted_for_real(look: Look) -> Iterator[Contradiction]:
    """A repair whose reboot is done has a node that is on again."""
    for repair in subjects.repairs(look):
        kinds = [action["kind"] for action in repair["actions"][: repair["step"]]]
        state = subjects.simulated(look).get(repair["node"]["node"], {}).get("state")
        is_right = not (repair["is_running"] and "reboot" in kinds and state == "rebooting")
        yield from require(is_right, repair["id"], step="reboot is done", node=state)


@invariant
def repair_approval(look: Look) -> Iterator[Contradiction]:
    """In mode ask, a repair that runs was approved by a person, and its incident is assigned."""
    assignees = {card["id"]: card["assignee"] for card in subjects.all_cards(look)}
    for repair in subjects.repairs(look):
        person, assignee = repair["approved_by"], assignees.get(repair["incident"])
        is_right = repair["mode"] != "ask" or not repair["is_running"] or (person and assignee)
        yield from require(is_right, repair["id"], approved_by=person, assignee=assignee)


@invariant
def repair_audit(look: Look) -> Iterator[Contradiction]:
    """Each repair is in the audit log of repairs."""
    logged = {entry["body"].get("repair") for entry in look.rows("/api/repairs/log", "entries")}
    for repair in subjects.repairs(look):
        is_right = repair["id"] in logged or len(look.rows("/api/repairs/log", "entries")) >= 1000
        yield from require(is_right, repair["id"], audit_log=None)
