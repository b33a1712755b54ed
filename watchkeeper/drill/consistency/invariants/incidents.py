"""Incidents: one fault is one incident, which every list, page and command shows alike, at each of its places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.invariants.table import Contradiction, agree, invariant, require
from watchkeeper.drill.consistency.looks import Look

SHOWN = ("title", "severity", "state", "cause", "opened_at", "resolved_at", "assignee", "version")


@invariant
def open_incidents(look: Look) -> Iterator[Contradiction]:
    """The list and the open page have the same open incidents."""
    lists = {"/api/incidents": subjects.cards(look), "page: incidents": look.get("page: incidents", "open")}
    ids = {source: cards and sorted(card["id"] for card in cards) for source, cards in lists.items()}
    yield from agree("open incidents", ids)


@invariant
def incident_card(look: Look) -> Iterator[Contradiction]:
    """An incident has the same title, severity, state, cause and times on its card, its page, and in the command."""
    live = {card["id"]: card for card in look.rows("page: incidents", "open")}
    for card in subjects.cards(look):
        shown = {
            "/api/incidents": card,
            "page: incidents": live.get(card["id"]),
            "page": subjects.page(look, card).get("incident"),
            "command": look.get(f"watchkeeper incidents show {card['id']} --json", "incident"),
        }
        yield from agree(card["id"], {name: row and {key: row[key] for key in SHOWN} for name, row in shown.items()})


@invariant
def number_of_signals(look: Look) -> Iterator[Contradiction]:
    """The number of signals on a card is the number of signals on the page."""
    for card in subjects.cards(look):
        if "incident" in subjects.page(look, card):
            yield from agree(card["id"], {"card": card["signals"], "page": len(subjects.members(look, card))})


@invariant
def resolved_means_over(look: Look) -> Iterator[Contradiction]:
    """A resolved incident has no signal that lasts."""
    for card in subjects.all_cards(look):
        if card["state"] == "resolved" and card["part_of"] is None:
            lasting = [member["text"] for member in subjects.lasting(look, card)]
            yield from require(not lasting, card["id"], state="resolved", still_true=lasting)


@invariant
def firing_alerts_are_signals(look: Look) -> Iterator[Contradiction]:
    """Each firing alert is a signal of an open incident."""
    refs = {member["ref"] for card in subjects.cards(look) for member in subjects.lasting(look, card)}
    for alert in look.rows("/api/v1/alerts", "data", "alerts"):
        text = "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(alert["labels"].items())) + "}"
        is_notified = alert["state"] == "firing" and alert["labels"].get("severity") != "info"
        yield from require(not is_notified or text in refs, text, alert="firing", incident=None)


@invariant
def own_times(look: Look) -> Iterator[Contradiction]:
    """An incident has a time of its end if and only if it is resolved, and that is after it opened."""
    for card in subjects.all_cards(look):
        ended_at, is_resolved = card["resolved_at"], card["state"] == "resolved"
        is_right = (ended_at is not None) == is_resolved and (ended_at or card["opened_at"]) >= card["opened_at"]
        yield from require(is_right, card["id"], state=card["state"], opened=card["opened_at"], resolved=ended_at)


@invariant
def root_of_a_job(look: Look) -> Iterator[Contradiction]:
    """At most one open incident stops a job; the others name it as their root, and it is open."""
    cards = {card["id"]: card for card in subjects.cards(look)}
    roots: dict[str, list[str]] = {}
    for id, card in cards.items():
        root = card["root"]
        yield from require(root is None or root in cards, id, root=root, open=sorted(cards))
        for hit in subjects.blast(look, card).get("hits", ()) if root is None else ():
            roots.setdefault(hit["workload"] if hit["stopped"] else "", []).append(id)
    for workload, ids in roots.items():
        yield from require(not workload or len(ids) == 1, workload, stopped_by=ids)


@invariant
def fault_at_a_place(look: Look) -> Iterator[Contradiction]:
    """One known cause at one place is one open incident."""
    for (cause, place), count in Counter((card["cause"], card["place_name"]) for card in subjects.cards(look)).items():
        yield from require(count == 1 or cause == "unknown", place, cause=cause, incidents=count)


@invariant
def diagnosed_causes(look: Look) -> Iterator[Contradiction]:
    """The cause of a card is that of its best finding at its place."""
    for card in subjects.cards(look):
        findings = (subjects.page(look, card).get("diagnosis") or {}).get("findings") or []
        if findings and findings[0]["cause"] != "unknown" and findings[0]["place"] == card["place"]:
            yield from agree(card["id"], {"card": card["cause"], "diagnosis": findings[0]["cause"]})


@invariant
def credit_of_drills(look: Look) -> Iterator[Contradiction]:
    """A drill credits a fault of a GPU or node to an incident of that node."""
    nodes = {card["id"]: card["place"]["node"] for card in subjects.all_cards(look)}
    for drill in look.rows("/api/drills", "drills"):
        incident = (drill["verdict"] or {}).get("incident")
        if drill["scope"] in ("gpu", "node") and nodes.get(incident):
            yield from agree(f"drill {drill['id']}", {"fault": drill["node"], str(incident): nodes[incident]})


@invariant
def incident_on_the_gpu_page(look: Look) -> Iterator[Contradiction]:
    """The page of a GPU names the open incidents at this GPU."""
    for card in subjects.cards(look):
        for uuid in {card["place"]["gpu"], *card["gpus"]} - {None}:
            rows = look.get(f"/api/gpu/{uuid}", "incidents")
            ids = [row["id"] for row in rows or ()]
            yield from require(rows is None or card["id"] in ids, str(uuid), incident=card["id"], page=ids)


@invariant
def incident_on_the_node_list(look: Look) -> Iterator[Contradiction]:
    """The node list names an open incident at each node with a signal of its cause that lasts, and at its rack."""
    lines = {line["name"]: line for line in subjects.node_lines(look)}
    for card in subjects.cards(look):
        rack = (card["place"]["domain"] or "").removeprefix("rack=")
        own = {member["place"]["node"] for member in subjects.lasting(look, card) if member["cause"] == card["cause"]}
        own |= {card["place"]["node"], *(name for name, line in lines.items() if line["rack"] == rack)}
        for name in own & lines.keys():
            if card["place"]["cluster"] != lines[name]["cluster"]:
                continue
            ids = lines[name]["incidents"]
            yield from require(card["id"] in ids, name, incident=card["id"], node_list=ids)


@invariant
def node_list_names_open_incidents(look: Look) -> Iterator[Contradiction]:
    """The node list and the explanation of a node name the same incidents, and only open ones."""
    open_ids = {card["id"] for card in subjects.cards(look)}
    for line in subjects.node_lines(look):
        ids, explained = set(line["incidents"]), look.get(f"/api/explain/node/{line['name']}", "explained", default={})
        named = {row["name"] for row in explained.get("lines", ())} | {"" if explained else None}
        is_right = ids <= open_ids and (None in named or len(ids) > 5 or ids <= named)
        yield from require(is_right, line["name"], node_list=sorted(ids), explained=sorted(map(str, named)))


@invariant
def incident_on_the_job_page(look: Look) -> Iterator[Contradiction]:
    """A job names the open incidents at it, and no other incident than open ones."""
    cards = subjects.cards(look)
    for job in subjects.jobs(look):
        own = {card["id"] for card in cards if card["place"]["domain"] == f"job={job['name']}"}
        is_right = own <= set(job["incidents"]) <= {card["id"] for card in cards}
        yield from require(is_right, job["id"], at_the_job=sorted(own), job=job["incidents"])


@invariant
def events_in_the_history(look: Look) -> Iterator[Contradiction]:
    """The history of a node has the events of its open incidents."""
    for card in subjects.cards(look):
        name, history = card["place"]["node"], look.get(f"/api/history?node={card['place']['node']}", default={})
        if name is not None and len(history.get("events", ())) == history.get("total", -1):
            listed = {event["id"] for event in history["events"]}
            events = [member for member in subjects.members(look, card) if member["kind"] == "event"]
            missing = [
                event["ref"] for event in events if event["place"]["node"] == name and event["ref"] not in listed
            ]
            yield from require(not missing, name, incident=card["id"], not_in_history=missing)
