"""Which pods of a node a drain moves, which it leaves, and which it may not touch: the rules of `kubectl drain`.

Pure: the driver lists pods, asks `sort` about each, and evicts the ones that it may. A pod that may not be evicted is
waited for, with the reason and the way out; it may end by itself.
"""

from __future__ import annotations

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
MIRROR = "kubernetes.io/config.mirror"
# Tried in this order; Eviction of policy/v1 came with Kubernetes 1.22, v1beta1 went with 1.25.
EVICTION_VERSIONS = ("policy/v1", "policy/v1beta1")
Raw = Mapping[str, Any]


class DrainDecision(StrEnum):
    """What a drain does with a pod."""

    LEAVE = "leave"
    EVICT = "evict"
    ENDING = "ending"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """What may be evicted although `kubectl drain` would ask for --force or --delete-emptydir-data."""

    evict_unmanaged: bool = False
    delete_empty_dirs: bool = False


@dataclass(frozen=True, slots=True)
class PodState:
    """One look at a pod. `why` is for people, where it is left or waited for."""

    namespace: str
    name: str
    uid: str
    fate: DrainDecision
    why: str = ""
    # It was moved, or came later, and the scheduler would send it here for ever.
    is_back: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def waits(self) -> str:
        return f"pod {self}: {self.why}"


def sort(raw: Raw, rules: EvictionRules, *, at: datetime | None = None, since: str | None = None) -> PodState:
    """`since`: only pods of before that time are moved, as one list of `kubectl drain` would have them."""
    about, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    fate, why = _fate(about, spec, status, rules=rules, at=at)
    # `kubectl drain` moves only what it found at its beginning.
    is_back = fate in (DrainDecision.EVICT, DrainDecision.WAIT) and is_after(about, since) and _tolerates(spec, TAINT)
    if is_back:
        fate, why = DrainDecision.LEAVE, "it came after the cordon, because it tolerates it"
    return PodState(facts.text(about, "namespace"), facts.name_of(about), facts.text(about, "uid"), fate, why, is_back)


def _fate(
    about: Raw, spec: Raw, status: Raw, *, rules: EvictionRules, at: datetime | None
) -> tuple[DrainDecision, str]:
    controller = _controller(about)
    if controller == "DaemonSet":
        return DrainDecision.LEAVE, "its DaemonSet belongs to the node"
    if MIRROR in facts.mapping(about, "annotations"):
        return DrainDecision.LEAVE, "its kubelet starts it from a file"
    if facts.text(status, "phase") in ("Succeeded", "Failed"):
        return DrainDecision.LEAVE, "it has ended"
    if "deletionTimestamp" in about:
        return DrainDecision.ENDING, _ending(about, at)
    if not controller and not rules.evict_unmanaged:
        return DrainDecision.WAIT, "no controller would start it again; it may end, or set remediate.evict_unmanaged"
    if not rules.delete_empty_dirs and (volume := _empty_dir(spec)):
        return (
            DrainDecision.WAIT,
            f"its emptyDir `{volume}` would be lost; it may end, or set remediate.delete_empty_dirs",
        )
    return DrainDecision.EVICT, ""


def is_after(about: Raw, since: str | None) -> bool:
    """True for an object that was created later; unknown times are not later."""
    created, limit = facts.time(about.get("creationTimestamp")), facts.time(since)
    return created is not None and limit is not None and created > limit


def name_of(raw: Raw) -> str:
    about = facts.mapping(raw, "metadata")
    return f"{facts.text(about, 'namespace')}/{facts.text(about, 'name')}"


def named_by(action: Action) -> list[str]:
    """The pods that the action names as namespace/name."""
    return cluster_driver.named(
        action, "pods", is_name=_is_name, like="a pod such as research/train-0", asks="its kubelet"
    )


def _is_name(text: str) -> bool:
    return text.count("/") == 1 and all(text.split("/"))


def eviction(pod: PodState, version: str) -> ApiCall:
    """Without a grace period of ours, so that the pod's own counts; only this very pod, not its successor."""
    body = {
        "apiVersion": version,
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}} if pod.uid else {},
    }
    return ApiCall("POST", f"{path(pod.namespace, pod.name)}/eviction", body)


def path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def on_node(node: str, *, is_exact: bool) -> str:
    """The pods of a node: as the API server's cache has them, where it finds them by node, or as they are for sure.

    The cache is some milliseconds behind; the sure answer makes servers before 1.31 go through every pod there is.
    """
    version = "" if is_exact else "&resourceVersion=0"
    return f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={node}', safe='')}{version}"


def budget_of(body: Raw) -> str | None:
    """Why a disruption budget said no, in the API server's words; None where the answer is about something else."""
    # {"reason": "DisruptionBudget", "message": "The disruption budget web needs 1 healthy pods and has 1 currently"}
    for cause in map(facts.mapping, facts.items(facts.mapping(body, "details"), "causes")):
        if cause.get("reason") == "DisruptionBudget":
            return facts.text(cause, "message", intern_it=False)
    message = facts.text(body, "message", intern_it=False)
    return message if "disruption budget" in message.lower() or "PodDisruptionBudget" in message else None


def _controller(about: Raw) -> str:
    for owner in map(facts.mapping, facts.items(about, "ownerReferences")):
        if owner.get("controller") is True:
            return facts.text(owner, "kind")
    return ""


def _tolerates(spec: Raw, taint: str) -> bool:
    """True where the scheduler may put it on a node with a NoSchedule taint of this key."""
    return any(
        one.get("key", taint) == taint and one.get("effect", "NoSchedule") == "NoSchedule"
        for one in map(facts.mapping, facts.items(spec, "tolerations"))
    )


def _empty_dir(spec: Raw) -> str | None:
    """The first emptyDir on disk. One in memory is /dev/shm, which every training pod has and nobody misses."""
    for volume in map(facts.mapping, facts.items(spec, "volumes")):
        if "emptyDir" in volume and facts.mapping(volume, "emptyDir").get("medium") != "Memory":
            return facts.text(volume, "name")
    return None


def _ending(about: Raw, at: datetime | None) -> str:
    due = facts.time(about.get("deletionTimestamp"))
    held = ", ".join(str(one) for one in facts.items(about, "finalizers"))
    if due is None or at is None:
        return "it ends"
    left = due - at.timestamp()
    if left >= 0:
        return f"it ends, for which it has {left:.0f} s more"
    why = f"its finalizers hold it: {held}" if held else "its kubelet has not confirmed it"
    return f"it should have ended {-left:.0f} s ago, and {why}"
