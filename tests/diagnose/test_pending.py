"""The cause of a pending pod, and the smallest change."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.diagnose import pod as pods
from watchkeeper.diagnose.pending import GPU, NodeOffer, PodRequest, judge_placement
from watchkeeper.readers.clusters.kubernetes_objects import Taint

TAINT = Taint("nvidia.com/gpu", "present", "NoSchedule")


def offer(name: str = "n1", *, free: int = 8, **more: Any) -> NodeOffer:
    return NodeOffer(name, {GPU: 8}, {GPU: 8}, {GPU: 8 - free}, **more)


def test_the_cheapest_change_wins_over_the_nearest_capacity() -> None:
    verdict = judge_placement(PodRequest("ml/a", {GPU: 4}), [offer("full", free=1), offer("tainted", taints=(TAINT,))])
    assert (verdict.cause, verdict.smallest_change) == (
        "untolerated_taint", "tainted: tolerate nvidia.com/gpu=present:NoSchedule",
    )  # fmt: skip
    assert [(node.node, node.text) for node in verdict.nodes][1] == (
        "full", "has 1 of 8 nvidia.com/gpu free, 4 requested",
    )  # fmt: skip


def test_a_selector_names_the_value_that_the_node_has() -> None:
    ask = PodRequest("ml/a", {GPU: 1}, selector={"gpu": "b200"})
    verdict = judge_placement(ask, [offer(labels={"gpu": "h100"}), offer("n2", labels={})])
    assert (verdict.cause, verdict.smallest_change) == ("node_selector_mismatch", "n1: change the selector to gpu=h100")


def test_scattered_gpus_are_fragmentation_and_too_few_are_not() -> None:
    scattered = judge_placement(PodRequest("ml/a", {GPU: 8}), [offer("n1", free=5), offer("n2", free=5)])
    assert scattered.cause == "gpu_fragmentation"
    assert (
        judge_placement(PodRequest("ml/a", {GPU: 8}), [offer("n1", free=5), offer("n2", free=2)]).cause
        == "insufficient_gpu_capacity"
    )


def test_a_mig_profile_that_no_node_has_is_a_misconfiguration() -> None:
    sliced = NodeOffer("n1", {"nvidia.com/mig-1g.10gb": 7}, {"nvidia.com/mig-1g.10gb": 7})
    verdict = judge_placement(PodRequest("ml/a", {"nvidia.com/mig-3g.40gb": 1}), [sliced])
    assert verdict.cause == "mig_misconfig"
    assert "request nvidia.com/mig-1g.10gb, or change its MIG layout" in verdict.smallest_change


def test_a_node_with_no_allocatable_gpus_has_no_device_plugin() -> None:
    verdict = judge_placement(PodRequest("ml/a", {GPU: 1}), [NodeOffer("n1", {GPU: 8}, {GPU: 0})])
    assert verdict.cause == "no_device_plugin"


def test_a_pod_without_a_gpu_request_needs_no_node_check() -> None:
    assert judge_placement(PodRequest("ml/a"), [offer()]).cause == "missing_gpu_request"


@given(free=st.lists(st.integers(0, 8), min_size=1, max_size=6), requested=st.integers(1, 20), taint=st.booleans())
def test_a_pod_fits_exactly_when_no_cause_is_named(free: list[int], requested: int, taint: bool) -> None:
    offers = [offer(f"n{at}", free=some, taints=(TAINT,) if taint else ()) for at, some in enumerate(free)]
    verdict = judge_placement(PodRequest("ml/a", {GPU: requested}), offers)
    fits = not taint and max(free) >= requested
    assert (verdict.cause is None) == fits
    assert bool(verdict.smallest_change) == (not fits)


def listing(*items: dict[str, Any]) -> str:
    return json.dumps({"kind": "List", "items": list(items)})


def a_pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {GPU: "4"}}}
    body = {"containers": [container], **spec}
    return {"kind": "Pod", "metadata": {"name": "a", "namespace": "ml"}, "spec": body, "status": {"phase": "Pending"}}


def a_node(**status: Any) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    counts = {"capacity": {GPU: "8"}, "allocatable": {GPU: "8"}, "conditions": ready, **status}
    taint = {"key": "gpu", "effect": "NoSchedule"}
    return {"kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": [taint]}, "status": counts}


def test_pasted_objects_give_the_same_verdict() -> None:
    explanation = pods.explain_pasted(listing(a_pod(), a_node()), "ml", "a")
    assert explanation is not None
    assert (explanation.cause, explanation.change) == ("untolerated_taint", "n1: tolerate gpu:NoSchedule")


def test_a_pod_on_a_gpu_node_without_a_gpu_request_is_found() -> None:
    pod = a_pod(nodeName="n1", containers=[{"name": "main"}])
    explanation = pods.explain_pasted(listing(pod, a_node()), "ml", "a")
    assert explanation is not None
    assert (explanation.cause, explanation.headline) == (
        "missing_gpu_request",
        "runs on a GPU node and requests no GPU",
    )


def test_a_described_pod_is_explained_by_the_schedulers_message() -> None:
    words = "0/3 nodes are available: 3 node(s) had untolerated taint {nvidia.com/gpu: present}."
    explanation = pods.explain_pasted(f"Warning  FailedScheduling  2m  default-scheduler  {words}", "ml", "a")
    assert explanation is not None
    assert (explanation.cause, explanation.why) == ("untolerated_taint", words)
    assert "paste `kubectl get pod,node -A -o json`" in explanation.missing_data[0]
    assert pods.explain_pasted("nothing of the kind", "ml", "a") is None
