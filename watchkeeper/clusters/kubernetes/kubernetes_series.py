"""Build series of GPU nodes and GPU pods with the metric names of kube-state-metrics.

The shipped rules and public dashboards then work without it; if it is scraped (`KUBE_STATE_METRICS_QUERY`), the series
are not written. Names and labels are those of kube-state-metrics 2.17 (docs/metrics, read 2026-11), but only the
current phase and condition is written, and tolerations and node selectors only for pending pods.
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
# The clusters whose kube-state-metrics is scraped; every version of it has this metric.
KUBE_STATE_METRICS_QUERY = f'group by (cluster) (kube_node_status_capacity{{job!="{JOB}"}})'
# Node labels about GPUs and topology; others would only make the series long.
SHOWN_LABELS = ("nvidia.com/", "topology.kubernetes.io/", "network.topology.nvidia.com/", "node.kubernetes.io/instance")
NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")
WriteSample = Callable[..., None]
T = TypeVar("T")


class ClusterSeries:
    """The series of one cluster; those of unchanged objects are cached."""

    def __init__(self, watch: KubernetesWatch) -> None:
        self._watch = watch
        # By object: the object, whether it is on a GPU node, and its series.
        self._cached: dict[Key, tuple[object, bool, dict[Labels, float]]] = {}

    def build(self) -> dict[Labels, float]:
        watch = self._watch
        nodes = watch.nodes()
        with_gpus = {node.name for node in nodes if node.has_gpus}
        previous, self._cached = self._cached, {}
        series: dict[Labels, float] = {}
        for node in nodes:
            series |= self._series_of(previous, ("node", node.name), node, write=_write_node)
        for pod in watch.pods():
            is_on_gpu_node = pod.node in with_gpus
            key = ("pod", pod.namespace, pod.name)
            series |= self._series_of(previous, key, pod, write=_write_pod, is_on_gpu_node=is_on_gpu_node)
        for quota in watch.quotas():
            series |= self._series_of(previous, ("quota", quota.namespace, quota.name), quota, write=_write_quota)
        for job in watch.jobs():
            series |= self._series_of(previous, ("job", job.namespace, job.name), job, write=_write_job)
        return series

    def _series_of(
        self,
        previous: Mapping[Key, tuple[object, bool, dict[Labels, float]]],
        key: Key,
        resource: T,
        *,
        write: Callable[[T, bool, WriteSample], None],
        is_on_gpu_node: bool = False,
    ) -> dict[Labels, float]:
        cached = previous.get(key)
        if cached is None or cached[0] is not resource or cached[1] != is_on_gpu_node:
            series: dict[Labels, float] = {}

            def write_sample(name: str, value: float, /, **labels: str) -> None:
                series[Labels({METRIC_NAME: name, "cluster": self._watch.cluster, "job": JOB, **labels})] = float(value)

            write(resource, is_on_gpu_node, write_sample)
            cached = (resource, is_on_gpu_node, series)
        self._cached[key] = cached
        return cached[2]


def workload_series(
    watch: KubernetesWatch, gpus_of: Callable[[str], Iterable[Labels]], *, attributed: Iterable[Labels]
) -> dict[Labels, float]:
    """The pods on GPUs that are not in `attributed`, by the device ids of newer API servers or by GPU count."""
    # A pod that requests all GPUs of its node holds each of them. `gpus_of` returns the GPUs of a node as `cluster`,
    # `Hostname`, `UUID` and `gpu`; `attributed` are the series from agents and exporters.
    capacity = {node.name: sum(count for _, count in node.capacity) for node in watch.nodes()}
    attributed_uuids = {labels["UUID"] for labels in attributed if "UUID" in labels}
    series: dict[Labels, float] = {}
    for pod in watch.pods():
        if not pod.requests_gpus or not pod.node:
            continue
        devices = (pod_resources.AllocatedDevice("", "", "", text).device for text in pod.device_ids)
        device_ids = {device.key for device in devices if device is not None}
        holder = {"workload_kind": "pod", "workload": pod.name, "namespace": pod.namespace, "team": pod.namespace}
        has_all_gpus = pod.gpus == capacity.get(pod.node)
        for gpu in gpus_of(pod.node) if device_ids or has_all_gpus else ():
            if gpu["UUID"] not in attributed_uuids and (gpu["UUID"] in device_ids or (has_all_gpus and not device_ids)):
                series[Labels({METRIC_NAME: status_series.WORKLOAD_INFO, **gpu, **holder})] = 1.0
    return series


def _write_node(node: objects.KubernetesNode, _: bool, write: WriteSample) -> None:
    node_label = {"node": node.name}
    write("kube_node_info", 1, **node_label, internal_ip=next(iter(node.addresses), ""))
    write("kube_node_spec_unschedulable", node.is_cordoned, **node_label)
    for kind, status in node.conditions:
        condition_label = {**node_label, "condition": kind}
        for possible in ("True", "False", "Unknown") if kind == "Ready" else (status,):
            write("kube_node_status_condition", possible == status, **condition_label, status=possible.lower())
    for name, counts in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        for resource, count in counts:
            resource_labels = {"resource": _sanitize_resource(resource), "unit": "integer"}
            write(f"kube_node_status_{name}", count, **node_label, **resource_labels)
    for taint in node.taints:
        write("kube_node_spec_taint", 1, **node_label, key=taint.key, value=taint.value, effect=taint.effect)
    if node.has_gpus:
        shown = ((name, value) for name, value in node.labels.items() if name.startswith(SHOWN_LABELS))
        write(
            "kube_node_labels",
            1,
            **node_label,
            **{f"label_{NOT_A_NAME.sub('_', name)}": value for name, value in shown},
        )


def _write_pod(pod: objects.KubernetesPod, is_on_gpu_node: bool, write: WriteSample) -> None:
    """All series for a pod that uses GPUs; only `kube_pod_info` for another pod on a GPU node."""
    pod_labels, is_pending = _pod_labels(pod), pod.is_scheduled is False
    is_gpu_pod = pod.requests_gpus or bool(pod.claims) or pod.runtime_class.startswith("nvidia")
    if is_gpu_pod or is_on_gpu_node:
        kind, _, name = pod.owner.partition("/")
        write("kube_pod_info", 1, **pod_labels, node=pod.node, created_by_kind=kind, created_by_name=name)
    if not is_gpu_pod:
        return
    write("kube_pod_status_phase", 1, **pod_labels, phase=pod.phase)
    write("kube_pod_status_scheduled", 1, **pod_labels, condition="false" if is_pending else "true")
    write("kube_pod_status_ready", pod.is_ready is True, **pod_labels, condition="true")
    if pod.started_at is not None:
        write("kube_pod_start_time", pod.started_at, **pod_labels)
    if pod.runtime_class:
        write("kube_pod_runtimeclass_name_info", 1, **pod_labels, runtimeclass_name=pod.runtime_class)
    if is_pending:
        _write_pending_pod(pod, write)
    for container in pod.containers:
        _write_container(pod, container, write)


def _write_pending_pod(pod: objects.KubernetesPod, write: WriteSample) -> None:
    pod_labels = _pod_labels(pod)
    if pod.reason == "Unschedulable":
        write("kube_pod_status_unschedulable", 1, **pod_labels)
    for toleration in pod.tolerations:
        taint_labels = {"key": toleration.key, "value": toleration.value, "effect": toleration.effect}
        write("kube_pod_tolerations", 1, **pod_labels, **taint_labels)
    selectors = {f"nodeselector_{NOT_A_NAME.sub('_', key)}": value for key, value in pod.node_selector.items()}
    if selectors:
        write("kube_pod_nodeselectors", 1, **pod_labels, **selectors)


def _write_container(pod: objects.KubernetesPod, container: objects.Container, write: WriteSample) -> None:
    container_labels = {**_pod_labels(pod), "container": container.name}
    for resource, count in container.gpus:
        request_labels = {"node": pod.node, "resource": _sanitize_resource(resource), "unit": "integer"}
        write("kube_pod_container_resource_requests", count, **container_labels, **request_labels)
    write("kube_pod_container_status_restarts_total", container.restarts, **container_labels)
    if container.last_reason:
        write("kube_pod_container_status_last_terminated_reason", 1, **container_labels, reason=container.last_reason)
    if container.last_exit_code is not None:
        write("kube_pod_container_status_last_terminated_exitcode", container.last_exit_code, **container_labels)


def _write_job(job: objects.KubernetesJob, _: bool, write: WriteSample) -> None:
    if job.gpus:
        job_labels = {"namespace": job.namespace, "job_name": job.name}
        write("kube_job_spec_parallelism", job.parallelism, **job_labels)
        write("kube_job_status_active", job.active, **job_labels)


def _write_quota(quota: objects.Quota, _: bool, write: WriteSample) -> None:
    quota_labels = {"namespace": quota.namespace, "resourcequota": quota.name}
    for resource, hard, used in quota.lines:
        for kind, count in (("hard", hard), ("used", used)):
            if count is not None:
                write("kube_resourcequota", count, **quota_labels, resource=resource, type=kind)


def _pod_labels(pod: objects.KubernetesPod) -> Mapping[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name}


def _sanitize_resource(resource: str) -> str:
    """The resource name as in kube-state-metrics: nvidia_com_gpu for nvidia.com/gpu."""
    return NOT_A_NAME.sub("_", resource)
