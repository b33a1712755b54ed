"""Taking idle pods back: the event that tells their owner, and the one patch that gives the GPUs free.

Pure, as `kubernetes_pods`: the driver asks the API server and makes the calls. What starts pods is told to start none
(`replicas: 0`, `suspend: true`), so nothing of the owner's is lost and one `kubectl scale` brings it back; how many
there were is written beside it. A pod that says `watchkeeper.dev/keep: "true"` is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.readers import json_facts as facts
from watchkeeper.remediate.drivers.cluster_driver import KEEP, told
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall

RECLAIMED_BY, REPLICAS_BEFORE = "watchkeeper.dev/reclaimed-by", "watchkeeper.dev/replicas-before"
MERGE_PATCH = "application/merge-patch+json"
LONGEST_MESSAGE = 1000
# What starts pods, where the API has it, and what a patch sets so that it starts none.
SCALED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Deployment": ("/apis/apps/v1/namespaces/{}/deployments/{}", {"replicas": 0}),
    "ReplicaSet": ("/apis/apps/v1/namespaces/{}/replicasets/{}", {"replicas": 0}),
    "StatefulSet": ("/apis/apps/v1/namespaces/{}/statefulsets/{}", {"replicas": 0}),
    "Job": ("/apis/batch/v1/namespaces/{}/jobs/{}", {"suspend": True}),
}
Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OwnerController:
    """What starts a pod again: a controller that this module can scale, or one that it cannot."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def path(self) -> str | None:
        if self.kind not in SCALED:
            return None
        return SCALED[self.kind][0].format(quote(self.namespace, safe=""), quote(self.name, safe=""))


def starter_of(raw: Raw) -> OwnerController | None:
    """The controller of a pod, a ReplicaSet or a Job; None for what nobody would start again."""
    about = facts.mapping(raw, "metadata")
    for owner in map(facts.mapping, facts.items(about, "ownerReferences")):
        if owner.get("controller") is True:
            return OwnerController(facts.text(owner, "kind"), facts.text(about, "namespace"), facts.text(owner, "name"))
    return None


def is_kept(raw: Raw) -> bool:
    """Its owner has said so, as an annotation or a label of the pod."""
    about = facts.mapping(raw, "metadata")
    said = (facts.mapping(about, "annotations").get(KEEP), facts.mapping(about, "labels").get(KEEP))
    return any(str(one).lower() not in ("none", "false", "no", "") for one in said)


def has_ended(raw: Raw) -> bool:
    """It holds nothing any more."""
    return facts.text(facts.mapping(raw, "status"), "phase") in ("Succeeded", "Failed")


def siblings(starter: OwnerController, raw: Raw) -> str:
    """Where the pods of a controller are listed, by the labels that it selects them by."""
    labels = facts.mapping(facts.mapping(facts.mapping(raw, "spec"), "selector"), "matchLabels")
    wanted = ",".join(f"{name}={value}" for name, value in labels.items())
    return f"/api/v1/namespaces/{quote(starter.namespace, safe='')}/pods?labelSelector={quote(wanted, safe='')}"


def is_still(starter: OwnerController, raw: Raw) -> bool:
    """It starts no pod any more."""
    spec = facts.mapping(raw, "spec")
    return all(spec.get(name) == value for name, value in SCALED[starter.kind][1].items())


def stilled(starter: OwnerController, raw: Raw, action: Action) -> ApiCall:
    """Start none from now on; only this version, so that nobody's change is overwritten."""
    about, spec = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec")
    notes: dict[str, Any] = {RECLAIMED_BY: action.mark}
    if "replicas" in spec:
        notes[REPLICAS_BEFORE] = str(spec["replicas"])
    patched: dict[str, Any] = {"annotations": notes}
    if about.get("resourceVersion"):
        patched["resourceVersion"] = about["resourceVersion"]
    body = {"metadata": patched, "spec": dict(SCALED[starter.kind][1])}
    assert starter.path is not None
    return ApiCall("PATCH", starter.path, body, MERGE_PATCH)


def warning(raw: Raw, action: Action, *, at: datetime | None) -> ApiCall:
    """An event on the pod, which `kubectl describe` shows; its name is the action's, so a second one is refused."""
    about = facts.mapping(raw, "metadata")
    namespace, name, uid = (facts.text(about, key) for key in ("namespace", "name", "uid"))
    digest = hashlib.sha256(f"{action.mark} {namespace}/{name}".encode()).hexdigest()[:16]
    written = None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name[:200]}.{digest}", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "reason": "WatchkeeperIdle",
        "message": told(action, f"kubectl annotate pod -n {namespace} {name} {KEEP}=true")[:LONGEST_MESSAGE],
        "type": "Warning",
        "source": {"component": "watchkeeper"},
        "reportingComponent": "watchkeeper",
        "reportingInstance": "watchkeeper",
        "firstTimestamp": written,
        "lastTimestamp": written,
        "count": 1,
    }
    return ApiCall("POST", f"/api/v1/namespaces/{quote(namespace, safe='')}/events", body)


def described(action: Action, namespace: str, pod: str, version: str) -> str:
    """The call for one pod, as far as it can be said without asking what starts it."""
    name = f"{namespace}/{pod}"
    if action.kind is ActionKind.WARN_OWNER:
        return (
            f"POST /api/v1/namespaces/{namespace}/events about {name}: {told(action, f'annotate it with {KEEP}=true')}"
        )
    if action.arguments.get("how") == "requeue":
        return f"POST /api/v1/namespaces/{namespace}/pods/{pod}/eviction ({version})"
    rest = ", an eviction where nothing would" if action.arguments.get("how") == "cancel" else ""
    return f"PATCH what starts {name} with spec.replicas=0 (a Job: spec.suspend=true){rest}"
