"""`explain job` and `explain node`: ranks, nodes, events and schedulers' words put together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.diagnose.scenes import CountingEngine, a_job, say
from tests.diagnose.stories import NOON, an_engine, an_incident, facts_about, gpu, name, xid
from watchkeeper.diagnose import job, node
from watchkeeper.diagnose.explained import Explained, as_text
from watchkeeper.model import cluster, events, fleet, workloads
from watchkeeper.query import embedded
from watchkeeper.store.head import head


def part(pod: str, *, label: str = "", state: str = "running", **more: object) -> workloads.ScheduledWorkload:
    labels = {label: "llm"} if label else {}
    workload = workloads.Workload(workloads.WorkloadKind.POD, pod, namespace="ml")
    return workloads.ScheduledWorkload("main", workload, workloads.WorkloadState(state), labels=labels, **more)  # type: ignore[arg-type]


def explain(
    engine: embedded.EmbeddedEngine,
    parts: Sequence[workloads.ScheduledWorkload] = (),
    happened: Sequence[events.Event] = (),
) -> Explained | None:
    asked = job.JobQuery("main", "llm", parts)
    looked = job.read_job(engine, asked, NOON)
    if looked is None:
        return None
    there = [one for node in looked.nodes for one in happened if node.encloses(one.place)]
    return job.explain(asked, looked, NOON, happened=there, names=name)


def test_a_job_without_trouble_says_how_it_gets_on() -> None:
    found = explain(a_job(dict.fromkeys(range(4), 1.0)))
    assert found is not None
    assert (found.cause, found.headline) == (
        None, "4 ranks on 0 nodes; the last step ended 1 s ago",
    )  # fmt: skip
    assert "which GPUs it holds: no exporter names its pods or its Slurm id" in found.unseen


def test_a_missing_rank_and_the_event_that_took_it_are_told_together() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 1.0}, age=120.0)
    say(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-3", pod="llm-worker-0", gpu="3")
    found = explain(engine, happened=[xid(79, gpu(3), -120)])
    assert found is not None
    text = "\n".join(as_text(found))
    assert "missing: it says nothing any more" in text
    assert "GPU 3 on n1: NVRM: Xid (PCI:0000:5d:00): 79" in text
    assert found.cause == "gpu_fell_off_bus"


def test_a_job_whose_parts_wait_says_what_to_ask_next() -> None:
    waits = part("llm-1", state="pending", reason="Insufficient nvidia.com/gpu")
    found = explain(an_engine(), [part("llm-0"), waits])
    assert found is not None
    assert found.headline == "1 of 2 parts wait: Insufficient nvidia.com/gpu"
    assert found.steps == ("watchkeeper explain pod ml/llm-1",)


def test_nobody_knows_a_job_that_does_not_exist() -> None:
    assert explain(an_engine()) is None


@pytest.mark.parametrize("label", ["training.kubeflow.org/job-name", "batch.kubernetes.io/job-name"])
def test_pods_belong_to_their_job_by_label_owner_or_name(label: str) -> None:
    known = [part("a", label=label), part("b", owner="Job/llm"), part("llm"), part("other")]
    assert [one.workload.name for one in job.workloads_of_job("llm", known)] == ["a", "b", "llm"]
    assert job.workloads_of_job("elsewhere/llm", known) == []


def word(**more: object) -> cluster.ScheduledNode:
    plain = {"state": "idle", "is_ready": True, "is_schedulable": True, "gpus": 8, "allocatable_gpus": 8, **more}
    return cluster.ScheduledNode("main", "n1", "slurm", **plain)  # type: ignore[arg-type]


def test_a_drained_node_says_by_whom_and_how_to_bring_it_back() -> None:
    drained = word(state="drained", is_schedulable=False, reason="NHC: no GPU 3", unschedulable_by="ada")
    found = node.explain(node.NodeSummary("n1", [drained], reporting=8, expected=8))
    assert found.headline == "is closed for work (drained) by ada: NHC: no GPU 3"
    assert found.change == "scontrol update NodeName=n1 State=RESUME, once the reason is gone"


def test_a_node_with_an_incident_is_that_incident_and_what_changed() -> None:
    incident = an_incident("gpu_fell_off_bus", gpu(3), family="gpu_lost")
    found = node.explain(node.NodeSummary("n1", [word()], incidents=[(incident, None)], changes=("n1 was booted",)))
    assert (found.cause, found.lines[-1].text) == ("gpu_fell_off_bus", "n1 was booted")


def test_a_node_that_nobody_mentions_is_not_called_healthy() -> None:
    assert node.explain(node.NodeSummary("n1")).headline == "nobody says anything about it now"


@pytest.mark.parametrize("domain", ["job=llm", "pod=ml/notebook", "rack=r1", "namespace=ml", "model=chat"])
def test_evidence_of_every_kind_of_place_costs_at_most_twenty_questions(domain: str) -> None:
    counting = CountingEngine(head.Head())
    incident = an_incident("training_slow", fleet.Place("main", domain=domain), family="training")
    facts_about(incident, engine=counting)
    assert counting.asked <= 20
