"""Match Kubernetes objects: labels, selectors, namespaces, ports and taints, as the API defines them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from watchkeeper.doctor.stack.facts import Raw
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters.kubernetes_objects import GPU_RESOURCE


def name(raw: Raw) -> str:
    return facts.text(facts.mapping(raw, "metadata"), "name")


def namespace(raw: Raw) -> str:
    return facts.text(facts.mapping(raw, "metadata"), "namespace")


def full_name(raw: Raw) -> str:
    return f"{namespace(raw)}/{name(raw)}" if namespace(raw) else name(raw)


def spec(raw: Raw) -> Mapping[str, Any]:
    return facts.mapping(raw, "spec")


def labels(raw: Raw) -> Mapping[str, Any]:
    return facts.mapping(facts.mapping(raw, "metadata"), "labels")


def node(pod: Raw) -> str:
    return facts.text(spec(pod), "nodeName")


def has_all(present: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    return all(present.get(key) == value for key, value in required.items())


def selects(selector: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """Whether a label selector of the API matches the labels; an empty selector matches everything."""
    if not has_all(present, facts.mapping(selector, "matchLabels")):
        return False
    expressions = map(facts.mapping, facts.items(selector, "matchExpressions"))
    return all(_matches_expression(expression, present) for expression in expressions)


def _matches_expression(expression: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    key, values = facts.text(expression, "key"), list(facts.items(expression, "values"))
    match facts.text(expression, "operator"):
        case "In":
            return present.get(key) in values
        case "NotIn":
            return present.get(key) not in values
        case "Exists":
            return key in present
        case _:
            return key not in present


def selects_namespace(monitor: Raw, space: str) -> bool:
    """Whether a monitor selects Services in this namespace; without a namespaceSelector only in its own."""
    selector = facts.mapping(spec(monitor), "namespaceSelector")
    if selector.get("any") is True:
        return True
    listed = list(facts.items(selector, "matchNames"))
    return space in listed if listed else space == namespace(monitor)


def namespaces_text(monitor: Raw) -> str:
    selector = facts.mapping(spec(monitor), "namespaceSelector")
    if selector.get("any") is True:
        return "all namespaces"
    return ", ".join(map(str, facts.items(selector, "matchNames"))) or namespace(monitor)


def labels_text(present: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in present.items()) or "no labels"


def selector_text(selector: Mapping[str, Any]) -> str:
    parts = [f"{key}={value}" for key, value in facts.mapping(selector, "matchLabels").items()]
    for expression in facts.items(selector, "matchExpressions"):
        values = ", ".join(map(str, facts.items(expression, "values")))
        parts.append(f"{facts.text(expression, 'key')} {facts.text(expression, 'operator')} {values}".strip())
    return ", ".join(parts) or "everything"


def has_name_part(raw: Raw, parts: Iterable[str]) -> bool:
    """Whether the name or an app label of an object contains one of these texts."""
    names = [name(raw)]
    names += [str(labels(raw).get(key, "")) for key in ("app", "app.kubernetes.io/name", "app.kubernetes.io/component")]
    return any(part in text for part in parts for text in names)


def ports(service: Raw) -> list[Mapping[str, Any]]:
    return [facts.mapping(port) for port in facts.items(spec(service), "ports")]


def host_ports(pod: Raw) -> set[int]:
    """Host ports of a pod: its hostPorts, or all container ports if it uses the host network."""
    pod_spec = spec(pod)
    numbers = set()
    for container in facts.items(pod_spec, "containers"):
        for port in facts.items(container, "ports"):
            container_port = port.get("containerPort") if pod_spec.get("hostNetwork") is True else None
            if isinstance(number := port.get("hostPort") or container_port, int):
                numbers.add(number)
    return numbers


def has_gpus(raw: Raw) -> bool:
    capacity = facts.mapping(facts.mapping(raw, "status"), "capacity")
    return any(GPU_RESOURCE.match(key) and facts.count(value) for key, value in capacity.items())


def taints(raw: Raw) -> list[Mapping[str, Any]]:
    listed = (facts.mapping(taint) for taint in facts.items(spec(raw), "taints"))
    return [taint for taint in listed if taint.get("effect") in ("NoSchedule", "NoExecute")]


def tolerates(pod_spec: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration of a pod matches a taint, by the rules of the scheduler."""
    for toleration in facts.items(pod_spec, "tolerations"):
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        if toleration.get("operator") == "Exists" and toleration.get("key") in (None, "", taint.get("key")):
            return True
        if toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or ""):
            return True
    return False
