"""Explain a pod from the objects of its cluster, which the hub watches or a user pastes from kubectl.

`web/explain_api` passes the watched objects, `cli/explain` those of a file. `pending.judge_placement` decides about the
nodes; this module adds missing requests, quotas, failed starts and exits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from watchkeeper.catalogue import causes
from watchkeeper.diagnose import pending
from watchkeeper.diagnose.explain_result import ExplainLine, ExplainResult
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.readers.clusters import kubernetes_text

# pods "train-x2x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: …, limited: …
QUOTA_TEXT = "exceeded quota"
# The cause by a phrase in the scheduler's message; the first match counts.
SCHEDULER_CAUSES = (
    ("didn't match Pod's node affinity/selector", "node_selector_mismatch"),
    ("didn't match node selector", "node_selector_mismatch"),
    ("untolerated taint", "untolerated_taint"),
    ("that the pod didn't tolerate", "untolerated_taint"),
    (QUOTA_TEXT, "quota_exceeded"),
    ("Insufficient nvidia.com/", "insufficient_gpu_capacity"),
)
UNSCHEDULABLE = re.compile(r"0/\d+ nodes are available: [^\n]+")
# The cause by a phrase in a warning about a pod that is bound to a node.
START_CAUSES = (
    ("no runtime for", "container_runtime_missing"),
    ("nvidia-container-cli", "container_runtime_missing"),
    ("could not select device driver", "container_runtime_missing"),
    ("Allocate failed", "no_device_plugin"),
    ("UnexpectedAdmissionError", "no_device_plugin"),
)
EXIT_REASON_CAUSES = {"OOMKilled": "host_oom"}
NO_NODES = "no nodes: paste `kubectl get pod,node -A -o json` to see the reason for each node"
EXIT_CODE_CAUSES = {135: "shm_too_small", 137: "host_oom"}


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The objects of a cluster; `last_warning` returns the last warning about an object by kind, namespace and name."""

    nodes: Sequence[objects.KubernetesNode] = ()
    pods: Sequence[objects.KubernetesPod] = ()
    quotas: Sequence[objects.Quota] = ()
    jobs: Sequence[objects.KubernetesJob] = ()
    last_warning: Callable[[str, str, str], objects.WarningEvent | None] = lambda *_: None
    claimed_gpus: Callable[[objects.KubernetesPod], int] = lambda _: 0
    problems: tuple[str, ...] = field(default=())


def explain(namespace: str, name: str, cluster: ClusterObjects) -> ExplainResult | None:
    """Explain a pod or job; None if there is neither with this name."""
    key = (namespace, name)
    pod = next((pod for pod in cluster.pods if (pod.namespace, pod.name) == key), None)
    if pod is not None:
        return _explain_pod(pod, cluster)
    job = next((job for job in cluster.jobs if (job.namespace, job.name) == key), None)
    return None if job is None else _explain_job(job, cluster)


def _explain_job(job: objects.KubernetesJob, cluster: ClusterObjects) -> ExplainResult:
    subject, pods = f"{job.namespace}/{job.name}", f"{job.active} of {job.parallelism} pods"
    warning = cluster.last_warning("Job", job.namespace, job.name)
    if warning is None or job.active >= job.parallelism:
        return ExplainResult(subject, f"job with {pods}", missing_data=cluster.problems)
    quotas = [quota for quota in cluster.quotas if quota.namespace == job.namespace]
    cause = _match_cause(warning.message, SCHEDULER_CAUSES)
    return _with_advice(
        subject,
        f"has {pods}: the others are not created",
        cause,
        warning.message,
        lines=[
            ExplainLine(quota.name, ", ".join(f"{used} of {hard} {name} used" for name, hard, used in quota.lines))
            for quota in quotas
        ],
        change=_quota_change(quotas, requested=job.gpus) if cause == "quota_exceeded" else "",
        missing_data=cluster.problems,
    )


def _with_advice(
    subject: str,
    headline: str,
    cause: str | None,
    why: str,
    *,
    lines: Sequence[ExplainLine] = (),
    change: str = "",
    missing_data: Sequence[str] = (),
) -> ExplainResult:
    """An explanation with the catalogue's advice for the cause."""
    steps = next_steps(cause, subject)
    return ExplainResult(subject, headline, cause, why, tuple(lines), change, steps, tuple(missing_data))


