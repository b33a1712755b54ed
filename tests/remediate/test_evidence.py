"""The evidence about an incident: what is known is there, and what is not is said with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.remediate.evidence_files import GPU, NODE, NOON, Inventory, files, xid
from tests.support.node_orders import HUB_KEY, KEY
from watchkeeper.errors import QueryError
from watchkeeper.model import alerts, fleet, incidents, orders
from watchkeeper.model.actions import Result
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryResult
from watchkeeper.remediate.evidence import EvidenceSources
from watchkeeper.remediate.orders import OrderQueue, OrderRequest
from watchkeeper.store.head.head import Head
from watchkeeper.store.journal.journal import Journal

LATER = NOON + timedelta(hours=1)
INCIDENT = incidents.Incident(
    incidents.IncidentId("INC-1"),
    GPU,
    "GPU-1 on n1",
    alerts.Severity.CRITICAL,
    incidents.IncidentState.OPEN,
    NOON,
    "ecc_uncorrectable",
    "memory",
    (),
    assignee="ada",
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as opened:
        opened.save_incident(INCIDENT, at=NOON, actor="hub", kind="opened", text="opened")
        yield opened


@pytest.fixture
def sources(journal: Journal) -> EvidenceSources:
    engine = EmbeddedEngine(Head(max_series=100))
    return EvidenceSources(journal, engine, Inventory(fleet.Node("main", "n1", pool="train")), "1.0")


def test_missing_evidence_is_listed_with_the_reason(sources: EvidenceSources) -> None:
    present, missing = files(sources.bundle_incident("INC-1", now=LATER))
    assert json.loads(present["incident.json"])["cause"] == "ecc_uncorrectable"
    assert missing == {
        "diagnosis.json": "the incident has no diagnosis",
        "plan.json": "the incident has no plan",
        "gpus.json": "no GPU of this node has reported within a day",
        "events.json": "no event of this node within 30 days",
        "counters.csv": "no samples of this node's counters before the incident or now",
        "repairs.json": "the node had no repair",
        "orders/": "the node's agent got no work order, so there is no scan or diag",
        "serials, VBIOS and nvidia-smi -q": (
            "not read: use --ask-node (needs work orders), or `watchkeeper bundle --local` on the node"
        ),
    }
    assert sources.bundle_incident("INC-2", now=LATER) is None
    assert sources.bundle_node("n2", now=LATER) is None


def test_counters_are_compared_whatever_workload_held_the_gpu(sources: EvidenceSources) -> None:
    def report(value: float, at: timedelta, pod: str) -> None:
        name = {"__name__": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gpu": "0", "UUID": "GPU-1", "pod": pod}
        at_ms = round((NOON + at).timestamp() * 1000)
        sources.engine.appender.append([Sample(Labels({**name, "cluster": "main", "Hostname": "n1"}), at_ms, value)])

    report(0.0, timedelta(minutes=-6), "train-0")
    report(2.0, timedelta(minutes=59), "")
    present, _ = files(sources.bundle_incident("INC-1", now=LATER))
    assert present["counters.csv"].decode().splitlines() == [
        "metric,gpu,labels,before 2026-05-04T11:55:00Z,now 2026-05-04T13:00:00Z",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL,0,UUID=GPU-1,0.0,2.0",
    ]


def test_names_in_a_table_are_no_formulas_of_a_spreadsheet(sources: EvidenceSources) -> None:
    name = {"__name__": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gpu": "=cmd|' /C calc'!A1", "UUID": "GPU-1"}
    sample = Sample(Labels({**name, "cluster": "main", "Hostname": "n1"}), round(LATER.timestamp() * 1000), 1.0)
    sources.engine.appender.append([sample])
    present, _ = files(sources.bundle_incident("INC-1", now=LATER))
    assert ",'=cmd|' /C calc'!A1," in present["counters.csv"].decode()


def test_events_and_receipts_of_the_node_are_in_it_and_of_no_other(sources: EvidenceSources, journal: Journal) -> None:
    journal.save_events([xid(48, NOON), replace(xid(79, NOON), place=fleet.Place("main", node="n2"))], NOON)
    outbox = OrderQueue(journal, HUB_KEY, now=NOON)
    for node in ("n1", "n2"):
        outbox.issue(OrderRequest("main", node, "scan", id=f"WO-{node}"), now=NOON, actor="ann")
    receipt = orders.Receipt(orders.OrderId("WO-n1"), NOON, Result.DONE, "this node is healthy", "{}")
    outbox.accept_receipt("WO-n1", orders.seal(receipt, KEY), now=NOON)
    present, missing = files(sources.bundle_node("n1", now=LATER))
    assert present["xid-history.log"] == b"2026-05-04T12:00:00Z Xid 48\n"
    assert json.loads(present["orders/01-scan.json"])["text"] == "this node is healthy"
    assert present["orders/01-scan.output"] == b"{}"
    assert "incidents/INC-1/incident.json" in present
    assert not any("n2" in name or b"WO-n2" in content for name, content in present.items())
    assert "orders/" not in missing


def test_names_of_people_and_nodes_are_replaced_throughout(sources: EvidenceSources) -> None:
    present, _ = files(sources.bundle_incident("INC-1", now=LATER, hides_names=True))
    incident = json.loads(present["incident.json"])
    assert (incident["assignee"], incident["place"]["node"], incident["title"]) == (
        "person-1",
        "node-1",
        "GPU-1 on node-1",
    )


def test_an_unreachable_query_engine_costs_only_its_own_files(sources: EvidenceSources) -> None:
    class Away(EmbeddedEngine):
        def instant(self, expr: str, at_ms: int) -> QueryResult:
            raise QueryError("connection refused")

    present, missing = files(replace(sources, engine=Away(Head(max_series=1))).bundle_incident("INC-1", now=LATER))
    assert missing["counters.csv"] == "the query failed: connection refused"
    assert "timeline.json" in present
    assert NODE.node == "n1"
