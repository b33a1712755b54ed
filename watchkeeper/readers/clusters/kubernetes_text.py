"""`kubectl describe` and `kubectl get -o json|yaml` into the few facts about nodes and pods that matter for GPUs.

YAML is read only where PyYAML is installed; without it the same text still goes through the line patterns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.readers import json_facts

GPU_RESOURCE = re.compile(r"^(?:nvidia\.com/(?:gpu|mig-)|amd\.com/gpu|gpu\.intel\.com/)")
# Capacity:      then      nvidia.com/gpu:     8
SECTION = re.compile(
    r"^(?P<name>Capacity|Allocatable|System Info|Conditions|Name|Allocated resources):\s*(?P<value>.*)$"
)
RESOURCE = re.compile(r"^\s+(?P<name>[\w./-]+):\s+(?P<value>\S+)\s*$")
# allocatable:        …        nvidia.com/gpu: "0"
STATUS_BLOCK = re.compile(
    r"(?m)^(?P<indent> *)(?P<name>allocatable|capacity): *\n(?P<items>(?:(?P=indent) +\S+: .*\n?)+)"
)
STATUS_ITEM = re.compile(r"(?m)^ +(?P<name>[\w./-]+): \"?(?P<value>\w+)\"? *$")
MAX_ITEMS = 50_000


@dataclass(slots=True)
class NodeFacts:
    """A node's own word about its resources; an empty mapping means the printout has none."""

    name: str
    line: int
    capacity: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] = field(default_factory=dict)
    is_ready: bool | None = None


@dataclass(slots=True)
class PodFacts:
    """What a pod says about itself; `endings` are (container, reason, exit code) of containers that ended."""

    name: str
    namespace: str
    node: str
    line: int
    requests_gpu: bool | None = None
    endings: list[tuple[str, str, int | None]] = field(default_factory=list)


def gpu_count(resources: Mapping[str, str]) -> int | None:
    """GPUs among the resources; None if no GPU resource is listed."""
    counts = [json_facts.count(value) for name, value in resources.items() if GPU_RESOURCE.match(name)]
    found = [count for count in counts if count is not None]
    return sum(found) if found else None


def read_node_text(lines: Sequence[str]) -> list[NodeFacts]:
    """`kubectl describe node`, also a cut-out that starts at Capacity."""
    nodes: list[NodeFacts] = []
    section, name, line_of_name = "", "", 1
    for number, line in enumerate(lines, 1):
        if (header := SECTION.match(line)) is not None:
            section = header["name"]
            if section == "Name":
                name, line_of_name = header["value"].strip(), number
            elif section == "Capacity":
                nodes.append(NodeFacts(name, number if not name else line_of_name))
        elif line and not line[0].isspace():
            section = ""
        elif nodes and section in ("Capacity", "Allocatable") and (item := RESOURCE.match(line)) is not None:
            target = nodes[-1].capacity if section == "Capacity" else nodes[-1].allocatable
            target[item["name"]] = item["value"]
    return nodes


def read_status_excerpt(text: str) -> NodeFacts | None:
    """The resources of one node in a piece of `kubectl get node -o yaml` that lacks the object's beginning."""
    blocks = {found["name"]: found for found in STATUS_BLOCK.finditer(text)}
    if "capacity" not in blocks:
        return None
    node = NodeFacts("", text.count("\n", 0, blocks["capacity"].start()) + 1)
    for name, target in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        if name in blocks:
            target.update({item["name"]: item["value"] for item in STATUS_ITEM.finditer(blocks[name]["items"])})
    return node


def read_objects(text: str, *, is_yaml: bool) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSON or YAML printout; a List gives its items. Nothing for text that cannot be read."""
    try:
        loaded = _load_yaml(text) if is_yaml else [json.loads(text)]
    except (ValueError, RecursionError):
        return
    pending = list(loaded)
    for _ in range(MAX_ITEMS):
        if not pending:
            return
        item = pending.pop(0)
        if isinstance(item, dict):
            if isinstance(item.get("items"), list):
                pending = item["items"] + pending
            elif isinstance(item.get("kind"), str) and isinstance(item.get("metadata"), dict):
                yield item


def _load_yaml(text: str) -> list[Any]:
    try:
        import yaml

        from watchkeeper.kit import yaml_text
    except ImportError:
        return []
    # A document may refer to itself again and again (`&a [*a, *a]`) and grow without end: kubectl prints no aliases.
    if re.search(r"(?m)[:\-]\s+\*\w", text):
        return []
    try:
        return yaml_text.load_all(text)
    except yaml.YAMLError as error:
        raise ValueError("not YAML") from error


def node_of(item: Mapping[str, Any]) -> NodeFacts:
    status = _mapping(item.get("status"))
    node = NodeFacts(str(_mapping(item["metadata"]).get("name", "")), 1)
    node.capacity = {str(name): str(value) for name, value in _mapping(status.get("capacity")).items()}
    node.allocatable = {str(name): str(value) for name, value in _mapping(status.get("allocatable")).items()}
    for condition in _mappings(status.get("conditions")):
        if condition.get("type") == "Ready":
            node.is_ready = condition.get("status") == "True"
    return node


def pod_of(item: Mapping[str, Any]) -> PodFacts:
    meta, spec, status = (_mapping(item.get(part)) for part in ("metadata", "spec", "status"))
    pod = PodFacts(str(meta.get("name", "")), str(meta.get("namespace", "")), str(spec.get("nodeName", "")), 1)
    limits = [_mapping(_mapping(c.get("resources")).get("limits")) for c in _mappings(spec.get("containers"))]
    pod.requests_gpu = any(GPU_RESOURCE.match(str(name)) for names in limits for name in names) or bool(
        spec.get("resourceClaims")
    )
    for container in _mappings(status.get("containerStatuses")) + _mappings(status.get("initContainerStatuses")):
        for state in (_mapping(container.get("state")), _mapping(container.get("lastState"))):
            if ended := _mapping(state.get("terminated")):
                code = ended.get("exitCode")
                pod.endings.append(
                    (
                        str(container.get("name", "")),
                        str(ended.get("reason", "")),
                        code if isinstance(code, int) else None,
                    )
                )
    return pod


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
