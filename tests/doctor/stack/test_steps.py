"""The steps that the API server and Prometheus answer, their order, and the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchkeeper.catalogue import setup_steps
from watchkeeper.doctor.stack import steps
from watchkeeper.doctor.stack.facts import KubernetesObjects, Prometheus, Stack, Target
from watchkeeper.doctor.stack.gather import KINDS

Raw = dict[str, Any]
ROOT = Path(__file__).parents[3]


def node(name: str, *, ready: bool = True, message: str = "", allocatable: str = "8", **labels: str) -> Raw:
    condition = {"type": "Ready", "status": "True" if ready else "False", "message": message}
    status = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": allocatable}}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status | {"conditions": [condition]}}


def pod(name: str, *, ready: bool = True, on: str = "n1", **labels: str) -> Raw:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    metadata = {
        "name": name,
        "namespace": "kube-system",
        "labels": {key.replace("_", "-"): labels[key] for key in labels},
    }
    return {"metadata": metadata, "spec": {"nodeName": on}, "status": status}


FLANNEL, DNS = pod("kube-flannel-ds-x"), pod("coredns-x", k8s_app="kube-dns")
OPERATOR = pod("nvidia-driver-daemonset-x")
OURS = (pod("watchkeeper-agent-x"), pod("watchkeeper-hub-0", on="n2"))
PODS = (FLANNEL, DNS, OPERATOR, *OURS)


def checked(
    nodes: tuple[Raw, ...] = (node("n1"),), pods: tuple[Raw, ...] = PODS, **more: Any
) -> dict[str, tuple[str, str]]:
    cluster = KubernetesObjects(nodes=nodes, pods=pods, **more)
    return {step.step: (step.state, step.now) for step in steps.check(Stack(kubernetes=cluster)) if step.was_read}


def test_a_cluster_that_runs_passes_every_step_of_the_api_server() -> None:
    found = checked()
    assert [name for name, (state, _) in found.items() if state != "passed"] == []
    assert list(found) == [row.step for row in setup_steps.steps() if row.where == "cluster"]
    assert found["gpus_allocatable"] == ("passed", "8 GPUs on 1 nodes")


@pytest.mark.parametrize(
    ("step", "nodes", "pods", "now"),
    [
        ("cni", (node("n1", ready=False),), (DNS, OPERATOR, *OURS), "no pod has the name of a CNI"),
        (
            "cni",
            (node("n1"),),
            (pod("cilium-x", ready=False), DNS, OPERATOR, *OURS),
            "kube-system/cilium-x (not ready)",
        ),
        ("nodes_ready", (node("n1"), node("n2", ready=False, message="kubelet is late")), PODS, "n2: kubelet is late"),
        ("cluster_dns", (node("n1"),), (FLANNEL, OPERATOR, *OURS), "no pod with the label k8s-app=kube-dns"),
        ("gpu_operator", (node("n1", allocatable="0"),), (FLANNEL, DNS, *OURS), "not installed"),
        ("gpus_allocatable", (node("n1", allocatable="6"),), PODS, "n1: 6 of 8"),
        ("watchkeeper", (node("n1"),), (FLANNEL, DNS, OPERATOR), "no pod of watchkeeper-agent or watchkeeper-hub"),
        ("watchkeeper", (node("n1"), node("n2")), PODS, "no agent on the GPU nodes n2"),
    ],
)
def test_the_first_fault_on_the_way_is_the_next_step(
    step: str, nodes: tuple[Raw, ...], pods: tuple[Raw, ...], now: str
) -> None:
    following = steps.next_step(steps.check(Stack(kubernetes=KubernetesObjects(nodes=nodes, pods=pods))))
    assert following is not None
    assert (following.step, following.state) == (step, "failed")
    assert now in following.now


def test_a_gpu_node_whose_device_plugin_has_not_registered_is_not_passed() -> None:
    labelled = node("n1", allocatable="0", **{"nvidia.com/gpu.present": "true"})
    labelled["status"]["capacity"] = {}
    assert checked((labelled,))["gpus_allocatable"] == ("failed", "not all GPUs are allocatable: n1: 0 of 0")


def test_gpus_of_the_dra_driver_are_not_judged_by_the_device_plugin() -> None:
    labelled = node("n1", allocatable="0", **{"nvidia.com/gpu.present": "true"})
    labelled["status"]["capacity"] = {}
    dra = pod("nvidia-dra-driver-gpu-kubelet-plugin-x")
    assert checked((labelled,), (*PODS, dra))["gpus_allocatable"][0] == "unknown"
    # It may run beside the device plugin, for NVLink domains only.
    assert checked((node("n1"),), (*PODS, dra))["gpus_allocatable"] == ("passed", "8 GPUs on 1 nodes")


def test_what_may_not_be_listed_is_unknown_and_never_passed() -> None:
    unread = {path.format(ns=""): "answered 403" for path in KINDS.values()}
    assert {state for state, _ in checked((), (), unread=unread).values()} == {"unknown"}
    refused = dict.fromkeys(unread, "connection refused")
    assert checked((), (), unread=refused)["api_server"] == ("failed", "connection refused")


def test_one_namespace_does_not_answer_for_the_pods_of_all() -> None:
    found = checked(namespace="research")
    assert found["nodes_ready"][0] == "passed"
    assert found["cluster_dns"] == ("unknown", "only the namespace research was read")


@pytest.mark.parametrize(
    ("targets", "state", "now"),
    [
        ([Target("dcgm", "n1:9400", "http://n1:9400/metrics", is_up=True)], "passed", "1 of 1 targets are up"),
        ([Target("dcgm", "n1:9400", "http://n1:9400/metrics", is_up=False, error="refused")], "failed", "refused"),
        ([Target("node", "n1:9100", "http://n1:9100/metrics", is_up=True)], "failed", "no target of a GPU exporter"),
    ],
)
def test_the_targets_of_gpu_exporters_are_the_last_step(targets: list[Target], state: str, now: str) -> None:
    server = Prometheus("http://127.0.0.1:9090", targets=tuple(targets))
    last = steps.check(Stack(prometheus=server))[-1]
    assert (last.step, last.state, now in last.now) == ("scrape_targets", state, True)


def test_a_step_that_cannot_be_checked_from_here_says_what_checks_it() -> None:
    found = steps.check(Stack())
    assert {(step.state, step.was_read) for step in found} == {("unknown", False)}
    assert {step.action.partition(":")[0] for step in found} == {
        "On each node",
        "With a kubeconfig",
        "With the URL of Prometheus",
    }
    assert all(step.by_hand for step in found)
    following = steps.next_step(found)
    assert following is not None
    assert following.step == setup_steps.steps()[0].step


def test_the_how_to_has_every_step_and_every_port() -> None:
    page = (ROOT / "docs/howto/bare-metal.md").read_text()
    assert [row.step for row in setup_steps.steps() if f"`{row.step}`" not in page] == []
    assert [str(row) for row in setup_steps.ports() if f"| {str(row).partition(' ')[0]} | " not in page] == []
