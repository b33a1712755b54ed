"""Collect the evidence about an incident or a node, for the person who repairs or replaces the machine.

`EvidenceSources` reads the journal and the samples and returns files for `kit.evidence_file`; a file that is missing
has its reason. `NodeHandOver` writes a bundle when repairs keep failing, once per incident.
"""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from watchkeeper.errors import StoreError, WatchkeeperError
from watchkeeper.kit import clock, evidence_file, logs, redaction
from watchkeeper.kit.evidence_file import BundleFile, json_file
from watchkeeper.model import events, fleet, incidents, orders
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.repairs import Repair, RepairState
from watchkeeper.query import engine as engines
from watchkeeper.readers.table import escape_cell
from watchkeeper.remediate import validation
from watchkeeper.remediate.registry import TIMELINE_ENTRY
from watchkeeper.store.journal.journal import HUB, Journal

log = logging.getLogger(__name__)

# Xids of the last weeks show whether a GPU fails repeatedly.
HISTORY = timedelta(days=30)
BASELINE_OFFSET = timedelta(minutes=5)
MAX_ORDERS = 1000
MAX_EVENTS = 1000
# The counters that vendors ask for: memory, remapped rows, links, bus, and throttle reasons.
COUNTERS = (
    "DCGM_FI_DEV_(ECC_.*|RETIRED_.*|.*ROW_REMAP.*|.*REMAPPED_ROWS|BANKS_REMAP.*|XID_ERRORS|PCIE_REPLAY_COUNTER"
    "|NVLINK_.*|GPU_TEMP|MEMORY_TEMP|POWER_USAGE|ENFORCED_POWER_LIMIT|CLOCKS_EVENT_REASONS|.*_VIOLATION)"
    "|DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION|watchkeeper_gpu_(nvlink_.*|recovery_action|sram_.*|unrepairable.*)"
)
IDENTITY_METRIC = "DCGM_FI_DEV_GPU_TEMP"
# Labels that identify a counter.
COUNTER_LABELS = (METRIC_NAME, "gpu", "UUID", "err_code", "reason", "link", "kind")
# The key in the timeline entry with the repair after which the node was handed over.
BODY_KEY = "hand_over"
MAX_BUNDLES = 100


class EvidenceInventory(Protocol):
    def node(self, name: str, cluster: str | None = None) -> fleet.Node | None: ...

    def nodes(self) -> list[fleet.Node]: ...


