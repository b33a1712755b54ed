"""Decide which pods a drain evicts, ignores or waits for, by the rules of `kubectl drain`. Pure.

The driver lists pods, classifies each with `classify_pod`, and evicts those that it may. For a pod that it may not
evict, the drain waits, with the reason and the setting that allows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from watchkeeper.model.actions import Action
from watchkeeper.readers import json_facts as facts
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall

TAINT = "watchkeeper.dev/unhealthy"
FULL_NAME = re.compile(r"[^/]+/[^/]+")
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
# Tried in this order; Kubernetes 1.22 added Eviction in policy/v1, and 1.25 removed v1beta1.
EVICTION_VERSIONS = ("policy/v1", "policy/v1beta1")
Raw = Mapping[str, Any]


class DrainDecision(StrEnum):
    LEAVE = "leave"
    EVICT = "evict"
    ENDING = "ending"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """Pods to evict for which `kubectl drain` requires --force or --delete-emptydir-data."""

    evict_unmanaged: bool = False
    delete_empty_dirs: bool = False


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod and what a drain does with it; `why` is the reason if it is not evicted."""

    namespace: str
    name: str
    uid: str
    decision: DrainDecision
    why: str = ""
    # It was created after the cordon and tolerates it: the scheduler would place it here again.
    is_returning: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def status_text(self) -> str:
        return f"pod {self}: {self.why}"


def classify_pod(raw: Raw, rules: EvictionRules, *, at: datetime | None = None, since: str | None = None) -> PodState:
    """Classify a pod; one that was created after `since` and tolerates the cordon is ignored."""
    metadata, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    decision, why = _decide_drain(metadata, spec, status, rules=rules, at=at)
    # `kubectl drain` also evicts only the pods that it listed first.
    is_newcomer = decision in (DrainDecision.EVICT, DrainDecision.WAIT) and is_newer(metadata, since)
    # The scheduler may place it on a node with our taint.
    is_returning = is_newcomer and any(
        toleration.get("key", TAINT) == TAINT and toleration.get("effect", "NoSchedule") == "NoSchedule"
        for toleration in map(facts.mapping, facts.items(spec, "tolerations"))
    )
    if is_returning:
        decision, why = DrainDecision.LEAVE, "it was created after the cordon and tolerates it"
    namespace, uid = facts.text(metadata, "namespace"), facts.text(metadata, "uid")
    return PodState(namespace, facts.require_name(metadata), uid, decision, why, is_returning)


def _decide_drain(
    metadata: Raw, spec: Raw, status: Raw, *, rules: EvictionRules, at: datetime | None
) -> tuple[DrainDecision, str]:
    owners = map(facts.mapping, facts.items(metadata, "ownerReferences"))
    controller = next((facts.text(owner, "kind") for owner in owners if owner.get("controller") is True), "")
    if controller == "DaemonSet":
        return DrainDecision.LEAVE, "it belongs to a DaemonSet"
    if MIRROR_ANNOTATION in facts.mapping(metadata, "annotations"):
        return DrainDecision.LEAVE, "it is a static pod"
    if facts.text(status, "phase") in ("Succeeded", "Failed"):
        return DrainDecision.LEAVE, "it has ended"
    if "deletionTimestamp" in metadata:
        return DrainDecision.ENDING, _describe_termination(metadata, at)
    if not controller and not rules.evict_unmanaged:
        return DrainDecision.WAIT, "it has no controller; wait until it ends, or set remediate.evict_unmanaged"
    if not rules.delete_empty_dirs and (volume := _find_disk_volume(spec)):
        remedy = "wait until it ends, or set remediate.delete_empty_dirs"
        return DrainDecision.WAIT, f"its emptyDir `{volume}` would be lost; {remedy}"
    return DrainDecision.EVICT, ""


def is_newer(metadata: Raw, since: str | None) -> bool:
    """Whether an object was created after `since`; False if a time is unknown."""
    created, limit = facts.time(metadata.get("creationTimestamp")), facts.time(since)
    return created is not None and limit is not None and created > limit


def full_name(raw: Raw) -> str:
    metadata = facts.mapping(raw, "metadata")
    return f"{facts.text(metadata, 'namespace')}/{facts.text(metadata, 'name')}"


def read_pod_names(action: Action) -> list[str]:
    example = "a pod such as research/train-0"
    return cluster_driver.read_workload_names(action, "pods", FULL_NAME, example=example, source="the kubelet")


def build_eviction(pod: PodState, version: str) -> ApiCall:
    """Build an eviction with the pod's own grace period, only for the pod with this UID."""
    body = {
        "apiVersion": version,
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}} if pod.uid else {},
    }
    return ApiCall("POST", f"{pod_path(pod.namespace, pod.name)}/eviction", body)


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def node_pods_path(node: str, *, is_exact: bool) -> str:
    """Return the path that lists a node's pods: from the API server's cache, or exact.

    The cache is some milliseconds behind; for the exact list, servers before 1.31 read every pod of the cluster.
    """
    version = "" if is_exact else "&resourceVersion=0"
    return f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={node}', safe='')}{version}"


def read_budget_message(body: Raw) -> str | None:
    """Return the API server's message about a disruption budget; None if the response is about something else."""
    # {"reason": "DisruptionBudget", "message": "The disruption budget web needs 1 healthy pods and has 1 currently"}
    for cause in map(facts.mapping, facts.items(facts.mapping(body, "details"), "causes")):
        if cause.get("reason") == "DisruptionBudget":
            return facts.text(cause, "message", intern_it=False)
    message = facts.text(body, "message", intern_it=False)
    return message if "disruption budget" in message.lower() or "PodDisruptionBudget" in message else None


def _find_disk_volume(spec: Raw) -> str | None:
    """Return the first emptyDir on disk; one in memory is /dev/shm, which every training pod has and may lose."""
    for volume in map(facts.mapping, facts.items(spec, "volumes")):
        if "emptyDir" in volume and facts.mapping(volume, "emptyDir").get("medium") != "Memory":
            return facts.text(volume, "name")
    return None


def _describe_termination(metadata: Raw, at: datetime | None) -> str:
    deletes_at = facts.time(metadata.get("deletionTimestamp"))
    finalizers = ", ".join(str(finalizer) for finalizer in facts.items(metadata, "finalizers"))
    if deletes_at is None or at is None:
        return "terminating"
    seconds_left = deletes_at - at.timestamp()
    if seconds_left >= 0:
        return f"terminating, {seconds_left:.0f} s of its grace period left"
    blocker = f"blocked by its finalizers {finalizers}" if finalizers else "not confirmed by its kubelet"
    return f"should have terminated {-seconds_left:.0f} s ago, {blocker}"