def explain_pasted(text: str, namespace: str, name: str) -> ExplainResult | None:
    """Explain a pod from `kubectl get pod,node -o json|yaml`, or from any text with the scheduler's message."""
    raw = list(kubernetes_text.read_objects(text, is_yaml=not text.lstrip().startswith("{")))
    pods, nodes, quotas = ([item for item in raw if item["kind"] == kind] for kind in ("Pod", "Node", "ResourceQuota"))
    read_pods = [objects.read_pod(item) for item in pods]
    pod = next((pod for pod in read_pods if (pod.namespace or namespace, pod.name) == (namespace, name)), None)
    if pod is not None:
        cluster = ClusterObjects(
            [objects.read_node(item) for item in nodes],
            read_pods,
            [objects.read_quota(item) for item in quotas],
            problems=() if nodes else (NO_NODES,),
        )
        return _explain_pod(pod, cluster)
    match = UNSCHEDULABLE.search(text)
    at = text.find(QUOTA_TEXT)
    if match is None and at < 0:
        return None
    # The line with the phrase; not by a pattern, which is slow on one long line of JSON.
    message = match[0] if match else text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]
    return _explain_message(f"{namespace}/{name}", message.strip(), (NO_NODES,))


def _explain_message(subject: str, message: str, missing_data: Sequence[str]) -> ExplainResult:
    """Explain a pending pod by the scheduler's message alone."""
    cause = _match_cause(message, SCHEDULER_CAUSES)
    return _with_advice(subject, "pending, from the scheduler's message", cause, message, missing_data=missing_data)


def _explain_pod(pod: objects.KubernetesPod, cluster: ClusterObjects) -> ExplainResult:
    subject, problems = f"{pod.namespace}/{pod.name}", cluster.problems
    request = pending.request_of_pod(pod, cluster.quotas, claimed=cluster.claimed_gpus(pod))
    if not pod.node:
        return _explain_pending(subject, pod, request, cluster)
    has_runtime_class = pod.runtime_class.startswith("nvidia")
    is_on_gpu_node = any(node.name == pod.node and node.has_gpus for node in cluster.nodes)
    if not request.gpus and (has_runtime_class or is_on_gpu_node):
        verdict = pending.judge_placement(request, ())
        fact = "uses the NVIDIA runtime class" if has_runtime_class else "runs on a GPU node"
        headline, change = f"{fact} and requests no GPU", verdict.smallest_change
        return _with_advice(subject, headline, verdict.cause, verdict.why, change=change, missing_data=problems)
    warning = cluster.last_warning("Pod", pod.namespace, pod.name)
    if pod.phase == "Pending" and warning is not None:
        cause = _match_cause(f"{warning.reason} {warning.message}", START_CAUSES)
        headline, why = f"has its GPUs on {pod.node} but does not start", f"{warning.reason}: {warning.message}"
        return _with_advice(subject, headline, cause, why, missing_data=problems)
    gpus = ", ".join(f"{count} {resource}" for resource, count in request.gpus.items()) or "no GPU"
    headline = f"runs on {pod.node} with {gpus}"
    for container in pod.containers:
        cause = EXIT_REASON_CAUSES.get(container.last_reason) or EXIT_CODE_CAUSES.get(container.last_exit_code or 0)
        if cause is not None:
            exit_text = f"{container.last_reason or 'exit'} {container.last_exit_code}, {container.restarts} restarts"
            why = f"container {container.name} exited with {exit_text}"
            return _with_advice(subject, f"{headline}, failed before", cause, why, missing_data=problems)
    return ExplainResult(subject, headline, missing_data=problems)


def _explain_pending(
    subject: str, pod: objects.KubernetesPod, request: pending.PodRequest, cluster: ClusterObjects
) -> ExplainResult:
    if not request.gpus:
        return ExplainResult(subject, "pending, requests no GPU", None, pod.message, missing_data=cluster.problems)
    if not cluster.nodes:
        return _explain_message(subject, pod.message, cluster.problems)
    verdict = pending.judge_placement(request, pending.node_offers(cluster.nodes, cluster.pods))
    missing_data = [*cluster.problems]
    if verdict.cause is None and pod.message:
        missing_data.append("affinity, volumes, CPU and memory are not checked: read the scheduler's message")
    gpus = ", ".join(f"{count} {resource}" for resource, count in sorted(request.gpus.items()))
    nodes = [ExplainLine(node.node, node.text) for node in verdict.nodes]
    return _with_advice(
        subject,
        f"pending, requests {gpus}",
        verdict.cause or _match_cause(pod.message, SCHEDULER_CAUSES),
        f"{verdict.why}. Scheduler: {pod.message}" if pod.message else verdict.why,
        lines=[*nodes, *(ExplainLine("quota", note) for note in verdict.notes)],
        change=verdict.smallest_change,
        missing_data=missing_data,
    )


def _match_cause(text: str, table: Iterable[tuple[str, str]]) -> str | None:
    return next((cause for phrase, cause in table if phrase in text), None)


def _quota_change(quotas: Iterable[objects.Quota], *, requested: int) -> str:
    for quota in quotas:
        for resource, hard, used in quota.lines:
            if hard is not None and used is not None and used + requested > hard:
                limit = f"{resource} of quota {quota.name} from {hard} to {used + requested}"
                return f"raise {limit}, or wait until other workloads end"
    return ""


def next_steps(cause: str | None, subject: str) -> tuple[str, ...]:
    return () if cause is None else (causes.lookup(cause).advice(subject),)
