"""Check the steps that the API server or Prometheus can answer: nodes, CNI, DNS, GPU Operator, our pods, targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from watchkeeper.doctor.stack import kubernetes_checks, matching, scrape_checks
from watchkeeper.doctor.stack.facts import KubernetesObjects, Prometheus, Raw, StepResult, failed, passed, unknown
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters.kubernetes_objects import GPU_RESOURCE

SHOWN = 5
# Pods of the CNIs that kubernetes.io lists as add-ons, and those of common distributions, by the start of their name.
CNI_PODS = (
    "calico-node", "canal", "cilium", "kube-flannel", "antrea-agent", "kube-router", "weave-net", "ovnkube-node",
    "kube-ovn-cni", "kindnet", "aws-node",
)  # fmt: skip
GPU_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
AGENT, HUB = "watchkeeper-agent", "watchkeeper-hub"


def api_server(cluster: KubernetesObjects) -> StepResult:
    reason = _reason(cluster, "nodes")
    if not reason:
        return passed(f"it lists {len(cluster.nodes)} nodes")
    is_refused = reason.startswith("answered 40")
    return unknown(f"it may not be asked for nodes: {reason}") if is_refused else failed(reason)


def cni(cluster: KubernetesObjects) -> StepResult:
    pods = [pod for pod in cluster.pods if matching.name(pod).startswith(CNI_PODS)]
    if pods:
        return _all_ready(pods)
    if cluster.nodes and all(map(_is_ready, cluster.nodes)):
        return passed("no pod has the name of a CNI that is known here; all nodes are Ready, so one is installed")
    return failed("no pod has the name of a CNI")


def nodes_ready(cluster: KubernetesObjects) -> StepResult:
    down = [node for node in cluster.nodes if not _is_ready(node)]
    if not cluster.nodes:
        return failed("there is no node")
    if not down:
        return passed(f"{len(cluster.nodes)} of {len(cluster.nodes)}")
    lines = [f"{matching.name(node)}: {_condition(node).get('message', 'no status')}" for node in down]
    return failed(f"{len(down)} of {len(cluster.nodes)} are not Ready: {_join(lines, '; ')}")


def cluster_dns(cluster: KubernetesObjects) -> StepResult:
    pods = [pod for pod in cluster.pods if matching.labels(pod).get("k8s-app") == "kube-dns"]
    ready = sum(map(kubernetes_checks.is_ready, pods))
    if not pods:
        return failed("there is no pod with the label k8s-app=kube-dns")
    return (passed if ready else failed)(f"{ready} of {len(pods)} pods are ready")


def gpu_operator(cluster: KubernetesObjects) -> StepResult:
    pods = [pod for pod in cluster.pods if matching.name(pod).startswith(kubernetes_checks.OPERATOR_NAMES)]
    if pods:
        return _all_ready(pods)
    gpus = sum(_gpus(node, "allocatable") for node in cluster.nodes)
    return passed(f"not installed; {gpus} GPUs are allocatable without it") if gpus else failed("not installed")


def gpus_allocatable(cluster: KubernetesObjects) -> StepResult:
    nodes = [node for node in cluster.nodes if _has_gpus(node)]
    has_dra = any(matching.has_name_part(pod, ("dra-driver",)) for pod in cluster.pods)
    if has_dra and not any(map(matching.has_gpus, nodes)):
        return unknown("GPUs are offered as resource slices (DRA): kubectl get resourceslices")
    if not nodes:
        return failed(f"none of {len(cluster.nodes)} nodes offers nvidia.com/gpu")
    counts = {matching.name(node): (_gpus(node, "allocatable"), _gpus(node, "capacity")) for node in nodes}
    short = [f"{name}: {free} of {total}" for name, (free, total) in counts.items() if free < max(total, 1)]
    if short:
        return failed(f"not all GPUs are allocatable: {_join(short)}")
    return passed(f"{sum(free for free, _ in counts.values())} GPUs on {len(nodes)} nodes")


def watchkeeper(cluster: KubernetesObjects) -> StepResult:
    by_name = {name: [pod for pod in cluster.pods if matching.has_name_part(pod, (name,))] for name in (AGENT, HUB)}
    missing = [name for name, pods in by_name.items() if not pods]
    if missing:
        return failed(f"there is no pod of {' or '.join(missing)}")
    agents = {matching.node(pod) for pod in by_name[AGENT]}
    bare = [matching.name(node) for node in cluster.nodes if _has_gpus(node) and matching.name(node) not in agents]
    if bare:
        return failed(f"no agent on the GPU nodes {_join(bare)}")
    return _all_ready([*by_name[AGENT], *by_name[HUB]])


def scrape_targets(server: Prometheus) -> StepResult:
    if reason := server.unread.get("/api/v1/targets"):
        return unknown(f"/api/v1/targets {reason}")
    targets = scrape_checks.gpu_targets(server)
    down = [f"{target.url}: {target.error}" for target in targets if not target.is_up]
    if not targets:
        return failed("it has no target of a GPU exporter")
    if down:
        return failed(f"{len(down)} of {len(targets)} targets are down: {_join(down, '; ')}")
    return passed(f"{len(targets)} of {len(targets)} targets are up")


# Each check with the kinds that it needs.
CHECKS: tuple[tuple[Callable[[KubernetesObjects], StepResult], tuple[str, ...]], ...] = (
    (api_server, ()), (cni, ("pods", "nodes")), (nodes_ready, ("nodes",)), (cluster_dns, ("pods",)),
    (gpu_operator, ("pods", "nodes")), (gpus_allocatable, ("nodes", "pods")), (watchkeeper, ("pods", "nodes")),
)  # fmt: skip


def run(
    cluster: KubernetesObjects, check: Callable[[KubernetesObjects], StepResult], kinds: Sequence[str]
) -> StepResult:
    """Run a check, unless an object that it needs could not be listed or is outside the namespace that was read."""
    for kind in kinds:
        if reason := _reason(cluster, kind):
            return unknown(f"{kind} could not be listed: {reason}")
    if "pods" in kinds and cluster.namespace:
        return unknown(f"only the namespace {cluster.namespace} was read")
    return check(cluster)


def _reason(cluster: KubernetesObjects, kind: str) -> str:
    """Why a kind could not be listed; empty if it was."""
    return next((why or "no answer" for path, why in cluster.unread.items() if path.endswith(f"/{kind}")), "")


def _all_ready(pods: Sequence[Raw]) -> StepResult:
    down = [pod for pod in pods if not kubernetes_checks.is_ready(pod)]
    if not down:
        return passed(f"{len(pods)} of {len(pods)} pods are ready")
    lines = [f"{matching.full_name(pod)} ({kubernetes_checks.pod_state(pod)})" for pod in down]
    return failed(f"{len(down)} of {len(pods)} pods are not ready: {_join(lines)}")


def _condition(node: Raw) -> Raw:
    conditions = map(facts.mapping, facts.items(facts.mapping(node, "status"), "conditions"))
    return next((condition for condition in conditions if condition.get("type") == "Ready"), {})


def _is_ready(node: Raw) -> bool:
    return _condition(node).get("status") == "True"


def _gpus(node: Raw, key: str) -> int:
    amounts = facts.mapping(facts.mapping(node, "status"), key)
    return sum(facts.count(value) or 0 for name, value in amounts.items() if GPU_RESOURCE.match(name))


def _has_gpus(node: Raw) -> bool:
    return matching.has_gpus(node) or any(matching.labels(node).get(label) == "true" for label in GPU_LABELS)


def _join(lines: Sequence[str], separator: str = ", ") -> str:
    more = len(lines) - SHOWN
    return separator.join([*lines[:SHOWN], *([f"and {more} more"] if more > 0 else [])])
