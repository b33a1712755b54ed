"""Parse Kubernetes nodes and build the calls that cordon and uncordon them. Pure.

A cordon is one patch with the resource version that was read: unschedulable, our mark, the time and a taint. A
condition and an event follow, for other tools. Everything that others wrote is kept.

The patch also writes the taint that belongs to `unschedulable`. The node controller would add it a moment later, and
before Kubernetes 1.26 it writes the whole list of taints as it read it, which reverts changes made in between: our
taint would be lost, or return on a node that we uncordoned.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from watchkeeper.catalogue import node_signals
from watchkeeper.catalogue.node_signals import Meaning, SignalKind
from watchkeeper.model.actions import Action
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.remediate.drivers import kubernetes_client
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, build_object_event, format_timestamp
from watchkeeper.remediate.drivers.kubernetes_pods import TAINT

CORDONED_AT = "watchkeeper.dev/cordoned-at"
CONDITION = "WatchkeeperUnhealthy"
# The taint that the scheduler reads; the node controller derives it from `spec.unschedulable`.
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
# Events about objects without a namespace are in this one.
EVENTS_PATH = "/api/v1/namespaces/default/events"
Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node as read at `at`, by the API server's clock."""

    name: str
    uid: str
    version: str
    is_cordoned: bool
    mark: str | None
    cordoned_at: str | None
    taints: tuple[Raw, ...]
    conditions: tuple[Raw, ...]
    maintained_by: tuple[str, ...]
    health_problems: tuple[str, ...]
    at: datetime | None = None

    @property
    def is_taint_pending(self) -> bool:
        """Whether the node was uncordoned and the node controller has not removed its taint yet."""
        return not self.is_cordoned and any(taint.get("key") == UNSCHEDULABLE["key"] for taint in self.taints)


def parse_node(raw: Raw, at: datetime | None) -> NodeSnapshot:
    metadata, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    annotations = facts.mapping(metadata, "annotations")
    taints = tuple(taint for taint in facts.items(spec, "taints") if isinstance(taint, dict))
    conditions = tuple(condition for condition in facts.items(status, "conditions") if isinstance(condition, dict))
    signals = list(_read_signals(metadata, taints, conditions))
    return NodeSnapshot(
        facts.require_name(metadata),
        uid=facts.text(metadata, "uid"),
        version=facts.text(metadata, "resourceVersion"),
        is_cordoned=spec.get("unschedulable") is True,
        mark=facts.text(annotations, objects.CORDONED_BY) or None,
        cordoned_at=facts.text(annotations, CORDONED_AT) or None,
        taints=taints,
        conditions=conditions,
        maintained_by=tuple(text for meaning, text in signals if meaning is Meaning.HELD),
        health_problems=tuple(text for meaning, text in signals if meaning is Meaning.UNHEALTHY),
        at=at,
    )


def _read_signals(metadata: Raw, taints: tuple[Raw, ...], conditions: tuple[Raw, ...]) -> Iterator[tuple[Meaning, str]]:
    entries = [
        *((SignalKind.CONDITION, facts.text(row, "type"), facts.text(row, "status")) for row in conditions),
        *((SignalKind.TAINT, facts.text(taint, "key"), facts.text(taint, "value")) for taint in taints),
        *((SignalKind.LABEL, name, str(value)) for name, value in facts.mapping(metadata, "labels").items()),
        *((SignalKind.ANNOTATION, name, str(value)) for name, value in facts.mapping(metadata, "annotations").items()),
    ]
    messages = {facts.text(row, "type"): facts.text(row, "message", intern_it=False) for row in conditions}
    for kind, name, value in entries:
        signal = node_signals.find_signal(kind, name, value)
        if signal is not None:
            message = f": {messages[name][:200]}" if kind is SignalKind.CONDITION and messages.get(name) else ""
            yield signal.means, f"{signal.whose} ({kind} {name}{f'={value}' if value else ''}{message})"


def node_path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"


def build_cordon(node: NodeSnapshot, action: Action) -> ApiCall:
    taint = {"key": TAINT, "value": _label_value(action.incident), "effect": "NoSchedule"}
    other_taints = _exclude_taints(node.taints, TAINT, UNSCHEDULABLE["key"])
    annotations: dict[str, Any] = {objects.CORDONED_BY: action.mark}
    if node.at is not None:
        annotations[CORDONED_AT] = format_timestamp(node.at)
    return _build_patch(node, annotations, {"unschedulable": True, "taints": [*other_taints, UNSCHEDULABLE, taint]})


def build_uncordon(node: NodeSnapshot) -> ApiCall:
    """Remove our own changes; a node that another tool maintains meanwhile stays unschedulable."""
    spec: dict[str, Any] = {} if node.maintained_by else {"unschedulable": None}
    own_keys = (TAINT,) if node.maintained_by else (TAINT, UNSCHEDULABLE["key"])
    other_taints = _exclude_taints(node.taints, *own_keys)
    if len(other_taints) < len(node.taints):
        spec["taints"] = other_taints or None
    return _build_patch(node, {objects.CORDONED_BY: None, CORDONED_AT: None}, spec)


def _exclude_taints(taints: tuple[Raw, ...], *keys: str) -> list[Raw]:
    return [taint for taint in taints if taint.get("key") not in keys]


def _build_patch(node: NodeSnapshot, annotations: Raw, spec: Raw) -> ApiCall:
    metadata: dict[str, Any] = {"annotations": annotations}
    if node.version:
        metadata["resourceVersion"] = node.version
    return ApiCall("PATCH", node_path(node.name), {"metadata": metadata, "spec": spec}, MERGE_PATCH)


def build_condition(node: NodeSnapshot, action: Action, *, is_unhealthy: bool) -> ApiCall | None:
    """Build our node condition, like those of node-problem-detector; None if the node has it already."""
    cause = action.arguments.get("cause", "")
    condition_fields = {
        "type": CONDITION,
        "status": "True" if is_unhealthy else "False",
        "reason": (_camel_case(cause) or "Cordoned") if is_unhealthy else "Repaired",
        "message": f"{action.why} ({action.mark})"[: kubernetes_client.MAX_EVENT_MESSAGE_LENGTH],
    }
    previous = next((condition for condition in node.conditions if condition.get("type") == CONDITION), {})
    if all(previous.get(name) == value for name, value in condition_fields.items()):
        return None
    if previous.get("status") == condition_fields["status"] and previous.get("lastTransitionTime"):
        since = previous["lastTransitionTime"]
    else:
        since = format_timestamp(node.at)
    condition = {**condition_fields, "lastHeartbeatTime": format_timestamp(node.at), "lastTransitionTime": since}
    return ApiCall("PATCH", f"{node_path(node.name)}/status", {"status": {"conditions": [condition]}}, STRATEGIC_PATCH)


def build_event(node: NodeSnapshot, action: Action, *, reason: str, is_warning: bool = False) -> ApiCall:
    """Build an event on the node; its name contains the action, so the API server refuses a duplicate."""
    digest = hashlib.sha256(f"{action.mark} {reason}".encode()).hexdigest()[:16]
    # kubectl finds the events of a node under its name, as the kubelet writes them.
    involved = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.name}
    name, message = f"{node.name}.{digest}", f"{action.why} ({action.mark})"
    return build_object_event(name, involved, reason=reason, message=message, is_warning=is_warning, at=node.at)


def _label_value(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-._")


def _camel_case(cause: str) -> str:
    return "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", cause))
