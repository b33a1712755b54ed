"""Why a pod is where it is, from the objects of its cluster: watched by the hub, or pasted from kubectl.

`web/explain_api` gives the objects of the watch, `cli/explain` those of a file. The decision about nodes is
`pending.judge`; what is added here is the life of the pod around it: no request, a quota, a start that fails, an end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from watchkeeper.catalogue import causes
from watchkeeper.diagnose import pending
from watchkeeper.diagnose.explained import Explained, ExplainedLine
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.readers.clusters import kubernetes_text

# pods "train-x2x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: …, limited: …
QUOTA_WORDS = "exceeded quota"
# What a scheduler's refusal means; the first that is found in its sentence.
WORDS = (
    ("didn't match Pod's node affinity/selector", "node_selector_mismatch"),
    ("didn't match node selector", "node_selector_mismatch"),
    ("untolerated taint", "untolerated_taint"),
    ("that the pod didn't tolerate", "untolerated_taint"),
    (QUOTA_WORDS, "quota_exceeded"),
    ("Insufficient nvidia.com/", "insufficient_gpu_capacity"),
)
REFUSED = re.compile(r"0/\d+ nodes are available: [^\n]+")
# What a warning about a pod that has its node means.
STARTS = (
    ("no runtime for", "container_runtime_missing"),
    ("nvidia-container-cli", "container_runtime_missing"),
    ("could not select device driver", "container_runtime_missing"),
    ("Allocate failed", "no_device_plugin"),
    ("UnexpectedAdmissionError", "no_device_plugin"),
)
ENDS = {"OOMKilled": "host_oom"}
EXITS = {135: "shm_too_small", 137: "host_oom"}


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """What is known of the cluster; `warned` is the last warning about an object by kind, namespace and name."""

    nodes: Sequence[objects.KubernetesNode] = ()
    pods: Sequence[objects.KubernetesPod] = ()
    quotas: Sequence[objects.Quota] = ()
    jobs: Sequence[objects.KubernetesJob] = ()
    last_warning: Callable[[str, str, str], objects.WarningEvent | None] = lambda *_: None
    claimed_gpus: Callable[[objects.KubernetesPod], int] = lambda _: 0
    problems: tuple[str, ...] = field(default=())


def explain(namespace: str, name: str, cluster: ClusterObjects) -> Explained | None:
    """None where neither a pod nor a job of that name is known."""
    subject = f"{namespace}/{name}"
    pod = next((one for one in cluster.pods if (one.namespace, one.name) == (namespace, name)), None)
    if pod is not None:
        return _pod(pod, cluster)
    job = next((one for one in cluster.jobs if (one.namespace, one.name) == (namespace, name)), None)
    if job is None:
        return None
    warned = cluster.last_warning("Job", namespace, name)
    missing = job.parallelism - job.active
    if warned is None or missing <= 0:
        return Explained(subject, f"is a job with {job.active} of {job.parallelism} pods", unseen=cluster.problems)
    cause = _by_words(warned.message, WORDS)
    lines = tuple(
        ExplainedLine(quota.name, _written(quota)) for quota in cluster.quotas if quota.namespace == namespace
    )
    return Explained(
        subject,
        f"has {job.active} of {job.parallelism} pods: the others are not made",
        cause,
        warned.message,
        lines,
        _quota_change(cluster.quotas, namespace, wanted=job.gpus) if cause == "quota_exceeded" else "",
        steps(cause, subject),
        cluster.problems,
    )


def _line_with(words: str, text: str) -> str | None:
    """The first line with these words; without a pattern, which would take for ever over one long line of JSON."""
    at = text.find(words)
    if at < 0:
        return None
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : len(text) if end < 0 else end].strip()


def explain_pasted(text: str, namespace: str, name: str) -> Explained | None:
    """From `kubectl get pod,node -o json|yaml`, or from any text that holds the scheduler's own sentence."""
    raw = list(kubernetes_text.read_objects(text, is_yaml=not text.lstrip().startswith("{")))
    kinds = {kind: [item for item in raw if item["kind"] == kind] for kind in ("Pod", "Node", "ResourceQuota", "Job")}
    pods = [objects.read_pod(item) for item in kinds["Pod"]]
    wanted = next((pod for pod in pods if (pod.namespace or namespace, pod.name) == (namespace, name)), None)
    if wanted is not None:
        cluster = ClusterObjects(
            [objects.read_node(item) for item in kinds["Node"]],
            pods,
            [objects.read_quota(item) for item in kinds["ResourceQuota"]],
            problems=()
            if kinds["Node"]
            else ("the nodes: paste `kubectl get pod,node -A -o json` for their own reasons",),
        )
        return _pod(wanted, cluster)
    said = REFUSED.search(text)
    sentence = said[0].strip() if said else _line_with(QUOTA_WORDS, text)
    if sentence is None:
        return None
    cause = _by_words(sentence, WORDS)
    gaps = ("the nodes: paste `kubectl get pod,node -A -o json` for their own reasons",)
    subject = f"{namespace}/{name}"
    return Explained(
        subject, "waits, by the scheduler's own words", cause, sentence, (), "", steps(cause, subject), gaps
    )


