"""What is wrong around the operator: monitors, services, ports, pods, taints, DNS."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.doctor.stack import examine, matching
from watchkeeper.doctor.stack.facts import KubernetesObjects, Stack, StackFinding

Raw = dict[str, Any]
APP = {"app": "nvidia-dcgm-exporter"}


def kubernetes_object(name: str, *, namespace: str = "gpu-operator", labels: Raw | None = None, **more: Any) -> Raw:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels or {}}, **more}


def monitor(port: str = "gpu-metrics", *, selector: Raw | None = None, **spec: Any) -> Raw:
    monitor_spec = {"selector": {"matchLabels": selector or APP}, "endpoints": [{"port": port}], **spec}
    return kubernetes_object("dcgm", labels={"release": "prom"}, spec=monitor_spec)


def prometheus(**labels: str) -> Raw:
    return kubernetes_object("main", namespace="monitoring", spec={"serviceMonitorSelector": {"matchLabels": labels}})


def pod(name: str, *, ready: bool = True, node: str = "n1", labels: Raw | None = None, **status: Any) -> Raw:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return kubernetes_object(name, labels=labels, spec={"nodeName": node}, status={"conditions": conditions, **status})


SERVICE = kubernetes_object(
    "nvidia-dcgm-exporter", labels=APP, spec={"selector": APP, "ports": [{"name": "gpu-metrics", "port": 9400}]}
)
EXPORTER = pod("nvidia-dcgm-exporter-x", labels=APP)
NODE = {"metadata": {"name": "n1"}, "spec": {}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}


def findings(**kinds: Any) -> dict[str, StackFinding]:
    objects = {"services": (SERVICE,), "pods": (EXPORTER,), "nodes": (NODE,), "service_monitors": (monitor(),)} | kinds
    return {finding.check: finding for finding in examine.examine(Stack(kubernetes=KubernetesObjects(**objects)))}


def test_a_monitor_that_finds_its_service_port_and_prometheus_is_fine() -> None:
    assert findings(prometheuses=(prometheus(release="prom"),)) == {}


def test_a_monitor_with_another_release_label_is_not_selected() -> None:
    finding = findings(prometheuses=(prometheus(release="kube-prometheus-stack"),))["monitors_not_selected"]
    assert finding.evidence == (
        "its labels are release=prom",
        "monitoring/main selects release=kube-prometheus-stack",
    )


def test_a_monitor_with_a_selector_for_another_install_selects_no_service() -> None:
    finding = findings(service_monitors=(monitor(selector={"app": "dcgm-exporter"}),))["monitors_without_service"]
    assert finding.evidence[0] == "it selects app=dcgm-exporter in gpu-operator"
    assert "has app=nvidia-dcgm-exporter" in finding.evidence[1]


def test_a_monitor_selects_only_its_own_namespace_by_default() -> None:
    elsewhere = monitor(namespaceSelector={"matchNames": ["default"]})
    assert "not in default" in findings(service_monitors=(elsewhere,))["monitors_without_service"].evidence[1]
    assert findings(service_monitors=(monitor(namespaceSelector={"any": True}),)) == {}


def test_a_wrong_port_name_is_shown_with_the_names_of_the_service() -> None:
    finding = findings(service_monitors=(monitor("metrics"),))["wrong_port_names"]
    assert finding.evidence == ("Service gpu-operator/nvidia-dcgm-exporter has gpu-metrics (9400)",)


def test_a_service_without_pods_is_found() -> None:
    assert "services_without_pods" in findings(pods=(pod("other"),))


def test_operator_pods_in_init_lead_to_the_component_they_wait_for() -> None:
    waiting = {"initContainerStatuses": [{"name": "toolkit-validation", "state": {"running": {}}}]}
    pods = (
        EXPORTER,
        pod("nvidia-device-plugin-daemonset-a", ready=False, **waiting),
        pod("nvidia-driver-daemonset-b", ready=False),
        pod("nvidia-operator-validator-c", ready=False, **waiting),
    )
    finding = findings(pods=pods)["stuck_in_init"]
    assert finding.title.endswith("the first component that is not ready is gpu-operator/nvidia-driver-daemonset-b")
    assert finding.evidence[0] == "gpu-operator/nvidia-device-plugin-daemonset-a on n1: Init:0/1, toolkit-validation"


def test_an_exporter_that_crashes_is_found() -> None:
    broken = {"containerStatuses": [{"name": "x", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    finding = findings(pods=(pod("nvidia-dcgm-exporter-y", labels=APP, ready=False, **broken),))["exporters_failing"]
    assert finding.evidence == ("on n1: x waiting: CrashLoopBackOff",)


@pytest.mark.parametrize(("toleration", "is_blind"), [({"operator": "Exists"}, False), ({"key": "other"}, True)])
def test_a_taint_that_keeps_the_exporter_away_is_named(toleration: Raw, is_blind: bool) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    tainted = {"metadata": {"name": "n2"}, "spec": {"taints": [taint]}, "status": NODE["status"]}
    daemon = kubernetes_object("nvidia-dcgm-exporter", spec={"template": {"spec": {"tolerations": [toleration]}}})
    finding = findings(nodes=(NODE, tainted), daemon_sets=(daemon,))["gpu_nodes_without_exporter"]
    assert finding.title == "The node n2 has GPUs but no exporter"
    assert ("nvidia.com/gpu=present:NoSchedule" in finding.evidence[0]) == is_blind


@pytest.mark.parametrize("taint", ["taint {node-role.kubernetes.io/control-plane: }", "taint(s)"])
def test_pods_with_a_control_plane_taint_are_distinguished_from_others(taint: str) -> None:
    node = {**NODE, "spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}}
    message = f"0/1 nodes are available: 1 node(s) had untolerated {taint}."
    refused = [{"type": "PodScheduled", "status": "False", "message": message}]
    pending = kubernetes_object("train", spec={}, status={"conditions": refused})
    assert "control_plane_taint" in findings(nodes=(node,), pods=(EXPORTER, pending))
    assert "control_plane_taint" not in findings(nodes=(node,))


def test_dns_that_is_down_and_host_ports_in_use_are_found() -> None:
    dns = kubernetes_object("coredns-1", namespace="kube-system", labels={"k8s-app": "kube-dns"}, spec={}, status={})
    assert "No pod of the cluster DNS is ready" in findings(pods=(EXPORTER, dns))["cluster_dns_down"].title
    spec = {"nodeName": "n1", "hostNetwork": True, "containers": [{"ports": [{"containerPort": 9100}]}]}
    two = tuple(kubernetes_object(name, spec=spec, status={}) for name in ("a", "b"))
    assert findings(pods=(EXPORTER, *two))["host_ports_taken"].title == "2 pods on n1 need host port 9100"


def test_a_pod_that_cannot_connect_to_the_api_server_is_found() -> None:
    message = 'error: Get "https://10.96.0.1:443/api?timeout=32s": dial tcp 10.96.0.1:443: i/o timeout'
    ended = {"containerStatuses": [{"name": "x", "lastState": {"terminated": {"message": message}}}]}
    finding = findings(pods=(EXPORTER, pod("gpu-operator-1", **ended)))["api_unreachable"]
    assert finding.evidence == ("gpu-operator/gpu-operator-1 on n1: dial tcp 10.96.0.1:443: i/o timeout",)


@pytest.mark.parametrize(
    ("demand", "is_met"),
    [
        ({"key": "a", "operator": "In", "values": ["1", "2"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "Exists"}, False),
        ({"key": "b", "operator": "DoesNotExist"}, True),
    ],
)
def test_selectors_mean_what_the_api_says(demand: Raw, is_met: bool) -> None:
    assert matching.selects({"matchExpressions": [demand]}, {"a": "1"}) is is_met
