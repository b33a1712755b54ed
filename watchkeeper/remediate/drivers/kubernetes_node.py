"""A Kubernetes node as the driver sees it, and what the driver writes on it. Pure: objects in, objects out.

A cordon is one patch: unschedulable, our mark, the time, and a taint, all or nothing, and only on the version that was
looked at. A condition and an event follow, for others to read. Whatever somebody else wrote stays as it is.

The taint that goes with `unschedulable` is ours to write as well. Left to the node controller, it follows a moment
later, and before Kubernetes 1.26 that writes the whole list of taints as it was read, which undoes what others wrote
in between: ours is lost, or is back on a node that we have given back.
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
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall
from watchkeeper.remediate.drivers.kubernetes_pods import TAINT

CORDONED_AT = "watchkeeper.dev/cordoned-at"
CONDITION = "WatchkeeperUnhealthy"
# What the scheduler looks at; the node controller keeps it in step with `spec.unschedulable`.
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
# The namespace of events about things that have none.
EVENTS = "/api/v1/namespaces/default/events"
# Kubernetes allows 1,024 characters in the message of an event.
LONGEST_MESSAGE = 1000
Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One look at a node; `at` is the API server's time of it."""

    name: str
    uid: str
    version: str
    is_cordoned: bool
    mark: str | None
    cordoned_at: str | None
    taints: tuple[Raw, ...]
    conditions: tuple[Raw, ...]
    held_by: tuple[str, ...]
    unhealthy: tuple[str, ...]
    at: datetime | None = None

    @property
    def is_settling(self) -> bool:
        """True from somebody's uncordon until the node controller has taken its own taint off."""
        return not self.is_cordoned and any(one.get("key") == UNSCHEDULABLE["key"] for one in self.taints)

    def is_ours(self, action: Action) -> bool:
        """True for a mark of the same incident, whichever of its actions set it."""
        return self.mark is not None and self.mark.startswith(f"watchkeeper:{action.incident}/")


def read(raw: Raw, at: datetime | None) -> NodeSnapshot:
    about, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    annotations = facts.mapping(about, "annotations")
    taints = tuple(one for one in facts.items(spec, "taints") if isinstance(one, dict))
    conditions = tuple(one for one in facts.items(status, "conditions") if isinstance(one, dict))
    found = list(_signals(about, taints, conditions))
    return NodeSnapshot(
        facts.name_of(about),
        uid=facts.text(about, "uid"),
        version=facts.text(about, "resourceVersion"),
        is_cordoned=spec.get("unschedulable") is True,
        mark=facts.text(annotations, objects.CORDONED_BY) or None,
        cordoned_at=facts.text(annotations, CORDONED_AT) or None,
        taints=taints,
        conditions=conditions,
        held_by=tuple(text for means, text in found if means is Meaning.HELD),
        unhealthy=tuple(text for means, text in found if means is Meaning.UNHEALTHY),
        at=at,
    )


def _signals(about: Raw, taints: tuple[Raw, ...], conditions: tuple[Raw, ...]) -> Iterator[tuple[Meaning, str]]:
    """What others have written on the node, each with what it means and whose it is."""
    written = [
        *((SignalKind.CONDITION, facts.text(one, "type"), facts.text(one, "status")) for one in conditions),
        *((SignalKind.TAINT, facts.text(one, "key"), facts.text(one, "value")) for one in taints),
        *((SignalKind.LABEL, name, str(value)) for name, value in facts.mapping(about, "labels").items()),
        *((SignalKind.ANNOTATION, name, str(value)) for name, value in facts.mapping(about, "annotations").items()),
    ]
    messages = {facts.text(one, "type"): facts.text(one, "message", intern_it=False) for one in conditions}
    for kind, name, value in written:
        row = node_signals.find_signal(kind, name, value)
        if row is not None:
            message = f": {messages[name][:200]}" if kind is SignalKind.CONDITION and messages.get(name) else ""
            yield row.means, f"{row.whose} ({kind} {name}{f'={value}' if value else ''}{message})"


def path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"


def cordon(node: NodeSnapshot, action: Action) -> ApiCall:
    taint = {"key": TAINT, "value": _label_value(action.incident), "effect": "NoSchedule"}
    others = _without(node.taints, TAINT, UNSCHEDULABLE["key"])
    annotations: dict[str, Any] = {objects.CORDONED_BY: action.mark}
    if node.at is not None:
        annotations[CORDONED_AT] = _written(node.at)
    return _patch(node, annotations, {"unschedulable": True, "taints": [*others, UNSCHEDULABLE, taint]})


def uncordon(node: NodeSnapshot) -> ApiCall:
    """Take off what is ours. A node that somebody else holds meanwhile stays unschedulable, and is theirs."""
    spec: dict[str, Any] = {} if node.held_by else {"unschedulable": None}
    gone = (TAINT,) if node.held_by else (TAINT, UNSCHEDULABLE["key"])
    others = _without(node.taints, *gone)
    if len(others) < len(node.taints):
        spec["taints"] = others or None
    return _patch(node, {objects.CORDONED_BY: None, CORDONED_AT: None}, spec)


def _without(taints: tuple[Raw, ...], *keys: str) -> list[Raw]:
    return [one for one in taints if one.get("key") not in keys]


def _patch(node: NodeSnapshot, annotations: Raw, spec: Raw) -> ApiCall:
    about: dict[str, Any] = {"annotations": annotations}
    if node.version:
        about["resourceVersion"] = node.version
    return ApiCall("PATCH", path(node.name), {"metadata": about, "spec": spec}, MERGE_PATCH)


def condition(node: NodeSnapshot, action: Action, *, is_unhealthy: bool) -> ApiCall | None:
    """Our verdict where others look for it, as node-problem-detector writes its own; None where it stands already."""
    cause = action.arguments.get("cause", "")
    wanted = {
        "type": CONDITION,
        "status": "True" if is_unhealthy else "False",
        "reason": (_camel_case(cause) or "Cordoned") if is_unhealthy else "Repaired",
        "message": f"{action.why} ({action.mark})"[:LONGEST_MESSAGE],
    }
    before = next((one for one in node.conditions if one.get("type") == CONDITION), {})
    if all(before.get(name) == value for name, value in wanted.items()):
        return None
    if before.get("status") == wanted["status"] and before.get("lastTransitionTime"):
        since = before["lastTransitionTime"]
    else:
        since = _written(node.at)
    whole = {**wanted, "lastHeartbeatTime": _written(node.at), "lastTransitionTime": since}
    return ApiCall("PATCH", f"{path(node.name)}/status", {"status": {"conditions": [whole]}}, STRATEGIC_PATCH)


def event(node: NodeSnapshot, action: Action, *, reason: str, is_warning: bool = False) -> ApiCall:
    """An event with a name of its action: the second one is refused by the API server, and that is fine."""
    digest = hashlib.sha256(f"{action.mark} {reason}".encode()).hexdigest()[:16]
    at = _written(node.at)
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node.name}.{digest}", "namespace": "default"},
        # kubectl looks for events about a node under its name, as the kubelet writes them.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.name},
        "reason": reason,
        "message": f"{action.why} ({action.mark})"[:LONGEST_MESSAGE],
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": "watchkeeper"},
        "reportingComponent": "watchkeeper",
        "reportingInstance": "watchkeeper",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    return ApiCall("POST", EVENTS, body)


def _written(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _label_value(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-._")


def _camel_case(cause: str) -> str:
    return "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", cause))
