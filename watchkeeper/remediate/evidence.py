"""What a hub knows about one incident or one node, gathered for whoever repairs or replaces the machine.

`gather` asks the journal and the samples and gives pieces for `kit.evidence_file`. What is not known is said with its
reason. `web.incidents.bundle_api` hands the file to a person; `hand_over` leaves one when a repair has failed too
often.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, evidence_file, own_metrics, redaction
from watchkeeper.kit.evidence_file import BundleFile, json_file
from watchkeeper.model import actions, diagnosis, events, fleet, incidents, notices, orders, repairs
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.query import engine as engines
from watchkeeper.store.journal import chain

# Xids of weeks ago tell a weak GPU from an unlucky one.
HISTORY = timedelta(days=30)
BEFORE = timedelta(minutes=5)
MOST_ORDERS = 1000
MOST_EVENTS = 1000
# The counters that a vendor asks for: memory, remapped rows, links, bus, and why clocks were lowered.
COUNTERS = (
    "DCGM_FI_DEV_(ECC_.*|RETIRED_.*|.*ROW_REMAP.*|.*REMAPPED_ROWS|BANKS_REMAP.*|XID_ERRORS|PCIE_REPLAY_COUNTER"
    "|NVLINK_.*|GPU_TEMP|MEMORY_TEMP|POWER_USAGE|ENFORCED_POWER_LIMIT|CLOCKS_EVENT_REASONS|.*_VIOLATION)"
    "|DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION|watchkeeper_gpu_(nvlink_.*|recovery_action|sram_.*|unrepairable.*)"
)
IDENTITY = "DCGM_FI_DEV_GPU_TEMP"
# Labels of a counter that tell it from its neighbours.
TOLD = ("UUID", "err_code", "reason", "link", "kind")


class EvidenceJournal(Protocol):
    """What the evidence needs of a journal."""

    def incident(self, id: str) -> incidents.Incident | None: ...

    def incidents(self, *, open_only: bool = False, limit: int = 1000) -> list[incidents.Incident]: ...

    def diagnosis(self, incident_id: str) -> diagnosis.Diagnosis | None: ...

    def plan(self, incident_id: str) -> actions.Plan | None: ...

    def timeline(self, incident_id: str, limit: int = 1000) -> list[chain.JournalEntry]: ...

    def notices_of(self, incident_id: str) -> list[notices.Notice]: ...

    def repairs_at(self, node: fleet.Place, *, limit: int = 20) -> list[repairs.Repair]: ...

    def latest_orders(self, *, limit: int = 100) -> list[orders.TrackedOrder]: ...

    def events_at(
        self, place: fleet.Place, *, since: datetime, until: datetime, limit: int = 1000
    ) -> list[events.Event]: ...


class EvidenceInventory(Protocol):
    def node(self, name: str, cluster: str | None = None) -> fleet.Node | None: ...

    def nodes(self) -> list[fleet.Node]: ...


@dataclass(frozen=True, slots=True)
class EvidenceSources:
    records: EvidenceJournal
    engine: engines.Engine
    inventory: EvidenceInventory
    version: str

    def bundle_incident(self, id: str, *, now: datetime, hides_names: bool = False) -> bytes | None:
        """The bundle of an incident; None if there is none of this id."""
        incident = self.records.incident(id)
        if incident is None:
            return None
        pieces = list(self._incident(incident, now))
        return self._packed(pieces, incident.place, id, now=now, hides_names=hides_names)

    def bundle_node(
        self, name: str, *, cluster: str | None = None, now: datetime, hides_names: bool = False
    ) -> bytes | None:
        """The bundle of a node with all its incidents that are known; None if nobody knows the node."""
        node = self.inventory.node(name, cluster)
        if node is None:
            return None
        here = [one for one in self.records.incidents(limit=MOST_EVENTS) if one.place.whole_node == node.place]
        told = [piece for one in here[:20] for piece in self._story(one, f"incidents/{one.id}/")]
        pieces = [*told, *self._node(node.place, since=now - HISTORY, now=now)]
        return self._packed(pieces, node.place, name, now=now, hides_names=hides_names)

    def _packed(
        self, pieces: Sequence[BundleFile], place: fleet.Place, subject: str, *, now: datetime, hides_names: bool
    ) -> bytes:
        about = {"bundle": "watchkeeper evidence", "subject": subject, "place": str(place), "version": self.version}
        hidden = evidence_file.Redaction(self._names(pieces) if hides_names else {})
        return evidence_file.pack(pieces, about, now=now, redaction_rules=hidden)

    def _names(self, pieces: Iterable[BundleFile]) -> dict[str, str]:
        """Nodes that occur, and everybody who is named as a user or an actor."""
        text = "\n".join(piece.content.decode("utf-8", "replace") for piece in pieces if piece.content is not None)
        nodes = [node.name for node in self.inventory.nodes() if node.name in text]
        users = set(re.findall(r'"(?:user|actor|assignee|approved_by|by)": "([^"\s]+)"', text))
        users |= set(re.findall(r"pid \d+ \S+ of ([\w.-]+)", text))
        users -= {*nodes, "hub", "policy", "repair", "validation", "root"}
        return {**redaction.pseudonyms(users, "person"), **redaction.pseudonyms(nodes, "node")}

    def _incident(self, incident: incidents.Incident, now: datetime) -> Iterator[BundleFile]:
        yield from self._story(incident, "")
        node = incident.place.whole_node
        if node.node is None:
            yield BundleFile("node/", missing_reason="the incident is about no single node")
            return
        yield from self._node(node, since=incident.opened_at, now=now)

    def _story(self, incident: incidents.Incident, folder: str) -> Iterator[BundleFile]:
        yield json_file(f"{folder}incident.json", incident)
        for name, found in (
            ("diagnosis.json", self.records.diagnosis(incident.id)),
            ("plan.json", self.records.plan(incident.id)),
        ):
            is_there = found is not None
            yield (
                json_file(folder + name, found)
                if is_there
                else BundleFile(folder + name, missing_reason="none was made")
            )
        yield json_file(f"{folder}timeline.json", self.records.timeline(incident.id))
        yield json_file(f"{folder}notices.json", self.records.notices_of(incident.id))

    def _node(self, node: fleet.Place, *, since: datetime, now: datetime) -> Iterator[BundleFile]:
        known = self.inventory.node(node.node or "", node.cluster)
        yield (
            json_file("node.json", known)
            if known is not None
            else BundleFile("node.json", missing_reason="the fleet has no such node")
        )
        yield _tried("gpus.json", lambda: self._identities(node, now))
        yield from self._events(node, now)
        yield _tried("counters.csv", lambda: self._counters(node, since=since, now=now))
        tried = self.records.repairs_at(node, limit=100)
        yield (
            json_file("repairs.json", tried)
            if tried
            else BundleFile("repairs.json", missing_reason="nothing was tried here")
        )
        yield from self._orders(node)
        if not any(one.order.kind == "describe_gpus" for one in self._own_orders(node)):
            asked = "the node was not asked: --ask-node with work orders, or `watchkeeper bundle --local` there"
            yield BundleFile("serials, VBIOS and nvidia-smi -q", missing_reason=asked)

    def _events(self, node: fleet.Place, now: datetime) -> Iterator[BundleFile]:
        found = self.records.events_at(node, since=now - HISTORY, until=now, limit=MOST_EVENTS)
        if not found:
            yield BundleFile("events.json", missing_reason=f"no event of this node within {HISTORY.days} days")
            return
        yield json_file("events.json", found)
        lines = [event for event in found if event.kind in (events.EventKind.XID, events.EventKind.SXID)]
        if lines:
            text = "".join(f"{event.at:%Y-%m-%dT%H:%M:%S}Z {event.text}\n" for event in lines)
            yield BundleFile("xid-history.log", text.encode())
        else:
            yield BundleFile("xid-history.log", missing_reason=f"no Xid within {HISTORY.days} days")

    def _orders(self, node: fleet.Place) -> Iterator[BundleFile]:
        own = self._own_orders(node)
        if not own:
            yield BundleFile(
                "orders/", missing_reason="no work order was given to this node's agent: no scan or diag of its own"
            )
        for number, tracked in enumerate(reversed(own[:50]), start=1):
            order, receipt = tracked.order, tracked.receipt
            name = f"orders/{number:02d}-{order.kind}"
            told = {
                "kind": order.kind,
                "ordered_at": order.issued_at,
                "arguments": order.arguments,
                "ordered_by": tracked.actor,
                "why": tracked.why,
            }
            if receipt is None:
                yield BundleFile(f"{name}.json", missing_reason="the agent has not answered")
                continue
            came = {"at": receipt.at, "result": receipt.result, "text": receipt.text, "proven": tracked.is_proven}
            yield json_file(f"{name}.json", {**told, **came})
            if receipt.output:
                yield BundleFile(f"{name}.output", receipt.output.encode())

    def _own_orders(self, node: fleet.Place) -> list[orders.TrackedOrder]:
        """Newest first."""
        found = self.records.latest_orders(limit=MOST_ORDERS)
        return [one for one in found if (one.order.cluster, one.order.node) == (node.cluster, node.node)]

    def _identities(self, node: fleet.Place, now: datetime) -> BundleFile:
        """Whatever the exporters put into labels: UUID, model, bus; serial and VBIOS where they are asked to."""
        rows = self._ask(f"{IDENTITY}{_where(node)}", now)
        rows = rows or self._ask(f"last_over_time({IDENTITY}{_where(node)}[1d])", now)
        if not rows:
            return BundleFile("gpus.json", missing_reason="no GPU of this node has reported within a day")
        return json_file("gpus.json", [dict(labels) for labels in rows])

    def _counters(self, node: fleet.Place, *, since: datetime, now: datetime) -> BundleFile:
        """Before the trouble and now; an empty cell is a number that nobody reported."""
        name = "counters.csv"
        expr = f'{{__name__=~"{COUNTERS}",{_where(node)[1:]}'
        before, after = (_by_counter(self._ask(expr, at)) for at in (since - BEFORE, now))
        if not before and not after:
            return BundleFile(name, missing_reason="no counter of this node is in the samples of either time")
        text = io.StringIO()
        table = csv.writer(text)
        edges = (f"before {since - BEFORE:%Y-%m-%dT%H:%M:%SZ}", f"now {now:%Y-%m-%dT%H:%M:%SZ}")
        table.writerow(["metric", "gpu", "labels", *edges])
        for labels in sorted({*before, *after}, key=str):
            rest = ",".join(f"{key}={value}" for key, value in labels.without(METRIC_NAME, "gpu").pairs)
            numbers = (before.get(labels, ""), after.get(labels, ""))
            table.writerow([labels.name, labels.get("gpu", ""), rest, *numbers])
        return BundleFile(name, text.getvalue().encode())

    def _ask(self, expr: str, at: datetime) -> dict[Labels, float]:
        return self.engine.instant(expr, clock.to_ms(at)).latest()


def _tried(name: str, make: Callable[[], BundleFile]) -> BundleFile:
    """Samples may lie on a server that does not answer, and the rest of the evidence is worth having."""
    try:
        return make()
    except WatchkeeperError as error:
        return BundleFile(name, missing_reason=f"the samples could not be asked: {error}")


def _by_counter(found: Mapping[Labels, float]) -> dict[Labels, float]:
    """Without the labels that change while a counter goes on, such as who holds the GPU."""
    return {labels.only((METRIC_NAME, "gpu", *TOLD)): value for labels, value in found.items()}


def _where(node: fleet.Place) -> str:
    return f'{{cluster="{own_metrics.escape(node.cluster)}",Hostname="{own_metrics.escape(node.node or "")}"}}'
