"""Render the kube-state-metrics page of the cluster: nodes, pods, quotas and the device plugin.

It omits pools that Slurm schedules. Pods are those of running jobs and those that faults create. The page has only the
state of Kubernetes objects, not the health of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watchkeeper.sim.effects import EffectTotals
from watchkeeper.sim.effects import PodFault as PodEffect
from watchkeeper.sim.fleet import FleetLayout
from watchkeeper.sim.jobs import SimJobKind, SimJobs
from watchkeeper.sim.text_page import MetricsPage, format_labels

GPU = "nvidia_com_gpu"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
PLUGIN = {"namespace": "gpu-operator", "daemonset": "nvidia-device-plugin-daemonset"}
FAILED_MIG = {"label_nvidia_com_mig_config": "all-1g.18gb", "label_nvidia_com_mig_config_state": "failed"}
CONDITIONS = ("true", "false", "unknown")
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
# Far more than the teams of a simulated fleet use.
QUOTA_GPUS = 100_000


@dataclass(frozen=True, slots=True)
class SimPod:
    """One pod; `node` is None if it is not scheduled."""

    namespace: str
    name: str
    container: str
    node: str | None
    gpus: int | None
    started_at: int
    spec: PodEffect

    @property
    def labels(self) -> dict[str, str]:
        return {"namespace": self.namespace, "pod": self.name}


class KubeStatePage:
    def __init__(self, layout: FleetLayout, jobs: SimJobs) -> None:
        self._nodes = [node for node in layout.nodes if node.pool.scheduler == "kubernetes"]
        self._layout = layout
        self._jobs = jobs
        self._started: dict[str, int] = {}

    def page(self, total: EffectTotals, *, up: set[int], cordoned: set[str], now: int) -> bytes:
        """`up` are the rows of the nodes whose kubelet answers."""
        page = MetricsPage()
        pods = list(self._list_pods(total, now))
        self._started = {pod.name: pod.started_at for pod in pods}
        self._write_nodes(page, total, up)
        is_cordoned = (({"node": node.name}, float(node.name in cordoned)) for node in self._nodes)
        page.write("kube_node_spec_unschedulable", "gauge", "Whether a node can schedule new pods.", is_cordoned)
        _write_pods(page, pods)
        _write_specs_and_exits(page, pods)
        self._write_plugin_and_quotas(page, pods, total)
        return page.content()

    def _list_pods(self, total: EffectTotals, now: int) -> Iterator[SimPod]:
        for job in [job for job in self._jobs.running.values() if not job.is_slurm]:
            container = "server" if job.template.kind is SimJobKind.SERVING else "main"
            for row, name in job.pod_names.items():
                job_node = self._layout.nodes[row]
                gpus = sum(job_node.rows.start <= gpu < job_node.rows.stop for gpu in job.rows)
                started_at = self._started.get(name, now)
                yield SimPod(job.template.namespace, name, container, job_node.name, gpus, started_at, RUNNING)
        for name, (active, spec) in total.pods.items():
            node = None if spec.pending else self._layout.nodes[active.nodes[0]].name
            for replica in range(spec.replicas):
                pod = f"{name}-{replica}" if replica else name
                yield SimPod(active.namespace, pod, "main", node, spec.gpus, self._started.get(pod, now), spec)

    def _write_nodes(self, page: MetricsPage, total: EffectTotals, up: set[int]) -> None:
        page.begin("kube_node_status_condition", "gauge", "The condition of a cluster node.")
        for node in self._nodes:
            current = "true" if node.row in up else "unknown"
            _add_states(page, {"node": node.name, "condition": "Ready"}, "status", CONDITIONS, current=current)
        for kind in ("capacity", "allocatable"):
            page.begin(f"kube_node_status_{kind}", "gauge", f"The {kind} for different resources of a node.")
            for node in self._nodes:
                has_no_plugin = node.row in total.plugin_gone or node.row in total.mig_lost
                count = 0 if has_no_plugin and kind == "allocatable" else len(node.gpus)
                page.add(format_labels({"node": node.name, "resource": GPU, "unit": "integer"}), count)
        taints = (({"node": node.name, **TAINT}, 1) for node in self._nodes)
        page.write("kube_node_spec_taint", "gauge", "The taint of a cluster node.", taints)
        page.begin("kube_node_labels", "gauge", "Kubernetes labels converted to Prometheus labels.")
        for node in self._nodes:
            labels = {"node": node.name, "label_nvidia_com_gpu_product": node.model.name.replace(" ", "-")}
            page.add(format_labels(labels | (FAILED_MIG if node.row in total.mig_lost else {})), 1)

    def _write_plugin_and_quotas(self, page: MetricsPage, pods: list[SimPod], total: EffectTotals) -> None:
        page.begin("kube_daemonset_status_desired_number_scheduled", "gauge", "Nodes that should run the daemon pod.")
        page.add(format_labels(PLUGIN), len(self._nodes))
        page.begin("kube_daemonset_status_number_ready", "gauge", "Nodes with a running and ready daemon pod.")
        page.add(format_labels(PLUGIN), len(self._nodes) - len(total.plugin_gone))
        page.begin("kube_resourcequota", "gauge", "Information about resource quota.")
        for namespace in sorted({pod.namespace for pod in pods} | total.full_quotas):
            used = sum(pod.gpus or 0 for pod in pods if pod.namespace == namespace)
            hard = used if namespace in total.full_quotas else QUOTA_GPUS
            quota = {"namespace": namespace, "resourcequota": "gpus", "resource": "requests.nvidia.com/gpu"}
            page.add(format_labels({**quota, "type": "hard"}), hard)
            page.add(format_labels({**quota, "type": "used"}), used)
        # A job over its quota has no pods: only its parallelism is visible.
        for name, help, pod_count in (
            ("kube_job_spec_parallelism", "The maximum desired number of pods of the job.", 2),
            ("kube_job_status_active", "The number of actively running pods.", 0),
        ):
            page.begin(name, "gauge", help)
            for namespace in sorted(total.full_quotas):
                page.add(format_labels({"namespace": namespace, "job_name": "quota-test"}), pod_count)


RUNNING = PodEffect()


def _add_states(page: MetricsPage, labels: dict[str, str], name: str, states: Iterable[str], *, current: str) -> None:
    """Add a sample for each state: 1 for the current one, else 0."""
    for state in states:
        page.add(format_labels({**labels, name: state}), float(state == current))


def _write_pods(page: MetricsPage, pods: list[SimPod]) -> None:
    nodes = (({**pod.labels, "node": pod.node or ""}, 1) for pod in pods)
    page.write("kube_pod_info", "gauge", "Information about pod.", nodes)
    page.begin("kube_pod_status_phase", "gauge", "The pods current phase.")
    for pod in pods:
        _add_states(page, pod.labels, "phase", PHASES, current="Running" if pod.node else "Pending")
    page.begin("kube_pod_status_scheduled", "gauge", "Describes the status of the scheduling process for the pod.")
    for pod in pods:
        _add_states(page, pod.labels, "condition", CONDITIONS, current="true" if pod.node is not None else "false")
    page.begin("kube_pod_status_ready", "gauge", "Describes whether the pod is ready to serve requests.")
    for pod in pods:
        is_ready = pod.node is not None and pod.spec.is_ready
        _add_states(page, pod.labels, "condition", CONDITIONS, current=str(is_ready).lower())
    started_at = ((pod.labels, pod.started_at) for pod in pods if pod.node)
    page.write("kube_pod_start_time", "gauge", "Start time in unix timestamp for a pod.", started_at)
    page.begin("kube_pod_container_resource_requests", "gauge", "The number of requested resources by a container.")
    for pod in pods:
        resource, unit, count = ("cpu", "core", 8) if pod.gpus is None else (GPU, "integer", pod.gpus)
        container = {**pod.labels, "container": pod.container, "node": pod.node or ""}
        page.add(format_labels({**container, "resource": resource, "unit": unit}), count)


def _write_specs_and_exits(page: MetricsPage, pods: list[SimPod]) -> None:
    toleration = {"key": TAINT["key"], "operator": "Exists", "effect": "NoSchedule"}
    tolerations = (({**pod.labels, **toleration}, 1) for pod in pods if pod.spec.tolerates_gpu_taint)
    page.write("kube_pod_tolerations", "gauge", "Information about the pod tolerations", tolerations)
    page.begin("kube_pod_nodeselectors", "gauge", "Describes the Pod nodeSelectors.")
    for pod in pods:
        if pod.spec.node_selector is not None:
            page.add(format_labels({**pod.labels, "nodeselector_nvidia_com_gpu_product": pod.spec.node_selector}), 1)
    page.begin("kube_pod_runtimeclass_name_info", "gauge", "The runtimeclass associated with the pod.")
    for pod in pods:
        if pod.spec.runtime_class is not None:
            page.add(format_labels({**pod.labels, "runtimeclass_name": pod.spec.runtime_class}), 1)
    exited = [pod for pod in pods if pod.spec.exit_code is not None]
    page.begin("kube_pod_container_status_last_terminated_reason", "gauge", "The last reason of termination.")
    for pod in exited:
        labels = {**pod.labels, "container": pod.container, "reason": pod.spec.exit_reason or "Error"}
        page.add(format_labels(labels), 1)
    page.begin("kube_pod_container_status_last_terminated_exitcode", "gauge", "The exit code of the last termination.")
    for pod in exited:
        page.add(format_labels({**pod.labels, "container": pod.container}), pod.spec.exit_code or 0)
    restarts = (({**pod.labels, "container": pod.container}, int(pod.spec.exit_code is not None)) for pod in pods)
    name, help = "kube_pod_container_status_restarts_total", "The number of container restarts."
    page.write(name, "counter", help, restarts)
