"""Check Kubernetes objects: monitors find their Services, ports and a Prometheus, and GPU pods run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchkeeper.doctor.stack import matching
from watchkeeper.doctor.stack.facts import KubernetesObjects, Raw, StackFinding
from watchkeeper.readers import json_facts as facts

SHOWN = 5
# The GPU Operator starts its components in this order, and each waits for those before it (its README).
OPERATOR_ORDER = (
    "nvidia-driver", "nvidia-container-toolkit", "nvidia-operator-validator", "nvidia-device-plugin",
    "gpu-feature-discovery", "nvidia-dcgm", "nvidia-mig",
)  # fmt: skip
OPERATOR_NAMES = ("nvidia-", "gpu-feature-discovery", "gpu-operator")
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
EXPORTERS = ("dcgm-exporter", "watchkeeper-agent")
# dial tcp 10.96.0.1:443: i/o timeout
API_SERVER = re.compile(r"dial tcp [\d.]+:(?:443|6443): (?:i/o timeout|connect: [a-z ]+)")
PORTS = frozenset({9100, 9400})


def monitors_not_selected(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    for kind, monitors in (("serviceMonitor", cluster.service_monitors), ("podMonitor", cluster.pod_monitors)):
        for monitor in monitors:
            selectors = {
                matching.full_name(server): facts.mapping(matching.spec(server), f"{kind}Selector")
                for server in cluster.prometheuses
            }
            labels = matching.labels(monitor)
            if not selectors or any(matching.selects(selector, labels) for selector in selectors.values()):
                continue
            texts = (f"{server} selects {matching.selector_text(selector)}" for server, selector in selectors.items())
            yield StackFinding(
                "monitors_not_selected",
                f"No Prometheus selects the {kind[0].upper()}{kind[1:]} {matching.full_name(monitor)}",
                (f"its labels are {matching.labels_text(labels)}", *texts),
                "Add the selected label (kube-prometheus-stack: release: NAME), or install the stack with "
                f"prometheus.prometheusSpec.{kind}SelectorNilUsesHelmValues=false",
            )


def monitors_without_service(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    for monitor, services in _monitored(cluster):
        if services:
            continue
        selector = matching.selector_text(facts.mapping(matching.spec(monitor), "selector"))
        yield StackFinding(
            "monitors_without_service",
            f"The ServiceMonitor {matching.full_name(monitor)} selects no Service",
            (f"it selects {selector} in {matching.namespaces_text(monitor)}", *_nearest(cluster, monitor)),
            "Select labels of the Service, not of its pods: kubectl get svc -A --show-labels. "
            "GPU Operator: app=nvidia-dcgm-exporter; chart of the exporter: app.kubernetes.io/name=dcgm-exporter",
        )


def wrong_port_names(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    for monitor, services in _monitored(cluster):
        ports = {facts.text(port, "name") for service in services for port in matching.ports(service)}
        endpoints = facts.items(matching.spec(monitor), "endpoints")
        missing = sorted({facts.text(facts.mapping(endpoint), "port") for endpoint in endpoints} - ports - {""})
        if services and missing:
            yield StackFinding(
                "wrong_port_names",
                f"The ServiceMonitor {matching.full_name(monitor)} selects a missing port: {', '.join(missing)}",
                tuple(
                    f"Service {matching.full_name(service)} has {_ports_text(service)}" for service in services[:SHOWN]
                ),
                "Use the port name of the Service; GPU Operator: gpu-metrics, chart of the exporter: metrics",
            )


def services_without_pods(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    for _, services in _monitored(cluster):
        for service in services:
            selector = facts.mapping(matching.spec(service), "selector")
            space = matching.namespace(service)
            pods = [pod for pod in cluster.pods if matching.namespace(pod) == space]
            has_pods = any(matching.has_all(matching.labels(pod), selector) for pod in pods)
            if selector and cluster.pods and not has_pods:
                yield StackFinding(
                    "services_without_pods",
                    f"The Service {matching.full_name(service)} has no pods",
                    (f"it selects pods with {matching.labels_text(selector)} in {space}",),
                    "Start the exporter, or correct the selector of the Service",
                )


def stuck_in_init(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    """GPU Operator pods that wait in Init, and the first component that is not ready."""
    operator_pods = [pod for pod in cluster.pods if matching.name(pod).startswith(OPERATOR_NAMES)]
    in_init = [pod for pod in operator_pods if _init_state(pod)]
    if not in_init:
        return
    first = min((pod for pod in operator_pods if not is_ready(pod)), key=_start_order)
    yield StackFinding(
        "stuck_in_init",
        f"{len(in_init)} pods of the GPU Operator wait in Init; the first component that is not ready is "
        f"{matching.full_name(first)}",
        tuple(f"{matching.full_name(pod)} on {matching.node(pod)}: {_init_state(pod)}" for pod in in_init[:SHOWN]),
        f"Check it first, the others wait for it: kubectl -n {matching.namespace(first)} describe pod "
        f"{matching.name(first)}, and the log of its init container (-c)",
    )


def exporters_failing(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    for pod in cluster.pods:
        why = _waiting_reason(pod)
        if matching.has_name_part(pod, EXPORTERS) and why:
            yield StackFinding(
                "exporters_failing",
                f"The exporter pod {matching.full_name(pod)} does not run",
                (f"on {matching.node(pod)}: {why}",),
                f"kubectl -n {matching.namespace(pod)} logs {matching.name(pod)} "
                "--previous; usual reasons: no driver, no nvidia runtime, port 9400 in use on the node",
            )


def gpu_nodes_without_exporter(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    """GPU nodes without an exporter pod, and the taint that the exporter does not tolerate."""
    exporters = [pod for pod in cluster.pods if matching.has_name_part(pod, EXPORTERS)]
    sets = [daemon_set for daemon_set in cluster.daemon_sets if matching.has_name_part(daemon_set, EXPORTERS)]
    if not exporters and not sets:
        return
    for node in cluster.nodes:
        name = matching.name(node)
        if not matching.has_gpus(node) or any(matching.node(pod) == name for pod in exporters):
            continue
        tolerated = [facts.mapping(facts.mapping(matching.spec(daemon_set), "template"), "spec") for daemon_set in sets]
        why = ", ".join(
            f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
            for taint in matching.taints(node)
            if not any(matching.tolerates(spec, taint) for spec in tolerated)
        )
        yield StackFinding(
            "gpu_nodes_without_exporter",
            f"The node {name} has GPUs but no exporter",
            (f"taints that the exporter does not tolerate: {why}" if why else "the exporter tolerates all taints",),
            "Add a toleration to the DaemonSet" if why else "Check the nodeSelector of the DaemonSet and its events",
        )


def control_plane_taint(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    """Pods that are pending because of the control plane taint, as on a cluster with one node.

    Kubernetes 1.35 does not name the taint in its message; if all nodes have it, it is the reason.
    """
    taints = [(matching.name(node), [taint.get("key") for taint in matching.taints(node)]) for node in cluster.nodes]
    tainted = [name for name, keys in taints if any(key in CONTROL_PLANE for key in keys)]
    refused = [(pod, refusal) for pod in cluster.pods if "taint" in (refusal := _scheduling_refusal(pod))]
    if len(tainted) < len(cluster.nodes):
        refused = [(pod, refusal) for pod, refusal in refused if any(key in refusal for key in CONTROL_PLANE)]
    if not tainted or not refused:
        return
    texts = (f"{matching.full_name(pod)}: {refusal[:160]}" for pod, refusal in refused[:SHOWN])
    yield StackFinding(
        "control_plane_taint",
        f"{len(refused)} pods are pending because of the control plane taint of the nodes",
        (f"tainted: {', '.join(tainted[:SHOWN])}", *texts),
        "On a cluster with one node: kubectl taint nodes --all node-role.kubernetes.io/control-plane-",
    )


def cluster_dns_down(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    dns = [pod for pod in cluster.pods if matching.labels(pod).get("k8s-app") == "kube-dns"]
    down = [pod for pod in dns if not is_ready(pod)]
    if dns and len(down) == len(dns):
        yield StackFinding(
            "cluster_dns_down",
            f"No pod of the cluster DNS is ready (0 of {len(dns)})",
            tuple(f"{matching.full_name(pod)}: {_waiting_reason(pod) or 'not ready'}" for pod in down[:SHOWN]),
            "kubectl -n kube-system logs -l k8s-app=kube-dns; without DNS, pods cannot resolve any name. "
            "Usual reasons: no CNI, or a loop in /etc/resolv.conf",
        )


def api_unreachable(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    failed = [(pod, message) for pod in cluster.pods if (message := _api_error(pod))]
    if failed:
        yield StackFinding(
            "api_unreachable",
            f"{len(failed)} pods cannot connect to the API server",
            tuple(f"{matching.full_name(pod)} on {matching.node(pod)}: {message}" for pod, message in failed[:SHOWN]),
            "Check kube-proxy and the CNI of these nodes, and NetworkPolicies: kubectl -n kube-system get pods",
        )


def host_ports_taken(cluster: KubernetesObjects) -> Iterator[StackFinding]:
    pods_by_port: dict[tuple[str, int], list[Raw]] = {}
    for pod in cluster.pods:
        for port in matching.host_ports(pod) & PORTS:
            if matching.node(pod):
                pods_by_port.setdefault((matching.node(pod), port), []).append(pod)
    for (node, port), pods in pods_by_port.items():
        if len(pods) > 1:
            yield StackFinding(
                "host_ports_taken",
                f"{len(pods)} pods on {node} need host port {port}",
                tuple(matching.full_name(pod) for pod in pods[:SHOWN]),
                f"Keep one of them, or change the port of one; on the node: ss -ltnp 'sport = :{port}'",
            )
    for pod in cluster.pods:
        if "free ports" in _scheduling_refusal(pod):
            yield StackFinding(
                "host_ports_taken",
                f"The pod {matching.full_name(pod)} is pending: its host port is in use",
                (_scheduling_refusal(pod)[:200],),
                "Find the pod with this port: kubectl get pods -A -o wide; remove one of them or change a port",
            )


def _monitored(cluster: KubernetesObjects) -> Iterator[tuple[Raw, list[Raw]]]:
    """Each ServiceMonitor with the Services that it selects."""
    for monitor in cluster.service_monitors:
        selector = facts.mapping(matching.spec(monitor), "selector")
        in_reach = (
            service for service in cluster.services if matching.selects_namespace(monitor, matching.namespace(service))
        )
        yield monitor, [service for service in in_reach if matching.selects(selector, matching.labels(service))]


def _nearest(cluster: KubernetesObjects, monitor: Raw) -> tuple[str, ...]:
    """Services that look like exporters, with their labels."""
    services = [service for service in cluster.services if matching.has_name_part(service, EXPORTERS)]
    namespaces = matching.namespaces_text(monitor)
    return tuple(
        f"Service {matching.full_name(service)} has {matching.labels_text(matching.labels(service))}"
        + ("" if matching.selects_namespace(monitor, matching.namespace(service)) else f", not in {namespaces}")
        for service in services[:SHOWN]
    )


def _ports_text(service: Raw) -> str:
    ports = matching.ports(service)
    return ", ".join(f"{facts.text(port, 'name') or 'unnamed port'} ({port.get('port')})" for port in ports)


def _start_order(pod: Raw) -> int:
    name = matching.name(pod)
    return next((at for at, start in enumerate(OPERATOR_ORDER) if name.startswith(start)), len(OPERATOR_ORDER))


def _init_state(pod: Raw) -> str:
    """The init container that is not complete; empty if all are."""
    states = list(facts.items(facts.mapping(pod, "status"), "initContainerStatuses"))
    done = sum(bool(facts.mapping(facts.mapping(container, "state"), "terminated")) for container in states)
    for container in states:
        state = facts.mapping(container, "state")
        terminated = facts.mapping(state, "terminated")
        if not terminated or terminated.get("exitCode"):
            reason = facts.text(facts.mapping(state, "waiting"), "reason")
            return f"Init:{done}/{len(states)}, {facts.text(container, 'name')}" + (f" ({reason})" if reason else "")
    return ""


def _waiting_reason(pod: Raw) -> str:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in facts.items(facts.mapping(pod, "status"), kind):
            reason = facts.text(facts.mapping(facts.mapping(container, "state"), "waiting"), "reason")
            if reason and reason not in ("PodInitializing", "ContainerCreating"):
                return f"{facts.text(container, 'name')} waiting: {reason}"
    return ""


def pod_state(pod: Raw) -> str:
    """Why a pod is not ready, in a few words."""
    phase = facts.text(facts.mapping(pod, "status"), "phase")
    return _init_state(pod) or _waiting_reason(pod) or (phase if phase != "Running" else "") or "not ready"


def _api_error(pod: Raw) -> str:
    """The API server error in the termination message of a container; empty without one."""
    for container in facts.items(facts.mapping(pod, "status"), "containerStatuses"):
        for state in (facts.mapping(container, "state"), facts.mapping(container, "lastState")):
            message = facts.text(facts.mapping(state, "terminated"), "message", intern_it=False)
            match = API_SERVER.search(message)
            if match is not None:
                return match[0]
    return ""


def is_ready(pod: Raw) -> bool:
    status = facts.mapping(pod, "status")
    ready = (
        condition.get("status") == "True"
        for condition in facts.items(status, "conditions")
        if condition.get("type") == "Ready"
    )
    return facts.text(status, "phase") == "Succeeded" or any(ready)


def _scheduling_refusal(pod: Raw) -> str:
    """The scheduler's message why the pod is pending; empty if it is scheduled."""
    for condition in facts.items(facts.mapping(pod, "status"), "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return facts.text(condition, "message", intern_it=False)
    return ""
