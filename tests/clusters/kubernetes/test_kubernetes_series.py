"""What the API says becomes series under kube-state-metrics' names, and the shipped rules understand them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import watchkeeper
from tests.clusters.kubernetes.watched import DEFAULTS, watched
from tests.support.clusters.api_server import EVENTS, JOBS, NODES, PODS, QUOTAS, Raw, node, pod, waiting
from watchkeeper.clusters import clusters
from watchkeeper.clusters.kubernetes.kubernetes_source import KubernetesSource
from watchkeeper.config.settings import KubernetesSeries
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.scrape import fleet, status_series
from watchkeeper.store.head.head import Head

AT_MS = 1_790_000_000_000
RULES = Path(watchkeeper.__file__).parent / "packs" / "rules" / "platform.yaml"
INSUFFICIENT = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
GPUS = [f"GPU-0d7b8a1c-5e1f-4a3b-9c2d-{number:012d}" for number in range(8)]


def busy_cluster() -> dict[str, list[Raw]]:
    """Two nodes of eight GPUs; one is full, the other cordoned; one pod waits, one job may not start."""
    is_ready = [{"type": "Ready", "status": "True"}]
    train = pod("train", gpus=8, node="n1", startTime="2026-11-15T05:01:00Z", conditions=is_ready)
    late = pod("late", gpus=4, **waiting(INSUFFICIENT))
    late["spec"] |= {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    template = {"spec": {"containers": pod("x", gpus=1)["spec"]["containers"]}}
    job = {"metadata": {"name": "sweep", "namespace": "ml"}, "spec": {"parallelism": 3, "template": template}}
    forbidden = {
        "metadata": {"name": "e1", "namespace": "ml"},
        "involvedObject": {"kind": "Job", "namespace": "ml", "name": "sweep"},
        "reason": "FailedCreate",
        "message": 'Error creating: pods "sweep-x" is forbidden: exceeded quota: gpus, requested: …',
    }
    counts = {"requests.nvidia.com/gpu": "8"}
    return {
        NODES: [node("n1", labels={"nvidia.com/gpu.product": "NVIDIA-H200"}), node("n2", unschedulable=True)],
        PODS: [train, late, pod("web", node="n1")],
        QUOTAS: [{"metadata": {"name": "gpus", "namespace": "ml"}, "status": {"hard": counts, "used": counts}}],
        JOBS: [job],
        EVENTS: [forbidden],
    }


@pytest.fixture(scope="module")
def source() -> KubernetesSource:
    return watched(busy_cluster())


def engine_with(source: KubernetesSource, *more: Sample) -> EmbeddedEngine:
    engine = EmbeddedEngine(Head())
    engine.appender.append([*clusters.Clusters([source]).samples({}, AT_MS), *more])
    return engine


def ask(engine: EmbeddedEngine, expr: str) -> dict[str, float]:
    return {str(labels): value for labels, value in engine.instant(expr, AT_MS).latest().items()}


def test_the_shipped_rules_find_who_waits_and_why_without_kube_state_metrics(source: KubernetesSource) -> None:
    engine = engine_with(source)
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    for rule in rules:
        if "record" in rule:
            answer = engine.instant(rule["expr"], AT_MS).latest()
            engine.appender.append(
                [Sample(labels.with_labels(__name__=rule["record"]), AT_MS, value) for labels, value in answer.items()]
            )
    true = {rule["alert"]: ask(engine, rule["expr"]) for rule in rules if "alert" in rule}
    fires = {name: answer for name, answer in true.items() if answer}
    assert {"GPUPodWaitsForCapacity", "GPUQuotaExceeded"} == set(fires)
    ((waits, gpus),) = fires["GPUPodWaitsForCapacity"].items()
    assert waits.endswith('{cluster="main", namespace="research", pod="late"}')
    assert gpus == 4.0


@pytest.mark.parametrize(
    ("expr", "answer"),
    [
        ('kube_node_status_allocatable{resource="nvidia_com_gpu",node="n1"}', 8),
        ('kube_node_spec_unschedulable{node="n2"}', 1),
        ('kube_node_status_condition{node="n1",condition="Ready",status="true"}', 1),
        ('kube_node_labels{label_nvidia_com_gpu_product="NVIDIA-H200"}', 1),
        ('kube_pod_status_phase{pod="late",phase="Pending"}', 1),
        ('kube_pod_status_unschedulable{pod="late"}', 1),
        ('kube_pod_container_resource_requests{pod="train",node="n1",container="main"}', 8),
        ('kube_pod_start_time{pod="train"}', 1_794_718_860),
        ('kube_pod_info{pod="web",node="n1"}', 1),
        ('kube_resourcequota{namespace="ml",resourcequota="gpus",type="hard"}', 8),
        ('kube_job_spec_parallelism{job_name="sweep"} - kube_job_status_active', 3),
        ('watchkeeper_scheduler_gpus{state="capacity"}', 16),
        ('watchkeeper_scheduler_gpus{state="in_service"}', 8),
        ('watchkeeper_scheduler_gpus{state="allocated"}', 8),
        ('watchkeeper_pending_gpus{queue="research",reason="Insufficient nvidia.com/gpu"}', 4),
        ('watchkeeper_pending_gpus{queue="ml",reason="exceeded quota"}', 3),
        ('watchkeeper_pending_workloads{queue="research"}', 1),
        ('watchkeeper_quota_gpus{owner="ml",type="used"}', 8),
        ("watchkeeper_scheduler_up", 1),
    ],
)
def test_each_fact_has_its_usual_name(source: KubernetesSource, expr: str, answer: float) -> None:
    assert list(ask(engine_with(source), expr).values()) == [answer]


def test_the_longest_wait_of_a_queue_counts_from_the_pods_creation(source: KubernetesSource) -> None:
    created = 1_794_718_800
    engine = EmbeddedEngine(Head())
    at_ms = (created + 90) * 1000
    engine.appender.append(clusters.Clusters([source]).samples({}, at_ms))
    waits = engine.instant('watchkeeper_queue_wait_seconds{queue="research"}', at_ms).latest()
    assert list(waits.values()) == [90.0]


def test_a_kube_state_metrics_that_is_scraped_is_left_its_names(source: KubernetesSource) -> None:
    theirs = Labels({"__name__": "kube_node_status_capacity", "cluster": "main", "job": "kube-state-metrics"})
    engine = engine_with(source, Sample(theirs, AT_MS, 8.0))
    assert source.required_query is not None
    answer = engine.instant(source.required_query, AT_MS).frame.labels
    assert [labels["cluster"] for labels in answer] == ["main"]
    assert source.series(answer) == {}
    assert source.series([{"cluster": "another"}]) != {}


def test_our_own_series_are_not_taken_for_anothers(source: KubernetesSource) -> None:
    assert source.required_query is not None
    assert ask(engine_with(source), source.required_query) == {}


@pytest.mark.parametrize(("policy", "is_written"), [(KubernetesSeries.ALWAYS, True), (KubernetesSeries.NEVER, False)])
def test_who_decides_by_hand_is_obeyed(policy: KubernetesSeries, is_written: bool) -> None:
    source = watched({NODES: [node("n1")]}, replace(DEFAULTS, kubernetes_series=policy))
    assert source.required_query is None
    assert bool(source.series([])) is is_written


def holders(source: KubernetesSource, known: dict[Labels, float]) -> dict[str, str]:
    seen = fleet.ScrapedInventory()
    gpus = {uuid: fleet_model.Gpu(uuid, index=number) for number, uuid in enumerate(GPUS)}
    seen.record_page(fleet_model.Node("main", "n1"), gpus, at_ms=AT_MS, source="page")
    return {labels["UUID"]: labels["workload"] for labels in source.workload_series(seen, known)}


def test_a_pod_that_has_all_gpus_of_its_node_holds_each_of_them(source: KubernetesSource) -> None:
    assert holders(source, {}) == dict.fromkeys(GPUS, "train")


def test_what_an_exporter_says_is_not_said_again(source: KubernetesSource) -> None:
    told = Labels({"__name__": status_series.WORKLOAD_INFO, "UUID": GPUS[0], "workload": "train"})
    assert holders(source, {told: 1.0}) == dict.fromkeys(GPUS[1:], "train")


def test_device_ids_of_a_newer_server_name_the_holder_of_some_gpus() -> None:
    resources = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": GPUS[3]}, {"resourceID": f"{GPUS[4]}::1"}]}]
    some = pod("some", gpus=2, node="n1", containerStatuses=[{"name": "main", "allocatedResourcesStatus": resources}])
    blind = pod("blind", gpus=2, node="n1")
    assert holders(watched({NODES: [node("n1")], PODS: [some, blind]}), {}) == {GPUS[3]: "some", GPUS[4]: "some"}


def divided(name: str, resource: str, number: int, **labels: str) -> Raw:
    """A node that counts slices or shares of its GPUs."""
    made = node(name, gpus=0, labels={f"nvidia.com/gpu.{key}": value for key, value in labels.items()})
    for counts in (made["status"]["capacity"], made["status"]["allocatable"]):
        counts[f"nvidia.com/{resource}"] = str(number)
    return made


def test_slices_and_shares_that_a_cluster_counts_are_parts_of_gpus() -> None:
    waits, holds = pod("waits", gpus=1, **waiting(INSUFFICIENT)), pod("holds", gpus=2, node="mixed")
    waits["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-2g.35gb": "1"}
    holds["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.18gb": "2"}
    nodes = [
        divided("mixed", "mig-1g.18gb", 14, product="NVIDIA-H200", count="2"),
        divided("single", "gpu", 8, product="NVIDIA-A30-MIG-1g.6gb"),
        divided("turns", "gpu", 32, product="NVIDIA-L40S-SHARED", count="8", replicas="4"),
    ]
    pods = [waits, holds, pod("cut", gpus=1, node="single"), pod("takes-turns", gpus=1, node="turns")]
    engine = engine_with(watched({NODES: nodes, PODS: pods}))
    found = engine.instant("watchkeeper_scheduler_gpus", AT_MS).latest()
    by_state = {labels["state"]: value for labels, value in found.items()}
    assert by_state["capacity"] == by_state["in_service"] == pytest.approx(2 + 2 + 8)
    assert by_state["allocated"] == pytest.approx(2 / 7 + 1 / 4 + 1 / 4)
    assert list(ask(engine, "watchkeeper_pending_gpus").values()) == [pytest.approx(2 / 7)]