@dataclass(frozen=True, slots=True)
class EvidenceSources:
    journal: Journal
    engine: engines.Engine
    inventory: EvidenceInventory
    version: str

    def bundle_incident(self, id: str, *, now: datetime, hides_names: bool = False) -> bytes | None:
        incident = self.journal.incident(id)
        if incident is None:
            return None
        files, node = list(self._incident_files(incident, "")), incident.place.whole_node
        if node.node is None:
            files.append(BundleFile("node/", missing_reason="the incident affects no single node"))
        else:
            files += self._node_files(node, since=incident.opened_at, now=now)
        return self._pack(files, incident.place, id, now=now, hides_names=hides_names)

    def bundle_node(
        self, name: str, *, cluster: str | None = None, now: datetime, hides_names: bool = False
    ) -> bytes | None:
        node = self.inventory.node(name, cluster)
        if node is None:
            return None
        newest, files = self.journal.incidents(limit=MAX_EVENTS), list[BundleFile]()
        for incident in [incident for incident in newest if incident.place.whole_node == node.place][:20]:
            files += self._incident_files(incident, f"incidents/{incident.id}/")
        files += self._node_files(node.place, since=now - HISTORY, now=now)
        return self._pack(files, node.place, name, now=now, hides_names=hides_names)

    def _pack(
        self, files: Sequence[BundleFile], place: fleet.Place, subject: str, *, now: datetime, hides_names: bool
    ) -> bytes:
        manifest = {"bundle": "watchkeeper evidence", "subject": subject, "place": str(place), "version": self.version}
        redaction_map = evidence_file.Redaction(self._build_pseudonyms(files) if hides_names else {})
        return evidence_file.pack(files, manifest, now=now, redaction_rules=redaction_map)

    def _build_pseudonyms(self, files: Iterable[BundleFile]) -> dict[str, str]:
        text = "\n".join(file.content.decode("utf-8", "replace") for file in files if file.content is not None)
        nodes = [node.name for node in self.inventory.nodes() if node.name in text]
        users = set(re.findall(r'"(?:user|actor|assignee|approved_by|by)": "([^"\s]+)"', text))
        users |= set(re.findall(r"pid \d+ \S+ of ([\w.-]+)", text))
        users -= {*nodes, "hub", "policy", "repair", "validation", "root"}
        return {**redaction.pseudonyms(users, "person"), **redaction.pseudonyms(nodes, "node")}

    def _incident_files(self, incident: incidents.Incident, folder: str) -> Iterator[BundleFile]:
        yield json_file(f"{folder}incident.json", incident)
        for name, read in (("diagnosis", self.journal.diagnosis), ("plan", self.journal.plan)):
            yield _json_or_missing(f"{folder}{name}.json", read(incident.id), missing=f"the incident has no {name}")
        yield json_file(f"{folder}timeline.json", self.journal.timeline(incident.id))
        yield json_file(f"{folder}notices.json", self.journal.notices_of(incident.id))

    def _node_files(self, node: fleet.Place, *, since: datetime, now: datetime) -> Iterator[BundleFile]:
        inventory_node = self.inventory.node(node.node or "", node.cluster)
        yield _json_or_missing("node.json", inventory_node, missing="the node is not in the inventory")
        yield _read_samples("gpus.json", lambda: self._read_identities(node, now))
        yield from self._event_files(node, now)
        yield _read_samples("counters.csv", lambda: self._read_counters(node, since=since, now=now))
        past_repairs = self.journal.repairs_at(node, limit=100) or None
        yield _json_or_missing("repairs.json", past_repairs, missing="the node had no repair")
        yield from self._order_files(node)
        if not any(tracked.order.kind == "describe_gpus" for tracked in self._find_node_orders(node)):
            reason = "not read: use --ask-node (needs work orders), or `watchkeeper bundle --local` on the node"
            yield BundleFile("serials, VBIOS and nvidia-smi -q", missing_reason=reason)

    def _event_files(self, node: fleet.Place, now: datetime) -> Iterator[BundleFile]:
        node_events = self.journal.events_at(node, since=now - HISTORY, until=now, limit=MAX_EVENTS)
        if not node_events:
            yield BundleFile("events.json", missing_reason=f"no event of this node within {HISTORY.days} days")
            return
        yield json_file("events.json", node_events)
        xid_events = [event for event in node_events if event.kind in (events.EventKind.XID, events.EventKind.SXID)]
        if xid_events:
            text = "".join(f"{event.at:%Y-%m-%dT%H:%M:%S}Z {event.text}\n" for event in xid_events)
            yield BundleFile("xid-history.log", text.encode())
        else:
            yield BundleFile("xid-history.log", missing_reason=f"no Xid within {HISTORY.days} days")

    def _order_files(self, node: fleet.Place) -> Iterator[BundleFile]:
        node_orders = self._find_node_orders(node)
        if not node_orders:
            reason = "the node's agent got no work order, so there is no scan or diag"
            yield BundleFile("orders/", missing_reason=reason)
        for number, tracked in enumerate(reversed(node_orders[:50]), start=1):
            order, receipt = tracked.order, tracked.receipt
            name = f"orders/{number:02d}-{order.kind}"
            content = {"kind": order.kind, "ordered_at": order.issued_at, "arguments": order.arguments}
            content |= {"ordered_by": tracked.actor, "why": tracked.why}
            if receipt is None:
                yield BundleFile(f"{name}.json", missing_reason="the agent has not sent a receipt")
                continue
            result = {"at": receipt.at, "result": receipt.result, "text": receipt.text, "proven": tracked.is_proven}
            yield json_file(f"{name}.json", {**content, **result})
            if receipt.output:
                yield BundleFile(f"{name}.output", receipt.output.encode())

    def _find_node_orders(self, node: fleet.Place) -> list[orders.TrackedOrder]:
        """Return the work orders of the node, newest first."""
        address, latest = (node.cluster, node.node), self.journal.latest_orders(limit=MAX_ORDERS)
        return [tracked for tracked in latest if (tracked.order.cluster, tracked.order.node) == address]

    def _read_identities(self, node: fleet.Place, now: datetime) -> BundleFile:
        """Return the labels of each GPU: UUID, model, bus; serial and VBIOS if the exporter adds them."""
        rows = self._query_latest(f"{IDENTITY_METRIC}{validation.node_selector(node)}", now)
        rows = rows or self._query_latest(f"last_over_time({IDENTITY_METRIC}{validation.node_selector(node)}[1d])", now)
        if not rows:
            return BundleFile("gpus.json", missing_reason="no GPU of this node has reported within a day")
        return json_file("gpus.json", [dict(labels) for labels in rows])

    def _read_counters(self, node: fleet.Place, *, since: datetime, now: datetime) -> BundleFile:
        """Return the counters before the incident and now; an empty cell means no sample."""
        name = "counters.csv"
        expr = f'{{__name__=~"{COUNTERS}",{validation.node_selector(node)[1:]}'
        before = since - BASELINE_OFFSET
        # Labels that change during the life of a counter, such as the holder of the GPU, are dropped.
        baseline, current = (
            {labels.only(COUNTER_LABELS): value for labels, value in self._query_latest(expr, at).items()}
            for at in (before, now)
        )
        if not baseline and not current:
            return BundleFile(name, missing_reason="no samples of this node's counters before the incident or now")
        text = io.StringIO()
        table = csv.writer(text)
        columns = (f"before {before:%Y-%m-%dT%H:%M:%SZ}", f"now {now:%Y-%m-%dT%H:%M:%SZ}")
        table.writerow(["metric", "gpu", "labels", *columns])
        for labels in sorted({*baseline, *current}, key=str):
            other_labels = ",".join(f"{key}={value}" for key, value in labels.without(METRIC_NAME, "gpu").pairs)
            values = (baseline.get(labels, ""), current.get(labels, ""))
            names = map(escape_cell, (labels.name, labels.get("gpu", ""), other_labels))
            table.writerow([*names, *values])
        return BundleFile(name, text.getvalue().encode())

    def _query_latest(self, expr: str, at: datetime) -> dict[Labels, float]:
        return self.engine.instant(expr, clock.to_ms(at)).latest()


