"""Places: nothing is healthy and down, and what is dead or cordoned is not free."""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.invariants.table import Contradiction, invariant, require
from watchkeeper.drill.consistency.looks import Look

OFF = ("silent", "never_seen", "gone")


@invariant
def healthy_and_down(look: Look) -> Iterator[Contradiction]:
    """A GPU that is down or silent on the map, or has a critical incident, is not healthy in the topology."""
    drawn = subjects.map_states(look)
    critical = {card["place"]["gpu"] for card in subjects.cards(look) if card["severity"] == "critical"}
    for node in subjects.topology_nodes(look):
        for gpu in node["gpus"]:
            state, is_critical = drawn.get(gpu["uuid"]), gpu["uuid"] is not None and gpu["uuid"] in critical
            is_bad = state in ("down", "silent") or is_critical
            is_right = not (is_bad and gpu["state"] == "healthy") and not (is_critical and state == "ok")
            yield from require(is_right, str(gpu["uuid"]), map=state, topology=gpu["state"], critical=is_critical)


@invariant
def nodes_that_are_off(look: Look) -> Iterator[Contradiction]:
    """A node that is silent on the node list has no healthy GPU in the topology."""
    states = {line["name"]: line["state"] for line in subjects.node_lines(look)}
    for node in subjects.topology_nodes(look):
        healthy = sum(gpu["state"] == "healthy" for gpu in node["gpus"]) + (node["state"] == "healthy")
        state = states.get(node["name"])
        yield from require(state not in OFF or not healthy, node["name"], node_list=state, topology=node["state"])


@invariant
def truth_about_nodes(look: Look) -> Iterator[Contradiction]:
    """A node that is off in the simulated fleet is not up on the node list."""
    truth = subjects.simulated(look)
    for line in subjects.node_lines(look):
        is_off = truth.get(line["name"], {}).get("state") == "rebooting"
        yield from require(not (is_off and line["state"] == "up"), line["name"], node_list="up", truth="rebooting")


@invariant
def missing_gpus(look: Look) -> Iterator[Contradiction]:
    """A node is up only if as many GPUs report as the inventory expects."""
    for line in subjects.node_lines(look):
        reporting, expected = line["gpus_seen"], line["gpus_expected"]
        is_right = line["state"] != "up" or expected is None or reporting >= expected
        yield from require(is_right, line["name"], state="up", reporting=reporting, expected=expected)


@invariant
def gpus_of_a_node(look: Look) -> Iterator[Contradiction]:
    """The node list and the page of a node have the same GPUs that report, and the fleet the same holders."""
    workloads = look.get("/api/fleet", "workloads") or {}
    for line in subjects.node_lines(look):
        for page in look.rows(f"/api/who?name={line['name']}", "nodes"):
            present = sum(gpu["state"] not in (None, "down", "not_reporting") for gpu in page["gpus"])
            yield from require(present == line["gpus_seen"], line["name"], page=present, node_list=line["gpus_seen"])
            for gpu in page["gpus"]:
                holder, held = workloads.get(gpu["uuid"]), bool(gpu["holders"])
                yield from require(held == (holder is not None), str(gpu["uuid"]), fleet=holder, node_page=held)


@invariant
def dead_gpus_are_not_free(look: Look) -> Iterator[Contradiction]:
    """Free GPUs are at most those without a workload on nodes that are on and schedulable."""
    truth = subjects.simulated(look)
    usable = {name for name, node in truth.items() if node["schedulable"] and node["state"] == "ready"}
    usable &= {line["name"] for line in subjects.node_lines(look) if line["state"] not in OFF}
    limit = sum(not slot.get("workload") and slot["node"] in usable for slot in subjects.slots(look))
    for name, keys in (("page: map", ("summary", "free")), ("/api/capacity/now", ("standing", "free_gpus"))):
        free = look.get(name, *keys, default=0)
        yield from require(not truth or free <= limit, name, free=free, usable_without_workload=limit)
