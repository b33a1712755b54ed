"""How Kubernetes objects find each other: labels, selectors, namespaces, ports, taints, as the API defines them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from watchkeeper.doctor.stack.facts import Raw
from watchkeeper.readers import json_facts as facts
from watchkeeper.readers.clusters.kubernetes_objects import GPU_RESOURCE


def name(raw: Raw) -> str:
    about = facts.mapping(raw, "metadata")
    space = facts.text(about, "namespace")
    return f"{space}/{facts.text(about, 'name')}" if space else facts.text(about, "name")


def namespace(raw: Raw) -> str:
    return facts.text(facts.mapping(raw, "metadata"), "namespace")


def labels(raw: Raw) -> Mapping[str, Any]:
    return facts.mapping(facts.mapping(raw, "metadata"), "labels")


def node(pod: Raw) -> str:
    return facts.text(facts.mapping(pod, "spec"), "nodeName")


def inside(raws: Iterable[Raw], space: str) -> Iterator[Raw]:
    return (raw for raw in raws if namespace(raw) == space)


def has_all(present: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    return all(present.get(key) == value for key, value in required.items())


def selects(selector: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    """A label selector of the API; an empty one selects everything."""
    if not has_all(present, facts.mapping(selector, "matchLabels")):
        return False
    return all(_meets(facts.mapping(expression), present) for expression in facts.items(selector, "matchExpressions"))


def _meets(demand: Mapping[str, Any], present: Mapping[str, Any]) -> bool:
    key, values = facts.text(demand, "key"), list(facts.items(demand, "values"))
    match facts.text(demand, "operator"):
        case "In":
            return present.get(key) in values
        case "NotIn":
            return present.get(key) not in values
        case "Exists":
            return key in present
        case _:
            return key not in present


def looks_into(monitor: Raw, space: str) -> bool:
    """Whether a monitor looks for its Services in this namespace; without a word about it, only in its own."""
    selector = facts.mapping(facts.mapping(monitor, "spec"), "namespaceSelector")
    if selector.get("any") is True:
        return True
    listed = list(facts.items(selector, "matchNames"))
    return space in listed if listed else space == namespace(monitor)


def namespaces_text(monitor: Raw) -> str:
    selector = facts.mapping(facts.mapping(monitor, "spec"), "namespaceSelector")
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


def is_called(raw: Raw, parts: Iterable[str]) -> bool:
    """Whether an object's name or its app labels have one of these words."""
    names = [facts.text(facts.mapping(raw, "metadata"), "name")]
    names += [str(labels(raw).get(key, "")) for key in ("app", "app.kubernetes.io/name", "app.kubernetes.io/component")]
    return any(part in text for part in parts for text in names)


def ports(service: Raw) -> list[Mapping[str, Any]]:
    return [facts.mapping(port) for port in facts.items(facts.mapping(service, "spec"), "ports")]


def host_ports(pod: Raw) -> set[int]:
    """Ports of the host that a pod wants: named as hostPort, or any of a pod in the host's network."""
    spec = facts.mapping(pod, "spec")
    numbers = set()
    for container in facts.items(spec, "containers"):
        for port in facts.items(container, "ports"):
            taken = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") is True else None)
            if isinstance(taken, int):
                numbers.add(taken)
    return numbers


def has_gpus(raw: Raw) -> bool:
    capacity = facts.mapping(facts.mapping(raw, "status"), "capacity")
    return any(GPU_RESOURCE.match(key) and facts.count(value) for key, value in capacity.items())


def taints(raw: Raw) -> list[Mapping[str, Any]]:
    listed = (facts.mapping(one) for one in facts.items(facts.mapping(raw, "spec"), "taints"))
    return [taint for taint in listed if taint.get("effect") in ("NoSchedule", "NoExecute")]


def tolerates(spec: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether one of the tolerations of a pod fits a taint, as the scheduler judges."""
    for toleration in facts.items(spec, "tolerations"):
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        if toleration.get("operator") == "Exists" and toleration.get("key") in (None, "", taint.get("key")):
            return True
        if toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or ""):
            return True
    return False
