"""`explain job` and `explain node`: ranks, nodes, events and scheduler states."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.diagnose.scenes import CountingEngine, a_job, add_sample
from tests.diagnose.stories import NOON, an_engine, an_incident, facts_about, gpu, name, xid
from watchkeeper.diagnose import job, node
from watchkeeper.diagnose.explain_result import ExplainResult, as_text
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
) -> ExplainResult | None:
    query = job.JobQuery("main", "llm", parts)
    series = job.read_job(engine, query, NOON)
    if series is None:
        return None
    node_events = [event for node in series.nodes for event in happened if node.encloses(event.place)]
    return job.explain(query, series, NOON, node_events=node_events, names=name)


def test_a_job_without_a_problem_shows_its_progress() -> None:
    explanation = explain(a_job(dict.fromkeys(range(4), 1.0)))
    assert explanation is not None
    assert (explanation.cause, explanation.headline) == (
        None, "4 ranks on 0 nodes; the last step ended 1 s ago",
    )  # fmt: skip
    assert "GPUs of the job: no exporter reports its pods or its Slurm job id" in explanation.missing_data


def test_a_missing_rank_is_shown_with_the_event_that_caused_it() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 1.0}, age=120.0)
    add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-3", pod="llm-worker-0", gpu="3")
    explanation = explain(engine, happened=[xid(79, gpu(3), -120)])
    assert explanation is not None
    text = "\n".join(as_text(explanation))
    assert "missing: does not report" in text
    assert "GPU 3 on n1: NVRM: Xid (PCI:0000:5d:00): 79" in text
    assert explanation.cause == "gpu_fell_off_bus"


def test_a_job_with_pending_pods_names_the_next_command() -> None:
    waits = part("llm-1", state="pending", reason="Insufficient nvidia.com/gpu")
    explanation = explain(an_engine(), [part("llm-0"), waits])
    assert explanation is not None
    assert explanation.headline == "1 of 2 workloads pending: Insufficient nvidia.com/gpu"
    assert explanation.steps == ("watchkeeper explain pod ml/llm-1",)


def test_a_job_that_does_not_exist_has_no_explanation() -> None:
    assert explain(an_engine()) is None


@pytest.mark.parametrize("label", ["training.kubeflow.org/job-name", "batch.kubernetes.io/job-name"])
def test_pods_belong_to_their_job_by_label_owner_or_name(label: str) -> None:
    pods = [part("a", label=label), part("b", owner="Job/llm"), part("llm"), part("other")]
    assert [pod.workload.name for pod in job.workloads_of_job("llm", pods)] == ["a", "b", "llm"]
    assert job.workloads_of_job("elsewhere/llm", pods) == []


def word(**more: object) -> cluster.ScheduledNode:
    plain = {"state": "idle", "is_ready": True, "is_schedulable": True, "gpus": 8, "allocatable_gpus": 8, **more}
    return cluster.ScheduledNode("main", "n1", "slurm", **plain)  # type: ignore[arg-type]


def test_a_drained_node_shows_who_drained_it_and_how_to_resume_it() -> None:
    drained = word(state="drained", is_schedulable=False, reason="NHC: no GPU 3", unschedulable_by="ada")
    explanation = node.explain(node.NodeSummary("n1", [drained], reporting=8, expected=8))
    assert explanation.headline == "accepts no workloads (drained) by ada: NHC: no GPU 3"
    assert explanation.change == "when the reason is fixed: scontrol update NodeName=n1 State=RESUME"


def test_a_node_with_an_incident_shows_the_incident_and_changes() -> None:
    incident = an_incident("gpu_fell_off_bus", gpu(3), family="gpu_lost")
    explanation = node.explain(
        node.NodeSummary("n1", [word()], incidents=[(incident, None)], changes=("n1 was booted",))
    )
    assert (explanation.cause, explanation.lines[-1].text) == ("gpu_fell_off_bus", "n1 was booted")


def test_a_node_without_data_is_not_called_healthy() -> None:
    assert node.explain(node.NodeSummary("n1")).headline == "no scheduler or exporter reports this node now"


@pytest.mark.parametrize("domain", ["job=llm", "pod=ml/notebook", "rack=r1", "namespace=ml", "model=chat"])
def test_evidence_of_every_kind_of_place_takes_at_most_twenty_queries(domain: str) -> None:
    counting = CountingEngine(head.Head())
    incident = an_incident("training_slow", fleet.Place("main", domain=domain), family="training")
    facts_about(incident, engine=counting)
    assert counting.query_count <= 20
