"""Reclaim idle pods: warn their owner, scale their controller to zero, or evict them.

Part of the driver in `kubernetes`, which passes its functions for calls. A controller with other pods that are not idle
is not scaled, and a pod with the keep mark is not reclaimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.errors import ActionRefused
from watchkeeper.model.actions import Action
from watchkeeper.readers import json_facts as facts
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.drivers import cluster_driver
from watchkeeper.remediate.drivers import kubernetes_idle as idle
from watchkeeper.remediate.drivers import kubernetes_pods as pods
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiResponse, require_success

# `how = "cancel"` may evict pods without a controller, and delete their emptyDirs.
EVICT_ALL = pods.EvictionRules(evict_unmanaged=True, delete_empty_dirs=True)
# Pod, ReplicaSet, Deployment: no known owners above these.
MAX_OWNERS = 3


@dataclass(frozen=True, slots=True)
class PodReclaimer:
    """`send` reads, `change` writes unless repairs are halted, `classify` and `evict` are those of a drain."""

    send: Callable[[ApiCall], ApiResponse]
    change: Callable[[ApiCall], ApiResponse]
    evict: Callable[[list[pods.PodState], Action], ActionOutcome]
    classify: Callable[[list[pods.Raw], None, Action], list[pods.PodState]]

    def warn_owner(self, action: Action, raw_pods: Sequence[pods.Raw], at: datetime | None) -> ActionOutcome:
        live = [raw for raw in raw_pods if not idle.has_ended(raw)]
        for raw in live:
            _refuse_keep_mark(raw)
        for raw in live:
            response = self.change(idle.build_warning_event(raw, action, at=at))
            if response.status != 409:
                require_success(response, action.place)
        names = ", ".join(map(pods.full_name, live))
        return ActionOutcome(f"warned the owners of {names or 'no pods: all have ended'}")

    def reclaim(self, action: Action, raw_pods: Sequence[pods.Raw]) -> ActionOutcome:
        method = cluster_driver.read_reclaim_method(action)
        planned = [raw for raw in raw_pods if not _is_successor(raw, action)]
        live = [raw for raw in planned if not idle.has_ended(raw)]
        for raw in live:
            _refuse_keep_mark(raw)
        if method == "requeue":
            return self.evict(self.classify(live, None, action), action)
        controllers = {pods.full_name(raw): self._find_top_controller(raw, action) for raw in live}
        scalable = {name for name, controller in controllers.items() if controller is not None and controller.path}
        unscalable = [raw for raw in live if pods.full_name(raw) not in scalable]
        if unscalable and method != "cancel":
            raise _build_unscalable_refusal(unscalable[0], controllers[pods.full_name(unscalable[0])])
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

    def _find_top_controller(self, raw: pods.Raw, action: Action) -> idle.PodController | None:
        """Return the topmost controller of a pod: a ReplicaSet mostly belongs to a Deployment."""
        controller = idle.find_controller(raw)
        for _ in range(MAX_OWNERS):
            if controller is None or controller.path is None:
                return controller
            owner = idle.find_controller(require_success(self.send(ApiCall("GET", controller.path)), action.place).body)
            if owner is None or owner.path is None:
                # An owner such as a CronJob or an operator cannot be scaled down; it may create another object.
                return controller
            controller = owner
        return controller

    def _scale_down(self, controller: idle.PodController, action: Action, idle_pods: set[str]) -> str:
        """Scale a controller to zero, unless it has pods that are not idle."""
        assert controller.path is not None
        raw = require_success(self.send(ApiCall("GET", controller.path)), action.place).body
        if idle.is_scaled_down(controller, raw):
            return f"{controller} is already scaled down"
        listed = require_success(self.send(ApiCall("GET", idle.pods_path(controller, raw))), action.place).body
        live = [pod for pod in facts.items(listed, "items") if isinstance(pod, dict) and not idle.has_ended(pod)]
        if other_pods := sorted({pods.full_name(pod) for pod in live} - idle_pods):
            raise ActionRefused(
                f"{controller} has {len(other_pods)} other pods that are not idle, such as {other_pods[0]}",
                where=str(controller),
                now="Nothing was scaled",
                remedy='To evict only the idle pods, set `how = "requeue"` in the policy',
            )
        response = self.change(idle.build_scale_down(controller, raw, action))
        require_success(response, action.place)
        return f"scaled down {controller}"


def _is_successor(raw: pods.Raw, action: Action) -> bool:
    """Whether the pod is newer than the incident: a successor with the same name, whose owner was not warned."""
    return pods.is_newer(facts.mapping(raw, "metadata"), action.arguments.get("before"))


def _refuse_keep_mark(raw: pods.Raw) -> None:
    if idle.is_kept(raw):
        raise cluster_driver.build_keep_refusal(pods.full_name(raw), f"it is annotated with {cluster_driver.KEEP_MARK}")


def _build_unscalable_refusal(raw: pods.Raw, controller: idle.PodController | None) -> ActionRefused:
    started_by = "no controller" if controller is None else f"the controller {controller}, which cannot be scaled down"
    remedy = 'Set `how` in the policy: "cancel" ends the pod, "requeue" evicts it'
    return cluster_driver.build_refusal(f"{pods.full_name(raw)} has {started_by}", pods.full_name(raw), remedy)
