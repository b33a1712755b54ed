"""Whether a node is in service: what schedulers and repairs know becomes one state and one text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from watchkeeper.hub.node_service import services_by_node
from watchkeeper.kit import clock
from watchkeeper.model.cluster import ClusterView, ScheduledNode
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.model.node_list import NodeService, ServiceState
from watchkeeper.model.repairs import Repair, RepairId, RepairState
from watchkeeper.model.trust import Mode

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
N1 = Place("main", node="n1")
READY = ScheduledNode("main", "n1", "kubernetes", "Ready", is_ready=True, is_schedulable=True)
MARK = "watchkeeper:INC-1/1-cordon"
INC_1 = IncidentId("INC-1")


def out(state: str = "Ready,SchedulingDisabled", *, by: str = "", reason: str = "") -> ScheduledNode:
    return replace(READY, state=state, is_schedulable=False, unschedulable_by=by, reason=reason)


def repair(state: RepairState = RepairState.DRAINING, **fields: object) -> Repair:
    made = Repair(
        RepairId("INC-1.1"), INC_1, N1, "", "gpu_fell_off_bus", Mode.ACT, "", "", (), state, "", NOON, NOON, {INC_1: 0}
    )
    return replace(made, has_cordon=True, **fields)  # type: ignore[arg-type]


def judged(
    *nodes: ScheduledNode,
    repairs: tuple[Repair, ...] = (),
    ended_at: datetime | None = None,
    read_at: datetime = NOON,
    problem: str = "",
) -> NodeService | None:
    views = [ClusterView(node.source, clock.to_ms(read_at), (node,), problem=problem) for node in nodes]
    ends = {} if ended_at is None else {N1: ended_at}
    return services_by_node(views, repairs, ends, now=NOON).get(N1)


@pytest.mark.parametrize(
    ("node", "state", "text"),
    [
        (READY, "in_service", ""),
        (out(), "cordoned", "cordoned"),
        (out(by="ada"), "cordoned", "cordoned · ada"),
        (out(by=MARK), "cordoned", "cordoned · repair INC-1"),
        (out("drained", by="root", reason="bad cable"), "drained", "drained · root"),
        (out("draining", by="slurm", reason=f"{MARK} (was: x)"), "draining", "draining · repair INC-1"),
        (out("down*"), "out_of_service", "down*"),
        (replace(READY, is_ready=False, state="NotReady"), "in_service", ""),
    ],
)
def test_a_cordon_says_who_made_it(node: ScheduledNode, state: str, text: str) -> None:
    assert judged(node) == NodeService(ServiceState(state), text)


def test_a_node_that_nothing_reports_is_unknown_and_so_is_one_of_a_silent_scheduler() -> None:
    assert judged() is None
    silent = judged(READY, read_at=NOON - timedelta(minutes=6), problem="connection refused")
    assert silent == NodeService(ServiceState.UNKNOWN, "unknown: kubernetes does not answer")


def test_a_repair_is_named_before_and_after_the_view_shows_its_cordon() -> None:
    cordoned = NodeService(ServiceState.CORDONED, "cordoned · repair INC-1", INC_1)
    assert judged(READY, repairs=(repair(),)) == cordoned
    assert judged(out(by=MARK), repairs=(repair(),)) == cordoned
    assert judged(repairs=(repair(),)) == cordoned
    drained = judged(out("drained", reason=MARK), repairs=(repair(),))
    assert drained == NodeService(ServiceState.DRAINED, "drained · repair INC-1", INC_1)


def test_a_cordon_that_is_not_observed_is_not_called_one() -> None:
    started = repair(RepairState.CORDONING)
    assert judged(READY, repairs=(started,)) == NodeService(ServiceState.IN_SERVICE, "cordoning · repair INC-1", INC_1)


def test_a_failed_repair_that_keeps_its_cordon_says_so() -> None:
    failed = judged(out(by=MARK), repairs=(repair(RepairState.FAILED),))
    assert failed == NodeService(ServiceState.CORDONED, "cordoned · repair INC-1 failed", INC_1)


def test_a_view_from_before_the_end_of_a_repair_does_not_show_its_cordon() -> None:
    ended_at = NOON - timedelta(seconds=10)
    old = judged(out(by=MARK), ended_at=ended_at, read_at=NOON - timedelta(seconds=15))
    assert old == NodeService(ServiceState.IN_SERVICE, "")
    stray = judged(out(by=MARK), ended_at=ended_at, read_at=NOON)
    assert stray == NodeService(ServiceState.CORDONED, "cordoned · repair INC-1")
    of_ada = judged(out(by="ada"), ended_at=ended_at, read_at=NOON - timedelta(seconds=15))
    assert of_ada == NodeService(ServiceState.CORDONED, "cordoned · ada")


def test_of_two_schedulers_the_one_that_refuses_the_node_decides() -> None:
    assert judged(READY, replace(out("drained", by="root"), source="slurm")) == NodeService(
        ServiceState.DRAINED, "drained · root"
    )