def _pod(pod: objects.KubernetesPod, cluster: ClusterObjects) -> Explained:
    subject = f"{pod.namespace}/{pod.name}"
    ask = pending.request_of_pod(pod, cluster.quotas, claimed=cluster.claimed_gpus(pod))
    if not pod.node:
        return _waiting(subject, pod, ask, cluster)
    gpu_nodes = {node.name for node in cluster.nodes if node.has_gpus}
    if not ask.gpus and (pod.runtime_class.startswith("nvidia") or pod.node in gpu_nodes):
        found = pending.judge_placement(ask, ())
        sure = "uses the NVIDIA runtime class" if pod.runtime_class.startswith("nvidia") else "runs on a GPU node"
        return Explained(
            subject, f"{sure} and asks for no GPU", found.cause, found.why, (), found.smallest_change,
            steps(found.cause, subject), cluster.problems,
        )  # fmt: skip
    ended = _ended(pod)
    warned = cluster.last_warning("Pod", pod.namespace, pod.name)
    if pod.phase == "Pending" and warned is not None:
        cause = _by_words(f"{warned.reason} {warned.message}", STARTS)
        why = f"{warned.reason}: {warned.message}"
        return Explained(
            subject, f"has its GPUs on {pod.node} and does not start", cause, why, (), "", steps(cause, subject),
            cluster.problems,
        )  # fmt: skip
    asked = ", ".join(f"{count} {resource}" for resource, count in ask.gpus.items()) or "no GPU"
    if ended is not None:
        return Explained(
            subject, f"runs on {pod.node} with {asked}, and ended before", ended[0], ended[1], (), "",
            steps(ended[0], subject), cluster.problems,
        )  # fmt: skip
    return Explained(subject, f"runs on {pod.node} with {asked}", unseen=cluster.problems)


def _waiting(subject: str, pod: objects.KubernetesPod, ask: pending.PodRequest, cluster: ClusterObjects) -> Explained:
    offers = pending.node_offers(cluster.nodes, cluster.pods)
    if not ask.gpus:
        headline = "waits, and asks for no GPU"
        return Explained(subject, headline, None, pod.message, unseen=cluster.problems)
    if not cluster.nodes:
        cause = _by_words(pod.message, WORDS)
        return Explained(
            subject, "waits, by the scheduler's own words", cause, pod.message, (), "", steps(cause, subject),
            cluster.problems,
        )  # fmt: skip
    found = pending.judge_placement(ask, offers)
    cause = found.cause or _by_words(pod.message, WORDS)
    asked = ", ".join(f"{count} {resource}" for resource, count in sorted(ask.gpus.items()))
    lines = tuple(ExplainedLine(node.node, node.text) for node in found.nodes)
    gaps = [*cluster.problems]
    if found.cause is None and pod.message:
        gaps.append("rules beside GPUs, labels and taints (affinity, volumes, CPU, memory): read the scheduler's words")
    why = found.why if not pod.message else f"{found.why}. The scheduler says: {pod.message}"
    notes = tuple(ExplainedLine("quota", note) for note in found.notes)
    return Explained(
        subject, f"waits for {asked}", cause, why, (*lines, *notes), found.smallest_change, steps(cause, subject),
        tuple(gaps),
    )  # fmt: skip


def _ended(pod: objects.KubernetesPod) -> tuple[str, str] | None:
    for container in pod.containers:
        cause = ENDS.get(container.last_reason) or EXITS.get(container.last_exit_code or 0)
        if cause is not None:
            said = f"{container.last_reason or 'exit'} {container.last_exit_code}, {container.restarts} restarts"
            return cause, f"container {container.name} ended with {said}"
    return None


def _by_words(text: str, table: Iterable[tuple[str, str]]) -> str | None:
    return next((cause for words, cause in table if words in text), None)


def _quota_change(quotas: Iterable[objects.Quota], namespace: str, *, wanted: int) -> str:
    for quota in quotas:
        for resource, hard, used in quota.lines if quota.namespace == namespace else ():
            if hard is not None and used is not None and used + wanted > hard:
                return (
                    f"raise {resource} of quota {quota.name} from {hard} to {used + wanted}, or wait for {used} to end"
                )
    return ""


def _written(quota: objects.Quota) -> str:
    return ", ".join(f"{used} of {hard} {resource} used" for resource, hard, used in quota.lines)


def steps(cause: str | None, subject: str) -> tuple[str, ...]:
    return () if cause is None else (causes.lookup(cause).advice(subject),)
