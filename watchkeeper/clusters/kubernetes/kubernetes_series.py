"""What the Kubernetes API says of GPU nodes and GPU pods, under the names that kube-state-metrics gives it.

With these the shipped rules and other people's dashboards work without kube-state-metrics. Where one is scraped, its
series are the truth and these are not made: the hub asks `SEEN_EXPR` to find out. Names and labels are those of
kube-state-metrics 2.17 (docs/metrics, read 2026-11), with two savings: of phases and conditions only the one that is
so is written, and tolerations and selectors only of pods that wait. `job="watchkeeper"` tells them from the real ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from watchkeeper.clusters.kubernetes.kubernetes_resource import Key
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.readers.clusters import pod_resources
from watchkeeper.scrape import status_series

JOB = "watchkeeper"
# Which clusters have a kube-state-metrics that is scraped; every version of it writes this name.
SEEN_EXPR = f'group by (cluster) (kube_node_status_capacity{{job!="{JOB}"}})'
# Labels of nodes that say something about GPUs or where they are; the rest would only make the series long.
SHOWN_LABELS = ("nvidia.com/", "topology.kubernetes.io/", "network.topology.nvidia.com/", "node.kubernetes.io/instance")
NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")
Write = Callable[..., None]
T = TypeVar("T")


class ClusterSeries:
    """The series of one cluster. What has not changed since the last time is not written anew."""

    def __init__(self, watch: KubernetesWatch) -> None:
        self._watch = watch
        # For each object: the object, whether its node has GPUs, and its series.
        self._written: dict[Key, tuple[object, bool, dict[Labels, float]]] = {}

    def now(self) -> dict[Labels, float]:
        """Everything at once."""
        watch = self._watch
        nodes = watch.nodes()
        with_gpus = {node.name for node in nodes if node.has_gpus}
        before, self._written = self._written, {}
        made: dict[Labels, float] = {}
        for node in nodes:
            made |= self._once(before, ("node", node.name), node, write=_write_node)
        for pod in watch.pods():
            is_beside = pod.node in with_gpus
            key = ("pod", pod.namespace, pod.name)
            made |= self._once(before, key, pod, write=_write_any_pod, is_beside=is_beside)
        for quota in watch.quotas():
            made |= self._once(before, ("quota", quota.namespace, quota.name), quota, write=_write_quota)
        for job in watch.jobs():
            made |= self._once(before, ("job", job.namespace, job.name), job, write=_write_job)
        return made

    def _once(
        self,
        before: Mapping[Key, tuple[object, bool, dict[Labels, float]]],
        key: Key,
        found: T,
        *,
        write: Callable[[T, bool, Write], None],
        is_beside: bool = False,
    ) -> dict[Labels, float]:
        known = before.get(key)
        if known is None or known[0] is not found or known[1] != is_beside:
            series: dict[Labels, float] = {}

            def put(name: str, value: float, /, **labels: str) -> None:
                series[Labels({METRIC_NAME: name, "cluster": self._watch.cluster, "job": JOB, **labels})] = float(value)

            write(found, is_beside, put)
            known = (found, is_beside, series)
        self._written[key] = known
        return known[2]


def workload_series(
    watch: KubernetesWatch, gpus_of: Callable[[str], Iterable[Labels]], *, known: Iterable[Labels]
) -> dict[Labels, float]:
    """Who holds a GPU, where no exporter's labels tell: by the device ids of newer API servers, or by exclusion.

    A pod that asked for all GPUs of its node holds each of them. `gpus_of` gives a node's GPUs as `cluster`,
    `Hostname`, `UUID` and `gpu`; `known` are the series that exporters' labels gave already.
    """
    capacity = {node.name: sum(count for _, count in node.capacity) for node in watch.nodes()}
    told = {labels["UUID"] for labels in known if "UUID" in labels}
    made: dict[Labels, float] = {}
    for pod in watch.pods():
        if not pod.requests_gpus or not pod.node:
            continue
        ids = {device for text in pod.device_ids if (device := _uuid(text))}
        has_all = pod.gpus == capacity.get(pod.node)
        for gpu in gpus_of(pod.node) if ids or has_all else ():
            if gpu["UUID"] not in told and (gpu["UUID"] in ids or (has_all and not ids)):
                held = {"workload_kind": "pod", "workload": pod.name, "namespace": pod.namespace, "team": pod.namespace}
                made[Labels({METRIC_NAME: status_series.WORKLOAD_INFO, **gpu, **held})] = 1.0
    return made


def _uuid(device_id: str) -> str | None:
    device = pod_resources.AllocatedDevice("", "", "", "", device_id).device
    return None if device is None else device.key


def _write_node(node: objects.KubernetesNode, _: bool, write: Write) -> None:
    at = {"node": node.name}
    write("kube_node_info", 1, **at, internal_ip=next(iter(node.addresses), ""))
    write("kube_node_spec_unschedulable", node.is_cordoned, **at)
    for kind, status in node.conditions:
        if kind == "Ready":
            for known in ("True", "False", "Unknown"):
                write("kube_node_status_condition", known == status, **at, condition=kind, status=known.lower())
        else:
            write("kube_node_status_condition", 1, **at, condition=kind, status=status.lower())
    for name, counts in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        for resource, count in counts:
            write(f"kube_node_status_{name}", count, **at, resource=_plain(resource), unit="integer")
    for taint in node.taints:
        write("kube_node_spec_taint", 1, **at, key=taint.key, value=taint.value, effect=taint.effect)
    if node.has_gpus:
        write("kube_node_labels", 1, **at, **_shown(node.labels))


def _write_any_pod(pod: objects.KubernetesPod, is_beside: bool, write: Write) -> None:
    """A pod that has to do with GPUs in full; of one that runs `is_beside` GPUs only that it does."""
    is_gpu_pod = pod.requests_gpus or bool(pod.claims) or pod.runtime_class.startswith("nvidia")
    if is_gpu_pod or is_beside:
        kind, _, name = pod.owner.partition("/")
        write("kube_pod_info", 1, **_of(pod), node=pod.node, created_by_kind=kind, created_by_name=name)
    if is_gpu_pod:
        _write_gpu_pod(pod, write)


def _write_gpu_pod(pod: objects.KubernetesPod, write: Write) -> None:
    of = _of(pod)
    is_waiting = pod.is_scheduled is False
    write("kube_pod_status_phase", 1, **of, phase=pod.phase)
    write("kube_pod_status_scheduled", 1, **of, condition="false" if is_waiting else "true")
    write("kube_pod_status_ready", pod.is_ready is True, **of, condition="true")
    if pod.started_at is not None:
        write("kube_pod_start_time", pod.started_at, **of)
    if pod.runtime_class:
        write("kube_pod_runtimeclass_name_info", 1, **of, runtimeclass_name=pod.runtime_class)
    if is_waiting:
        _write_waiting(pod, write)
    for container in pod.containers:
        _write_container(pod, container, write)


def _write_waiting(pod: objects.KubernetesPod, write: Write) -> None:
    of = _of(pod)
    if pod.reason == "Unschedulable":
        write("kube_pod_status_unschedulable", 1, **of)
    for one in pod.tolerations:
        write("kube_pod_tolerations", 1, **of, key=one.key, value=one.value, effect=one.effect)
    if pod.node_selector:
        chosen = {f"nodeselector_{NOT_A_NAME.sub('_', key)}": value for key, value in pod.node_selector.items()}
        write("kube_pod_nodeselectors", 1, **of, **chosen)


def _write_container(pod: objects.KubernetesPod, container: objects.Container, write: Write) -> None:
    of = {**_of(pod), "container": container.name}
    for resource, count in container.gpus:
        named = {"node": pod.node, "resource": _plain(resource), "unit": "integer"}
        write("kube_pod_container_resource_requests", count, **of, **named)
    write("kube_pod_container_status_restarts_total", container.restarts, **of)
    if container.last_reason:
        write("kube_pod_container_status_last_terminated_reason", 1, **of, reason=container.last_reason)
    if container.last_exit_code is not None:
        write("kube_pod_container_status_last_terminated_exitcode", container.last_exit_code, **of)


def _write_job(job: objects.KubernetesJob, _: bool, write: Write) -> None:
    if job.gpus:
        where = {"namespace": job.namespace, "job_name": job.name}
        write("kube_job_spec_parallelism", job.parallelism, **where)
        write("kube_job_status_active", job.active, **where)


def _write_quota(quota: objects.Quota, _: bool, write: Write) -> None:
    of = {"namespace": quota.namespace, "resourcequota": quota.name}
    for resource, hard, used in quota.lines:
        for kind, count in (("hard", hard), ("used", used)):
            if count is not None:
                write("kube_resourcequota", count, **of, resource=resource, type=kind)


def _of(pod: objects.KubernetesPod) -> Mapping[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name}


def _shown(labels: Mapping[str, str]) -> Mapping[str, str]:
    wanted = ((name, value) for name, value in labels.items() if name.startswith(SHOWN_LABELS))
    return {f"label_{NOT_A_NAME.sub('_', name)}": value for name, value in wanted}


def _plain(resource: str) -> str:
    """nvidia.com/gpu as kube-state-metrics writes it: nvidia_com_gpu."""
    return NOT_A_NAME.sub("_", resource)