def _json_or_missing(path: str, record: object, *, missing: str) -> BundleFile:
    return BundleFile(path, missing_reason=missing) if record is None else json_file(path, record)


def _read_samples(name: str, read: Callable[[], BundleFile]) -> BundleFile:
    """Read samples for a file; if the query fails, the bundle is written without the file."""
    try:
        return read()
    except WatchkeeperError as error:
        return BundleFile(name, missing_reason=f"the query failed: {error}")


def find_failed_repairs(repair: Repair, past: Sequence[Repair]) -> list[Repair]:
    """Return the failed repairs of the same node and cause that changed the machine; empty if `repair` did not."""
    failures = (earlier for earlier in past if earlier.state is RepairState.FAILED and earlier.has_acted)
    failed = [failure for failure in failures if failure.cause == repair.cause]
    return failed if any(earlier.id == repair.id for earlier in failed) else []


class NodeHandOver:
    def __init__(self, journal: Journal, sources: EvidenceSources, folder: Path, *, limit: int) -> None:
        self._journal, self._sources, self._folder, self._limit = journal, sources, folder, limit
        self._checked: set[str] = set()

    def hand_over_failed(self, repairs: Iterable[Repair], now: datetime) -> list[str]:
        # A vendor takes a node back, not a rack.
        holding = [repair for repair in repairs if repair.keeps_cordon and not repair.is_of_domain]
        self._checked &= {repair.id for repair in holding}
        handed_over = []
        for repair in holding:
            if repair.id in self._checked:
                continue
            failed = find_failed_repairs(repair, self._journal.repairs_at(repair.node))
            entries = self._journal.timeline(repair.incident) if len(failed) >= self._limit else None
            if entries is not None and not any(BODY_KEY in entry.body for entry in entries):
                self._hand_over(repair, failed, now)
                handed_over.append(str(repair.incident))
            self._checked.add(repair.id)
        return handed_over

    def _hand_over(self, repair: Repair, failed: Sequence[Repair], now: datetime) -> None:
        body: dict[str, Any] = {BODY_KEY: repair.id, "failed": [failure.id for failure in failed]}
        try:
            path, digest = self._write_bundle(repair, now)
            body |= {"bundle": str(path), "sha256": digest}
            evidence = f"The evidence is in {path}"
        except StoreError as error:
            evidence = f"The evidence could not be written: {error}"
        remedy = f"create it again with `watchkeeper bundle --incident {repair.incident} -o FILE.tar.gz`"
        text = (
            f"{len(failed)} repairs of {repair.node.node} failed, the limit is {self._limit}: repair it manually or"
            f" contact its vendor. Last failure: {repair.reason}. {evidence}; {remedy}"
        )
        self._journal.record(TIMELINE_ENTRY, repair.incident, at=now, actor=HUB, body={"text": text, **body})
        fields = logs.fields(incident=repair.incident, node=repair.node.node, failed=len(failed))
        log.error("repairs keep failing, node handed over", extra=fields)

    def _write_bundle(self, repair: Repair, now: datetime) -> tuple[Path, str]:
        bundle = self._sources.bundle_incident(repair.incident, now=now)
        if bundle is None:
            raise StoreError("the incident is not in the journal", where=repair.incident)
        path = self._folder / f"{repair.id}.tar.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            bundles = sorted(self._folder.glob("*.tar.gz"), key=lambda bundle_path: bundle_path.stat().st_mtime)
            for old_bundle in bundles[: max(0, len(bundles) - MAX_BUNDLES + 1)]:
                old_bundle.unlink()
        except OSError as error:
            raise StoreError(f"cannot write bundles: {error.strerror}", where=str(self._folder)) from error
        evidence_file.save(path, bundle)
        return path, hashlib.sha256(bundle).hexdigest()
