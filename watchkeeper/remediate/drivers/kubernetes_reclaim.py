"""Reclaim idle pods: warn their owner, scale their controller to zero, or evict them.

Part of the driver in `kubernetes`, which passes its functions for calls. The controller is set to `replicas: 0` or
`suspend: true`, so the owner loses nothing and can restore it with one `kubectl scale`. A controller with other pods
that are not idle is not scaled, and a pod with the keep mark is not reclaimed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from watchkeeper.errors import ActionRefused
from watchkeeper.model.actions import Action, ActionKind
from watchkeeper.readers import json_facts as facts
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.remediate.drivers import kubernetes_pods as pods
from watchkeeper.remediate.drivers.cluster_driver import KEEP_MARK, format_owner_warning
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiResponse, build_object_event, require_success

RECLAIMED_BY, REPLICAS_BEFORE = "watchkeeper.dev/reclaimed-by", "watchkeeper.dev/replicas-before"
MERGE_PATCH = "application/merge-patch+json"
# By kind of controller: its API path, and the fields that scale it down.
SCALE_PATCHES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Deployment": ("/apis/apps/v1/namespaces/{}/deployments/{}", {"replicas": 0}),
    "ReplicaSet": ("/apis/apps/v1/namespaces/{}/replicasets/{}", {"replicas": 0}),
    "StatefulSet": ("/apis/apps/v1/namespaces/{}/statefulsets/{}", {"replicas": 0}),
    "Job": ("/apis/batch/v1/namespaces/{}/jobs/{}", {"suspend": True}),
}
# `how = "cancel"` may evict pods without a controller, and delete their emptyDirs.
EVICT_ALL = pods.EvictionRules(evict_unmanaged=True, delete_empty_dirs=True)
# Pod, ReplicaSet, Deployment: no known owners above these.
MAX_OWNERS = 3
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
            kind, name = facts.text(owner, "kind"), facts.text(owner, "name")
            return PodController(kind, facts.text(metadata, "namespace"), name)
    return None


def is_kept(raw: Raw) -> bool:
    metadata = facts.mapping(raw, "metadata")
    keep_values = [facts.mapping(metadata, name).get(KEEP_MARK) for name in ("annotations", "labels")]
    return any(str(value).lower() not in ("none", "false", "no", "") for value in keep_values)


def has_ended(raw: Raw) -> bool:
    return facts.text(facts.mapping(raw, "status"), "phase") in ("Succeeded", "Failed")


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


@dataclass(frozen=True, slots=True)
class PodReclaimer:
    """`send` reads, `change` writes unless repairs are halted, `classify` and `evict` are those of a drain."""

    send: Callable[[ApiCall], ApiResponse]
    change: Callable[[ApiCall], ApiResponse]
    evict: Callable[[list[pods.PodState], Action], ActionOutcome]
    classify: Callable[[list[pods.Raw], None, Action], list[pods.PodState]]

    def warn_owner(self, action: Action, raw_pods: Sequence[pods.Raw], at: datetime | None) -> ActionOutcome:
        live = [raw for raw in raw_pods if not has_ended(raw)]
        for raw in live:
            _refuse_keep_mark(raw)
        for raw in live:
            response = self.change(build_warning_event(raw, action, at=at))
            if response.status != 409:
                require_success(response, action.place)
        names = ", ".join(map(pods.full_name, live))
        return ActionOutcome(f"warned the owners of {names or 'no pods: all have ended'}")

    def reclaim(self, action: Action, raw_pods: Sequence[pods.Raw]) -> ActionOutcome:
        method = cluster_driver.read_reclaim_method(action)
        before = action.arguments.get("before")
        # A newer pod of the same name is a successor, whose owner was not warned.
        planned = [raw for raw in raw_pods if not pods.is_newer(facts.mapping(raw, "metadata"), before)]
        live = [raw for raw in planned if not has_ended(raw)]
        for raw in live:
            _refuse_keep_mark(raw)
        if method == "requeue":
            return self.evict(self.classify(live, None, action), action)
        controllers = {pods.full_name(raw): self._find_top_controller(raw, action) for raw in live}
        scalable = {name for name, controller in controllers.items() if controller is not None and controller.path}
        unscalable = [raw for raw in live if pods.full_name(raw) not in scalable]
        if unscalable and method != "cancel":
            name = pods.full_name(unscalable[0])
            started_by = "no controller"
            if (controller := controllers[name]) is not None:
                started_by = f"the controller {controller}, which cannot be scaled down"
            remedy = 'Set `how` in the policy: "cancel" ends the pod, "requeue" evicts it'
            raise cluster_driver.build_refusal(f"{name} has {started_by}", name, remedy)
        scale_texts = [
            self._scale_down(controller, action, {pods.full_name(raw) for raw in live})
            for controller in dict.fromkeys(controllers.values())
            if controller is not None and controller.path is not None
        ]
        outcome = self.evict([pods.classify_pod(raw, EVICT_ALL) for raw in unscalable], action)
        scaled = (f"pod {pods.full_name(raw)}: terminating" for raw in live if raw not in unscalable)
        blockers = (*outcome.waits_for, *scaled)
        text = "; ".join(scale_text for scale_text in scale_texts if scale_text) or outcome.text
        return ActionOutcome(text, is_complete=not blockers, waits_for=blockers)

    def _find_top_controller(self, raw: pods.Raw, action: Action) -> PodController | None:
        """Return the topmost controller of a pod: a ReplicaSet mostly belongs to a Deployment."""
        controller = find_controller(raw)
        for _ in range(MAX_OWNERS):
            if controller is None or controller.path is None:
                return controller
            owner = find_controller(require_success(self.send(ApiCall("GET", controller.path)), action.place).body)
            if owner is None or owner.path is None:
                # An owner such as a CronJob or an operator cannot be scaled down; it may create another object.
                return controller
            controller = owner
        return controller

    def _scale_down(self, controller: PodController, action: Action, idle_pods: set[str]) -> str:
        """Scale a controller to zero, unless it has pods that are not idle."""
        assert controller.path is not None
        raw = require_success(self.send(ApiCall("GET", controller.path)), action.place).body
        spec, (_, scaled_down) = facts.mapping(raw, "spec"), SCALE_PATCHES[controller.kind]
        if all(spec.get(name) == value for name, value in scaled_down.items()):
            return f"{controller} is already scaled down"
        labels = facts.mapping(facts.mapping(spec, "selector"), "matchLabels")
        selector = quote(",".join(f"{name}={value}" for name, value in labels.items()), safe="")
        path = f"/api/v1/namespaces/{quote(controller.namespace, safe='')}/pods?labelSelector={selector}"
        listed = require_success(self.send(ApiCall("GET", path)), action.place).body
        live = [pod for pod in facts.items(listed, "items") if isinstance(pod, dict) and not has_ended(pod)]
        if other_pods := sorted({pods.full_name(pod) for pod in live} - idle_pods):
            raise ActionRefused(
                f"{controller} has {len(other_pods)} other pods that are not idle, such as {other_pods[0]}",
                where=str(controller),
                now="Nothing was scaled",
                remedy='To evict only the idle pods, set `how = "requeue"` in the policy',
            )
        require_success(self.change(build_scale_down(controller, raw, action)), action.place)
        return f"scaled down {controller}"


def _refuse_keep_mark(raw: pods.Raw) -> None:
    if is_kept(raw):
        raise cluster_driver.build_keep_refusal(pods.full_name(raw), f"it is annotated with {cluster_driver.KEEP_MARK}")
