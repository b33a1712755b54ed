"""The operator's side: does each monitor find its service, its port and a Prometheus, and do the GPU pods come up?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from watchkeeper.doctor.stack import matching
from watchkeeper.doctor.stack.facts import KubernetesObjects, Raw, Stack, StackFinding
from watchkeeper.readers import json_facts as facts

SHOWN = 5
# The GPU Operator starts its parts in this order, and each waits for those before it (its README).
OPERATOR_ORDER = (
    "nvidia-driver",
    "nvidia-container-toolkit",
    "nvidia-operator-validator",
    "nvidia-device-plugin",
    "gpu-feature-discovery",
    "nvidia-dcgm",
    "nvidia-mig",
)
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
EXPORTERS = ("dcgm-exporter", "watchkeeper-agent")
# dial tcp 10.96.0.1:443: i/o timeout
API_SERVER = re.compile(r"dial tcp [\d.]+:(?:443|6443): (?:i/o timeout|connect: [a-z ]+)")
PORTS = frozenset({9100, 9400})


def monitors_not_selected(stack: Stack) -> Iterator[StackFinding]:
    """A monitor that no Prometheus picks up, because its labels are not what the Prometheus wants."""
    cluster = stack.kubernetes
    if cluster is None or not cluster.prometheuses:
        return
    for kind, monitors in (("serviceMonitor", cluster.service_monitors), ("podMonitor", cluster.pod_monitors)):
        for monitor in monitors:
            wants = [facts.mapping(facts.mapping(server, "spec"), f"{kind}Selector") for server in cluster.prometheuses]
            if any(matching.selects(want, matching.labels(monitor)) for want in wants):
                continue
            yield StackFinding(
                "monitors_not_selected",
                f"No Prometheus picks up the {kind[0].upper()}{kind[1:]} {matching.name(monitor)}",
                (
                    f"it has the labels {matching.labels_text(matching.labels(monitor))}",
                    *(
                        f"{matching.name(server)} wants {matching.selector_text(want)}"
                        for server, want in zip(cluster.prometheuses, wants, strict=True)
                    ),
                ),
                "Give it the label that is wanted (kube-prometheus-stack: release: NAME), or install the stack with "
                f"prometheus.prometheusSpec.{kind}SelectorNilUsesHelmValues=false",
            )


def monitors_without_service(stack: Stack) -> Iterator[StackFinding]:
    """A ServiceMonitor whose selector fits no Service, or none that has pods."""
    for monitor, services in _monitored(stack):
        selector = facts.mapping(facts.mapping(monitor, "spec"), "selector")
        if services:
            continue
        near = _nearest(stack.kubernetes, monitor)
        yield StackFinding(
            "monitors_without_service",
            f"The ServiceMonitor {matching.name(monitor)} selects no Service",
            (f"it wants {matching.selector_text(selector)} in {matching.namespaces_text(monitor)}", *near),
            "Let the selector name labels of the Service itself, not of its pods: kubectl get svc -A --show-labels. "
            "GPU Operator: app=nvidia-dcgm-exporter; the exporter's own chart: app.kubernetes.io/name=dcgm-exporter",
        )


def wrong_port_names(stack: Stack) -> Iterator[StackFinding]:
    """An endpoint of a ServiceMonitor whose port no selected Service has."""
    for monitor, services in _monitored(stack):
        ports = {facts.text(port, "name") for service in services for port in matching.ports(service)}
        port_names = [
            facts.text(facts.mapping(service), "port")
            for service in facts.items(facts.mapping(monitor, "spec"), "endpoints")
        ]
        lost = sorted({port for port in port_names if port and port not in ports})
        if services and lost:
            yield StackFinding(
                "wrong_port_names",
                f"The ServiceMonitor {matching.name(monitor)} selects the port {', '.join(lost)}, which does not exist",
                tuple(
                    f"Service {matching.name(service)} has " + ", ".join(map(_port_words, matching.ports(service)))
                    for service in services[:SHOWN]
                ),
                "Write the name as the Service has it; GPU Operator: gpu-metrics, the exporter's own chart: metrics",
            )


def services_without_pods(stack: Stack) -> Iterator[StackFinding]:
    """A monitored Service whose selector fits no pod."""
    cluster = stack.kubernetes
    for _, services in _monitored(stack):
        for service in services:
            selector = facts.mapping(facts.mapping(service, "spec"), "selector")
            space = matching.namespace(service)
            if not selector or cluster is None or not cluster.pods:
                continue
            if any(matching.has_all(matching.labels(pod), selector) for pod in matching.inside(cluster.pods, space)):
                continue
            yield StackFinding(
                "services_without_pods",
                f"The Service {matching.name(service)} has no pods behind it",
                (f"it wants pods with {matching.labels_text(selector)} in {space}",),
                "Start the exporter, or correct the Service's selector",
            )


def stuck_in_init(stack: Stack) -> Iterator[StackFinding]:
    """Operator pods that wait: named is the first part that others wait for."""
    cluster = stack.kubernetes
    if cluster is None:
        return
    waiting = [pod for pod in cluster.pods if _is_nvidia(pod) and _init_of(pod)]
    if not waiting:
        return
    first = min((pod for pod in cluster.pods if _is_nvidia(pod) and not _is_ready(pod)), key=_place)
    yield StackFinding(
        "stuck_in_init",
        f"{len(waiting)} pods of the GPU Operator wait in Init; the first part that is not ready is "
        f"{matching.name(first)}",
        tuple(f"{matching.name(pod)} on {matching.node(pod)}: {_init_of(pod)}" for pod in waiting[:SHOWN]),
        f"Look there first, the others wait for it: kubectl -n {matching.namespace(first)} describe pod "
        f"{facts.text(facts.mapping(first, 'metadata'), 'name')}, and its log with -c of the init container",
    )


def exporters_failing(stack: Stack) -> Iterator[StackFinding]:
    """Exporter pods that end again and again, or wait for something that does not come."""
    cluster = stack.kubernetes
    for pod in cluster.pods if cluster is not None else ():
        why = _waiting(pod)
        if matching.is_called(pod, EXPORTERS) and why:
            yield StackFinding(
                "exporters_failing",
                f"The exporter pod {matching.name(pod)} does not run",
                (f"on {matching.node(pod)}: {why}",),
                f"kubectl -n {matching.namespace(pod)} logs {facts.text(facts.mapping(pod, 'metadata'), 'name')} "
                "--previous; usual reasons: no driver, no nvidia runtime, port 9400 taken on the host",
            )


def gpu_nodes_without_exporter(stack: Stack) -> Iterator[StackFinding]:
    """GPU nodes on which no exporter runs, and the taint that keeps it away."""
    cluster = stack.kubernetes
    if cluster is None:
        return
    exporters = [pod for pod in cluster.pods if matching.is_called(pod, EXPORTERS)]
    sets = [daemon_set for daemon_set in cluster.daemon_sets if matching.is_called(daemon_set, EXPORTERS)]
    if not exporters and not sets:
        return
    for node in cluster.nodes:
        name = facts.text(facts.mapping(node, "metadata"), "name")
        if not matching.has_gpus(node) or any(matching.node(pod) == name for pod in exporters):
            continue
        tolerated = [
            facts.mapping(facts.mapping(facts.mapping(daemon_set, "spec"), "template"), "spec") for daemon_set in sets
        ]
        taints = [
            taint for taint in matching.taints(node) if not any(matching.tolerates(spec, taint) for spec in tolerated)
        ]
        why = ", ".join(f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}" for taint in taints)
        yield StackFinding(
            "gpu_nodes_without_exporter",
            f"The node {name} has GPUs and no exporter",
            (f"taints that the exporter does not tolerate: {why}" if why else "no taint keeps it away",),
            "Give the DaemonSet a toleration for it" if why else "Look at the DaemonSet's nodeSelector and its events",
        )


def control_plane_taint(stack: Stack) -> Iterator[StackFinding]:
    """Pods that wait because every node is a control plane, as on a cluster of one machine.

    Kubernetes 1.35 no longer names the taint in its refusal; where all nodes have it, it is meant.
    """
    cluster = stack.kubernetes
    if cluster is None:
        return
    tainted = [
        node for node in cluster.nodes if any(taint.get("key") in CONTROL_PLANE for taint in matching.taints(node))
    ]
    refused = [pod for pod in cluster.pods if "taint" in _scheduling_refusal(pod)]
    named = [pod for pod in refused if any(key in _scheduling_refusal(pod) for key in CONTROL_PLANE)]
    waiting = refused if len(tainted) == len(cluster.nodes) else named
    if not tainted or not waiting:
        return
    names = ", ".join(facts.text(facts.mapping(node, "metadata"), "name") for node in tainted[:SHOWN])
    yield StackFinding(
        "control_plane_taint",
        f"{len(waiting)} pods wait because nodes are control planes, which take no other work",
        (f"tainted: {names}", *(f"{matching.name(pod)}: {_scheduling_refusal(pod)[:160]}" for pod in waiting[:SHOWN])),
        "On a cluster of one machine: kubectl taint nodes --all node-role.kubernetes.io/control-plane-",
    )


def cluster_dns_down(stack: Stack) -> Iterator[StackFinding]:
    """CoreDNS does not answer, so nobody in the cluster finds anybody."""
    cluster = stack.kubernetes
    if cluster is None:
        return
    dns = [pod for pod in cluster.pods if matching.labels(pod).get("k8s-app") == "kube-dns"]
    down = [pod for pod in dns if not _is_ready(pod)]
    if dns and len(down) == len(dns):
        yield StackFinding(
            "cluster_dns_down",
            f"No pod of the cluster's DNS is ready ({len(dns)} of {len(dns)} are not)",
            tuple(f"{matching.name(pod)}: {_waiting(pod) or 'not ready'}" for pod in down[:SHOWN]),
            "kubectl -n kube-system logs -l k8s-app=kube-dns; without it pods reach neither the API server by name nor "
            "each other. A CNI that is missing, or a loop in /etc/resolv.conf, are the usual reasons",
        )


def api_unreachable(stack: Stack) -> Iterator[StackFinding]:
    """Pods that ended because they could not reach the API server."""
    cluster = stack.kubernetes
    cut_off = [(pod, message) for pod in (cluster.pods if cluster is not None else ()) if (message := _api_error(pod))]
    if cut_off:
        yield StackFinding(
            "api_unreachable",
            f"{len(cut_off)} pods cannot reach the API server",
            tuple(f"{matching.name(pod)} on {matching.node(pod)}: {message}" for pod, message in cut_off[:SHOWN]),
            "Look at kube-proxy and the CNI of these nodes, and at NetworkPolicies: kubectl -n kube-system get pods",
        )


def host_ports_taken(stack: Stack) -> Iterator[StackFinding]:
    """Two pods of one node that want the same port of the host: 9100 and 9400 are popular."""
    cluster = stack.kubernetes
    pods_by_port: dict[tuple[str, int], list[Raw]] = {}
    for pod in cluster.pods if cluster is not None else ():
        for port in matching.host_ports(pod) & PORTS:
            if matching.node(pod):
                pods_by_port.setdefault((matching.node(pod), port), []).append(pod)
    for (node, port), pods in pods_by_port.items():
        if len(pods) > 1:
            yield StackFinding(
                "host_ports_taken",
                f"{len(pods)} pods of {node} want port {port} of the host",
                tuple(matching.name(pod) for pod in pods[:SHOWN]),
                f"Leave one of them, or give one another port; on the node: ss -ltnp 'sport = :{port}'",
            )
    for pod in cluster.pods if cluster is not None else ():
        if "free ports" in _scheduling_refusal(pod):
            yield StackFinding(
                "host_ports_taken",
                f"The pod {matching.name(pod)} waits for a port of the host that is taken",
                (_scheduling_refusal(pod)[:200],),
                "See which pod has it: kubectl get pods -A -o wide; leave one of them or change a port",
            )


def _monitored(stack: Stack) -> Iterator[tuple[Raw, list[Raw]]]:
    """Each ServiceMonitor with the Services that it selects."""
    cluster = stack.kubernetes
    for monitor in cluster.service_monitors if cluster is not None else ():
        assert cluster is not None
        selector = facts.mapping(facts.mapping(monitor, "spec"), "selector")
        yield (
            monitor,
            [
                service
                for service in cluster.services
                if matching.looks_into(monitor, matching.namespace(service))
                and matching.selects(selector, matching.labels(service))
            ],
        )


def _nearest(cluster: KubernetesObjects | None, monitor: Raw) -> tuple[str, ...]:
    """Services that look like exporters, with the labels that they do have."""
    services = [
        service
        for service in (cluster.services if cluster is not None else ())
        if matching.is_called(service, EXPORTERS)
    ]
    there = matching.namespaces_text(monitor)
    return tuple(
        f"Service {matching.name(service)} has {matching.labels_text(matching.labels(service))}"
        + ("" if matching.looks_into(monitor, matching.namespace(service)) else f", outside of {there}")
        for service in services[:SHOWN]
    )


def _port_words(port: Mapping[str, Any]) -> str:
    return f"{facts.text(port, 'name') or 'a port without a name'} ({port.get('port')})"


def _is_nvidia(pod: Raw) -> bool:
    name = facts.text(facts.mapping(pod, "metadata"), "name")
    return name.startswith(("nvidia-", "gpu-feature-discovery", "gpu-operator"))


def _place(pod: Raw) -> int:
    name = facts.text(facts.mapping(pod, "metadata"), "name")
    return next((at for at, start in enumerate(OPERATOR_ORDER) if name.startswith(start)), len(OPERATOR_ORDER))


def _init_of(pod: Raw) -> str:
    """What an init container waits for; empty where none does."""
    states = list(facts.items(facts.mapping(pod, "status"), "initContainerStatuses"))
    done = sum(bool(facts.mapping(facts.mapping(container, "state"), "terminated")) for container in states)
    for container in states:
        state = facts.mapping(container, "state")
        ended = facts.mapping(state, "terminated")
        if not ended or ended.get("exitCode"):
            reason = facts.text(facts.mapping(state, "waiting"), "reason")
            return f"Init:{done}/{len(states)}, {facts.text(container, 'name')}" + (f" ({reason})" if reason else "")
    return ""


def _waiting(pod: Raw) -> str:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in facts.items(facts.mapping(pod, "status"), kind):
            reason = facts.text(facts.mapping(facts.mapping(container, "state"), "waiting"), "reason")
            if reason and reason not in ("PodInitializing", "ContainerCreating"):
                return f"{facts.text(container, 'name')} waits: {reason}"
    return ""


def _api_error(pod: Raw) -> str:
    """What a container said about the API server as it ended; empty where it said nothing of it."""
    for container in facts.items(facts.mapping(pod, "status"), "containerStatuses"):
        for state in (facts.mapping(container, "state"), facts.mapping(container, "lastState")):
            message = facts.text(facts.mapping(state, "terminated"), "message", intern_it=False)
            match = API_SERVER.search(message)
            if match is not None:
                return match[0]
    return ""


def _is_ready(pod: Raw) -> bool:
    conditions = facts.items(facts.mapping(pod, "status"), "conditions")
    is_done = facts.text(facts.mapping(pod, "status"), "phase") == "Succeeded"
    return is_done or any(
        condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
    )


def _scheduling_refusal(pod: Raw) -> str:
    """Why no node takes the pod."""
    for condition in facts.items(facts.mapping(pod, "status"), "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return facts.text(condition, "message", intern_it=False)
    return ""
