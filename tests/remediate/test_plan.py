"""Plans: the same for the same incident, described and never performed, and honest about what is unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model import alerts, diagnosis, fleet, incidents
from watchkeeper.model.actions import Action, Plan, Result
from watchkeeper.model.trust import Mode
from watchkeeper.remediate.driver import NodeObservation
from watchkeeper.remediate.drivers.cluster_driver import DryRunDriver
from watchkeeper.remediate.plan import dry_run, make_plan
from watchkeeper.remediate.policy import load, parse

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NODE = fleet.Place("main", node="n1")
GPU = fleet.Place("main", node="n1", gpu="GPU-1")


@dataclass
class Cluster:
    """A driver that returns `answer` and counts the calls."""

    answer: NodeObservation | None = None
    name: str = "fake"
    observed: int = 0
    performed: int = 0

    def observe(self, place: fleet.Place) -> NodeObservation:
        self.observed += 1
        if self.answer is None:
            raise ActionFailed("it does not answer")
        return self.answer

    def describe(self, action: Action) -> str:
        return f"{action.kind} {action.place.node}"

    def perform(self, action: Action) -> str:
        self.performed += 1
        return "done"


def incident(cause: str, place: fleet.Place = GPU) -> incidents.Incident:
    return incidents.Incident(
        id=incidents.IncidentId("INC-7"),
        place=place,
        title=cause,
        severity=alerts.Severity.CRITICAL,
        state=incidents.IncidentState.OPEN,
        opened_at=NOON,
        cause=cause,
        family="",
        members=(),
    )


def planned(cause: str, cluster: Cluster, place: fleet.Place = GPU) -> Plan:
    return dry_run(make_plan(incident(cause, place), None, load()), cluster, now=NOON)


def test_a_lost_gpu_leads_to_a_reboot_of_its_node_and_no_reset() -> None:
    draft = make_plan(
        incident("gpu_fell_off_bus"), None, load(), format_place=lambda place: place.gpu or str(place.node)
    )
    assert [(action.id, action.place) for action in draft.actions] == [
        ("1-cordon", NODE),
        ("2-drain", NODE),
        ("3-reboot", NODE),
        ("4-validate", NODE),
        ("5-uncordon", NODE),
    ]
    assert draft.actions[0].mark == "watchkeeper:INC-7/1-cordon"
    assert draft.next_step.startswith("Cordon and drain n1, then reboot it")


def test_a_reset_is_for_the_gpu_and_the_rest_for_its_node() -> None:
    draft = make_plan(incident("ecc_uncorrectable"), None, load())
    assert [action.place for action in draft.actions] == [NODE, NODE, GPU, NODE, NODE]


def test_planning_twice_gives_the_same_actions() -> None:
    assert make_plan(incident("gsp_timeout"), None, load()) == make_plan(incident("gsp_timeout"), None, load())


def test_a_reset_of_an_unknown_gpu_becomes_a_manual_inspection() -> None:
    draft = make_plan(incident("ecc_uncorrectable", NODE), None, load())
    assert [action.kind for action in draft.actions] == ["cordon", "drain", "inspect", "validate", "uncordon"]
    assert "affected GPU" in draft.actions[2].why


def test_an_incident_of_a_whole_cluster_touches_no_machine() -> None:
    draft = make_plan(incident("cooling_failure", fleet.Place("main", domain="rack=r1")), None, load())
    assert {action.kind for action in draft.actions} == {"inspect"}


def test_the_plan_for_a_hot_rack_caps_each_node_and_drains_none_before_a_person_looked() -> None:
    rack, nodes = fleet.Place("main", domain="rack=r1"), [fleet.Place("main", node=f"n{at}") for at in (1, 2)]
    draft = make_plan(incident("cooling_failure", rack), None, load(), nodes_of=lambda _: nodes)
    steps = [(action.kind, action.place.node) for action in draft.actions]
    assert steps == [
        ("lower_power", "n1"),
        ("lower_power", "n2"),
        ("inspect", None),
        *[(kind, node) for node in ("n1", "n2") for kind in ("cordon", "drain")],
    ]
    assert len({action.id for action in draft.actions}) == len(draft.actions)
    assert draft.next_step.startswith("Lower the power limit of every node in ")


def test_a_dry_run_describes_everything_and_performs_nothing() -> None:
    cluster = Cluster(NodeObservation(NODE, exists=True, is_schedulable=True, workloads=("ns/job-1",)))
    plan = planned("ecc_uncorrectable", cluster)
    assert [receipt.result for receipt in plan.receipts] == [Result.DESCRIBED] * 5
    assert plan.receipts[1].text == "drain n1 (affects ns/job-1)"
    assert (plan.mode, plan.made_at, plan.cause) == (Mode.OBSERVE, NOON, "ecc_uncorrectable")
    assert (cluster.observed, cluster.performed) == (1, 0)


def test_a_node_that_is_cordoned_already_needs_no_cordon() -> None:
    cordoned = NodeObservation(NODE, exists=True, is_schedulable=False, cordoned_by="ada")
    plan = planned("gpu_fell_off_bus", Cluster(cordoned))
    assert (plan.receipts[0].result, plan.receipts[0].text) == (Result.ALREADY_SO, "n1 is already cordoned by ada")


def test_a_node_that_the_cluster_does_not_know_is_refused() -> None:
    plan = planned("gpu_fell_off_bus", Cluster(NodeObservation(NODE, exists=False)))
    assert {receipt.result for receipt in plan.receipts} == {Result.REFUSED}


def test_a_cluster_that_does_not_answer_is_named_in_the_plan() -> None:
    plan = planned("gpu_fell_off_bus", Cluster(None))
    assert plan.receipts[0].text == "cordon n1 (state of the node unknown: it does not answer)"


def test_the_dry_run_driver_describes_commands_and_refuses_actions() -> None:
    draft = make_plan(incident("ecc_uncorrectable"), None, load())
    texts = [receipt.text for receipt in dry_run(draft, DryRunDriver(), now=NOON).receipts]
    assert texts[0].startswith("kubectl cordon n1")
    assert texts[2] == "on n1: nvidia-smi --gpu-reset -i GPU-1"
    with pytest.raises(ActionRefused, match="no driver for cordon; it only describes actions"):
        DryRunDriver().perform(draft.actions[0])


def test_a_workload_affected_by_a_node_is_not_the_holder_of_one_gpu() -> None:
    text = '[cause.gsp_timeout]\nsteps = [{action = "drain", why = "x", arguments = {scope = "gpu"}}]'
    chosen = parse(text, where="test", base=load())
    finding = diagnosis.Finding("gsp_timeout", 0.9, GPU, "", "", (), ())
    of_gpu = replace(incident("gsp_timeout"), workloads=("research/train-0",))
    of_node = replace(of_gpu, place=fleet.Place(GPU.cluster, node=GPU.node))
    assert make_plan(of_gpu, finding, chosen).actions[0].arguments["pods"] == "research/train-0"
    assert "pods" not in make_plan(of_node, finding, chosen).actions[0].arguments
