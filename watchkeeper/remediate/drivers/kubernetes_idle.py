"""Build the calls that reclaim idle pods: an event that warns the owner, and a patch that scales the controller down.

Pure; the driver makes the calls. The controller of the pods is set to `replicas: 0` or `suspend: true`, so the owner
loses nothing and can restore it with one `kubectl scale`; an annotation has the previous number. A pod with the
annotation `watchkeeper.dev/keep: "true"` is not reclaimed.
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
from watchkeeper.remediate.drivers.cluster_driver import KEEP_MARK, format_owner_warning
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, build_object_event

RECLAIMED_BY, REPLICAS_BEFORE = "watchkeeper.dev/reclaimed-by", "watchkeeper.dev/replicas-before"
MERGE_PATCH = "application/merge-patch+json"
# By kind of controller: its API path, and the fields that scale it down.
SCALE_PATCHES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Deployment": ("/apis/apps/v1/namespaces/{}/deployments/{}", {"replicas": 0}),
    "ReplicaSet": ("/apis/apps/v1/namespaces/{}/replicasets/{}", {"replicas": 0}),
    "StatefulSet": ("/apis/apps/v1/namespaces/{}/statefulsets/{}", {"replicas": 0}),
    "Job": ("/apis/batch/v1/namespaces/{}/jobs/{}", {"suspend": True}),
}
Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodController:
    """The controller that starts a pod again; `path` is None if it cannot be scaled down."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def path(self) -> str | None:
        if self.kind not in SCALE_PATCHES:
            return None
        return SCALE_PATCHES[self.kind][0].format(quote(self.namespace, safe=""), quote(self.name, safe=""))


def find_controller(raw: Raw) -> PodController | None:
    """Return the controller of a pod, ReplicaSet or Job; None if it has none."""
    metadata = facts.mapping(raw, "metadata")
    for owner in map(facts.mapping, facts.items(metadata, "ownerReferences")):
        if owner.get("controller") is True:
            return PodController(
                facts.text(owner, "kind"), facts.text(metadata, "namespace"), facts.text(owner, "name")
            )
    return None


def is_kept(raw: Raw) -> bool:
    """Whether the pod has the keep mark as an annotation or a label."""
    metadata = facts.mapping(raw, "metadata")
    keep_values = [facts.mapping(metadata, name).get(KEEP_MARK) for name in ("annotations", "labels")]
    return any(str(value).lower() not in ("none", "false", "no", "") for value in keep_values)


def has_ended(raw: Raw) -> bool:
    return facts.text(facts.mapping(raw, "status"), "phase") in ("Succeeded", "Failed")


def pods_path(controller: PodController, raw: Raw) -> str:
    """Return the path that lists a controller's pods, by its selector."""
    labels = facts.mapping(facts.mapping(facts.mapping(raw, "spec"), "selector"), "matchLabels")
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    return f"/api/v1/namespaces/{quote(controller.namespace, safe='')}/pods?labelSelector={quote(selector, safe='')}"


def is_scaled_down(controller: PodController, raw: Raw) -> bool:
    spec = facts.mapping(raw, "spec")
    return all(spec.get(name) == value for name, value in SCALE_PATCHES[controller.kind][1].items())


def build_scale_down(controller: PodController, raw: Raw, action: Action) -> ApiCall:
    """Build the patch that scales a controller down; the resource version protects concurrent changes."""
    metadata, spec = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec")
    annotations: dict[str, Any] = {RECLAIMED_BY: action.mark}
    if "replicas" in spec:
        annotations[REPLICAS_BEFORE] = str(spec["replicas"])
    patched_metadata: dict[str, Any] = {"annotations": annotations}
    if metadata.get("resourceVersion"):
        patched_metadata["resourceVersion"] = metadata["resourceVersion"]
    body = {"metadata": patched_metadata, "spec": dict(SCALE_PATCHES[controller.kind][1])}
    assert controller.path is not None
    return ApiCall("PATCH", controller.path, body, MERGE_PATCH)


def build_warning_event(raw: Raw, action: Action, *, at: datetime | None) -> ApiCall:
    """Build the event on a pod that warns its owner; its name contains the action, so a duplicate is refused."""
    metadata = facts.mapping(raw, "metadata")
    namespace, name, uid = (facts.text(metadata, key) for key in ("namespace", "name", "uid"))
    digest = hashlib.sha256(f"{action.mark} {namespace}/{name}".encode()).hexdigest()[:16]
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
    message = format_owner_warning(action, _keep_command(namespace, name))
    return build_object_event(
        f"{name[:200]}.{digest}", involved, reason="WatchkeeperIdle", message=message, is_warning=True, at=at
    )


def _keep_command(namespace: str, pod: str) -> str:
    return f"kubectl annotate pod -n {namespace} {pod} {KEEP_MARK}=true"


def describe_call(action: Action, name: str, version: str) -> str:
    """Describe the call for one pod, by its full name, without reading its controller."""
    namespace, _, pod = name.partition("/")
    if action.kind is ActionKind.WARN_OWNER:
        message = format_owner_warning(action, _keep_command(namespace, pod))
        return f"POST /api/v1/namespaces/{namespace}/events about {name}: {message}"
    if action.arguments.get("how") == "requeue":
        return f"POST /api/v1/namespaces/{namespace}/pods/{pod}/eviction ({version})"
    fallback = ", or an eviction if it has none" if action.arguments.get("how") == "cancel" else ""
    return f"PATCH the controller of {name} with spec.replicas=0 (a Job: spec.suspend=true){fallback}"
