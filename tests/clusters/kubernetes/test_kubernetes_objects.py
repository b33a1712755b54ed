"""Objects of the API become facts: what current servers write, what old ones wrote, and what nobody should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.support.clusters.api_server import Raw, node, pod, waiting
from watchkeeper.clusters.kubernetes import kubernetes_view
from watchkeeper.errors import CollectError
from watchkeeper.model.workloads import WorkloadState
from watchkeeper.readers.clusters import kubernetes_objects as objects

GPU = "GPU-0d7b8a1c-5e1f-4a3b-9c2d-111111111111"


def test_a_node_keeps_its_gpus_and_not_the_labels_of_its_cpu() -> None:
    raw = node("n1", labels={"nvidia.com/gpu.count": "8", "feature.node.kubernetes.io/cpu-model.id": "143"})
    found = objects.read_node(raw)
    assert found.capacity == (("nvidia.com/gpu", 8),)
    assert found.labels == {"nvidia.com/gpu.count": "8"}
    assert found.is_ready is True
    assert found.addresses == ("10.0.0.2", "n1")


@pytest.mark.parametrize(
    ("status", "ready", "state"),
    [("True", True, "Ready"), ("False", False, "NotReady"), ("Unknown", None, "Unknown"), (None, None, "Unknown")],
)
def test_a_node_is_ready_not_ready_or_unheard_of(status: str | None, ready: bool | None, state: str) -> None:
    raw = node("n1")
    said = {"type": "Ready", "status": status, "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting."}
    raw["status"]["conditions"] = [] if status is None else [said]
    found = kubernetes_view.scheduled_node(objects.read_node(raw), "main")
    assert (found.is_ready, found.state) == (ready, state)
    assert found.reason == ("NodeStatusUnknown: Kubelet stopped posting." if status in ("False", "Unknown") else "")


def test_a_cordoned_node_says_so_as_kubectl_does() -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    found = kubernetes_view.scheduled_node(objects.read_node(node("n1", unschedulable=True, taints=[taint])), "main")
    assert (found.state, found.is_schedulable) == ("Ready,SchedulingDisabled", False)
    assert found.taints == ("nvidia.com/gpu=present:NoSchedule",)


def test_a_node_whose_plugin_is_gone_still_has_its_gpus_and_offers_none() -> None:
    raw = node("n1")
    raw["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    found = kubernetes_view.scheduled_node(objects.read_node(raw), "main")
    assert (found.gpus, found.allocatable_gpus) == (8, 0)


def test_a_node_that_should_have_gpus_and_tells_no_number_has_an_unknown_one() -> None:
    found = objects.read_node(node("n1", gpus=None, labels={"nvidia.com/gpu.present": "true"}))
    assert found.has_gpus
    assert kubernetes_view.scheduled_node(found, "main").gpus is None


def test_a_pod_asks_for_what_its_containers_ask_for_together() -> None:
    raw = pod("p", gpus=2, node="n1")
    more = {"limits": {"nvidia.com/mig-1g.10gb": "1", "cpu": "4"}, "requests": {"nvidia.com/mig-1g.10gb": "1"}}
    raw["spec"]["containers"].append({"name": "side", "resources": more})
    raw["spec"]["initContainers"] = [{"name": "check", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    assert objects.read_pod(raw).gpus == 3


def test_a_pod_without_gpus_is_kept_small() -> None:
    raw = pod("web", node="n1")
    raw["metadata"]["labels"] = {"app": "web"}
    found = objects.read_pod(raw)
    assert (found.name, found.node, found.phase, found.gpus) == ("web", "n1", "Running", 0)
    assert (found.labels, found.containers) == ({}, ())


def test_a_newer_server_tells_which_devices_a_pod_has() -> None:
    resources = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": GPU, "health": "Healthy"}]}]
    statuses = [{"name": "main", "allocatedResourcesStatus": resources}]
    assert objects.read_pod(pod("p", gpus=1, node="n1", containerStatuses=statuses)).device_ids == (GPU,)


def test_a_container_that_ended_says_how() -> None:
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    statuses = [{"name": "main", "restartCount": 3, "lastState": last}]
    (container,) = objects.read_pod(pod("p", gpus=1, node="n1", containerStatuses=statuses)).containers
    assert (container.restarts, container.last_reason, container.last_exit_code) == (3, "OOMKilled", 137)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu. preemption: 0/3 …",
            "Insufficient nvidia.com/gpu",
        ),
        (
            "0/9 nodes are available: 1 Insufficient nvidia.com/gpu, 8 node(s) had untolerated taint {a: b}.",
            "Insufficient nvidia.com/gpu",
        ),
        (
            "0/3 nodes are available: 3 node(s) had taint {nvidia.com/gpu: present}, that the pod didn't tolerate.",
            "node(s) had taint",
        ),
        (
            "0/2 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: }.",
            "node(s) had untolerated taint",
        ),
        ("0/2 nodes are available: 2 node(s) had untolerated taint(s).", "node(s) had untolerated taint(s)"),
        (
            "0/4 nodes are available: 1 Insufficient cpu, 4 node(s) didn't match Pod's node affinity/selector.",
            "node(s) didn't match Pod's node affinity/selector",
        ),
        ("a sentence of a plugin", "Unschedulable"),
    ],
)
def test_why_a_pod_waits_is_one_reason_in_the_schedulers_words(message: str, reason: str) -> None:
    found = kubernetes_view.scheduled_pod(objects.read_pod(pod("p", gpus=1, **waiting(message))), "main", gpus=1)
    assert (found.state, found.reason, found.detail) == (WorkloadState.PENDING, reason, message)


def test_a_pod_that_has_its_gpus_and_does_not_start_says_the_last_warning() -> None:
    message = 'no runtime for "nvidia" is configured'
    warned = objects.WarningEvent("FailedCreatePodSandBox", message)
    stuck = objects.read_pod(pod("p", gpus=1, node="n1", phase="Pending"))
    found = kubernetes_view.scheduled_pod(stuck, "main", gpus=1, warning=warned)
    assert (found.state, found.reason, found.detail) == (WorkloadState.RUNNING, "FailedCreatePodSandBox", message)
    runs = kubernetes_view.scheduled_pod(objects.read_pod(pod("p", gpus=1, node="n1")), "main", gpus=1, warning=warned)
    assert (runs.reason, runs.detail) == ("", "")


def test_a_pod_that_a_gate_holds_back_says_so() -> None:
    raw = pod("p", gpus=1, **waiting("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"))
    assert kubernetes_view.scheduled_pod(objects.read_pod(raw), "main", gpus=1).reason == "SchedulingGated"


def test_a_pod_that_nobody_has_looked_at_says_that() -> None:
    assert (
        kubernetes_view.scheduled_pod(objects.read_pod(pod("p", gpus=1)), "main", gpus=1).reason == "not scheduled yet"
    )


@pytest.mark.parametrize(
    ("labels", "annotations", "queue"),
    [
        ({"kueue.x-k8s.io/queue-name": "gold"}, {}, "gold"),
        ({}, {"scheduling.volcano.sh/queue-name": "night"}, "night"),
        ({}, {}, "research"),
    ],
)
def test_a_queue_is_who_queues_or_the_namespace(
    labels: dict[str, str], annotations: dict[str, str], queue: str
) -> None:
    raw = pod("p", gpus=1)
    raw["metadata"] |= {"labels": labels, "annotations": annotations}
    assert objects.read_pod(raw).queue == queue


CLASS = "gpu.nvidia.com"
TWO = [{"driver": CLASS, "device": "gpu-0"}, {"driver": CLASS, "device": "gpu-1"}, {"driver": "dra.net", "device": "x"}]


@pytest.mark.parametrize(
    ("request_", "status", "gpus"),
    [
        ({"exactly": {"deviceClassName": CLASS, "count": 2}}, {}, 2),
        ({"exactly": {"deviceClassName": CLASS}}, {}, 1),
        ({"deviceClassName": CLASS, "count": 4}, {}, 4),
        ({"exactly": {"deviceClassName": "dra.net", "count": 2}}, {}, 0),
        ({"exactly": {"deviceClassName": CLASS}}, {"allocation": {"devices": {"results": TWO}}}, 2),
    ],
)
def test_a_claim_counts_the_gpus_it_has_or_asks_for(
    request_: dict[str, Any], status: dict[str, Any], gpus: int
) -> None:
    about = {"name": "c", "namespace": "research"}
    raw = {"metadata": about, "spec": {"devices": {"requests": [request_]}}, "status": status}
    assert objects.read_claim(raw).gpus == gpus


def test_a_pod_knows_the_claims_that_were_made_for_it_from_a_template() -> None:
    raw = pod("p", node="n1", resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "p-gpu-x7"}])
    raw["spec"]["resourceClaims"] = [
        {"name": "gpu", "resourceClaimTemplateName": "one"},
        {"resourceClaimName": "shared"},
    ]
    assert objects.read_pod(raw).claims == ("shared", "p-gpu-x7")


@pytest.mark.parametrize(
    ("spec", "succeeded", "wanted"),
    [
        ({}, 0, 1),
        ({"parallelism": 3}, 5, 3),
        ({"parallelism": 3, "completions": 10}, 4, 3),
        ({"parallelism": 3, "completions": 10}, 9, 1),
        ({"parallelism": 3, "completions": 2}, 3, 0),
    ],
)
def test_a_job_near_its_end_wants_only_the_pods_that_are_left(spec: Raw, succeeded: int, wanted: int) -> None:
    raw = {"metadata": {"name": "j", "namespace": "ml"}, "spec": spec, "status": {"succeeded": succeeded}}
    assert objects.read_job(raw).expected_pods == wanted


def test_a_quota_keeps_its_lines_about_gpus() -> None:
    hard = {"requests.nvidia.com/gpu": "16", "requests.cpu": "100", "requests.nvidia.com/mig-1g.10gb": "2k"}
    raw = {"metadata": {"name": "q", "namespace": "ml"}, "status": {"hard": hard, "used": {}}}
    lines = objects.read_quota(raw).lines
    assert lines == (("requests.nvidia.com/gpu", 16, None), ("requests.nvidia.com/mig-1g.10gb", 2000, None))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("metadata", "spec", "status", "labels", "containers", "conditions", "resources", "limits", "nvidia.com/gpu")


@examples(60)
@given(st.dictionaries(st.sampled_from(NAMES), st.dictionaries(st.sampled_from((*NAMES, "name")), JSON | st.just("n"))))
def test_no_object_makes_the_readers_fail_with_anything_but_our_error(raw: dict[str, Any]) -> None:
    for read in (
        objects.read_node,
        objects.read_pod,
        objects.read_quota,
        objects.read_job,
        objects.read_claim,
        objects.read_warning,
        objects.is_job_unfinished,
    ):
        try:
            read(raw)
        except CollectError as error:
            assert "has no name" in error.problem  # noqa: PT017
