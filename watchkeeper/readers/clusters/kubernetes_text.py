"""Read nodes and pods from pasted output of `kubectl describe` and `kubectl get -o json|yaml`.

YAML is parsed only if PyYAML is installed; otherwise the line patterns read the text.
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
NO_DEVICES = frozenset({"", "none", "void"})
# cdi.k8s.io/gpu: nvidia.com/gpu=all      (a device for the runtime, without a request)
CDI_ANNOTATION = "cdi.k8s.io/"
#     Image:         nvcr.io/nvidia/cuda:12.4.1-base      NVIDIA_VISIBLE_DEVICES:  all      (kubectl describe pod)
DESCRIBED_IMAGE = re.compile(r"^\s+Image:\s+(?P<image>\S+)\s*$")
DESCRIBED_DEVICES = re.compile(r"^\s+NVIDIA_VISIBLE_DEVICES:\s+(?P<value>\S*)")
DESCRIBED_GPU = re.compile(
    r"^\s+(?:nvidia\.com/(?:gpu|mig-)|amd\.com/gpu|gpu\.intel\.com/)\S*:|cdi\.k8s\.io/|^\s*Resource ?Claims?:"
)
DESCRIBED_CLASS = re.compile(r"^Runtime Class Name:\s+(?P<value>\S+)")


@dataclass(slots=True)
class NodeFacts:
    """The resources of a node; a mapping is empty if the output does not list them."""

    name: str
    line: int
    capacity: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] = field(default_factory=dict)
    is_ready: bool | None = None


@dataclass(slots=True)
class PodFacts:
    """A pod, or the template of one; `terminations` are (container, reason, exit code) of its terminated containers.

    `names_devices` is whether NVIDIA_VISIBLE_DEVICES asks for GPUs, which only NVIDIA's own runtime reads.
    """

    name: str
    namespace: str
    node: str
    line: int
    requests_gpu: bool | None = None
    terminations: list[tuple[str, str, int | None]] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    runtime_class: str = ""
    names_devices: bool = False


def gpu_count(resources: Mapping[str, str]) -> int | None:
    """Sum of the GPU resources; None if no GPU resource is listed."""
    counts = [json_facts.count(value) for name, value in resources.items() if GPU_RESOURCE.match(name)]
    gpu_counts = [count for count in counts if count is not None]
    return sum(gpu_counts) if gpu_counts else None


def read_node_text(lines: Sequence[str]) -> list[NodeFacts]:
    """Read `kubectl describe node`, also an excerpt that starts at Capacity."""
    nodes: list[NodeFacts] = []
    section, name, name_line = "", "", 1
    for number, line in enumerate(lines, 1):
        if (header := SECTION.match(line)) is not None:
            section = header["name"]
            if section == "Name":
                name, name_line = header["value"].strip(), number
            elif section == "Capacity":
                nodes.append(NodeFacts(name, number if not name else name_line))
        elif line and not line[0].isspace():
            section = ""
        elif nodes and section in ("Capacity", "Allocatable") and (item := RESOURCE.match(line)) is not None:
            target = nodes[-1].capacity if section == "Capacity" else nodes[-1].allocatable
            target[item["name"]] = item["value"]
    return nodes


def read_status_excerpt(text: str) -> NodeFacts | None:
    """Read the resources of a node from an excerpt of `kubectl get node -o yaml` without the object's start."""
    blocks = {match["name"]: match for match in STATUS_BLOCK.finditer(text)}
    if "capacity" not in blocks:
        return None
    node = NodeFacts("", text.count("\n", 0, blocks["capacity"].start()) + 1)
    for name, target in (("capacity", node.capacity), ("allocatable", node.allocatable)):
        if name in blocks:
            target.update({item["name"]: item["value"] for item in STATUS_ITEM.finditer(blocks[name]["items"])})
    return node


def read_objects(text: str, *, is_yaml: bool) -> Iterator[Mapping[str, Any]]:
    """The objects of JSON or YAML output; a List gives its items. Nothing if the text cannot be parsed."""
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
    # Aliases can expand without limit (`&a [*a, *a]`), and kubectl prints none.
    if re.search(r"(?m)[:\-]\s+\*\w", text):
        return []
    try:
        return yaml_text.load_all(text)
    except yaml.YAMLError as error:
        raise ValueError("not YAML") from error


def read_node(item: Mapping[str, Any]) -> NodeFacts:
    status = json_facts.mapping(item, "status")
    node = NodeFacts(str(json_facts.mapping(item, "metadata").get("name", "")), 1)
    node.capacity = {str(name): str(value) for name, value in json_facts.mapping(status, "capacity").items()}
    node.allocatable = {str(name): str(value) for name, value in json_facts.mapping(status, "allocatable").items()}
    for condition in json_facts.rows(status, "conditions"):
        if condition.get("type") == "Ready":
            node.is_ready = condition.get("status") == "True"
    return node


def read_pod(item: Mapping[str, Any]) -> PodFacts:
    """Read a pod, or the pod template of a Deployment, Job, CronJob and so on."""
    metadata, status = (json_facts.mapping(item, part) for part in ("metadata", "status"))
    template = _pod_template(item)
    spec, annotations = json_facts.mapping(template, "spec"), json_facts.mapping(template, "metadata")
    pod = PodFacts(str(metadata.get("name", "")), str(metadata.get("namespace", "")), str(spec.get("nodeName", "")), 1)
    containers = json_facts.rows(spec, "containers")
    limits = (json_facts.mapping(json_facts.mapping(container, "resources"), "limits") for container in containers)
    pod.requests_gpu = (
        any(GPU_RESOURCE.match(str(name)) for limit in limits for name in limit)
        or bool(spec.get("resourceClaims"))
        or any(str(name).startswith(CDI_ANNOTATION) for name in json_facts.mapping(annotations, "annotations"))
    )
    pod.images = [str(container.get("image", "")) for container in containers]
    pod.runtime_class = str(spec.get("runtimeClassName", ""))
    variables = (variable for container in containers for variable in json_facts.rows(container, "env"))
    pod.names_devices = any(
        variable.get("name") == "NVIDIA_VISIBLE_DEVICES" and str(variable.get("value") or "") not in NO_DEVICES
        for variable in variables
    )
    for key in ("containerStatuses", "initContainerStatuses"):
        for container in json_facts.rows(status, key):
            for state in (json_facts.mapping(container, "state"), json_facts.mapping(container, "lastState")):
                if terminated := json_facts.mapping(state, "terminated"):
                    name, reason = str(container.get("name", "")), str(terminated.get("reason", ""))
                    code = terminated.get("exitCode")
                    pod.terminations.append((name, reason, code if isinstance(code, int) else None))
    return pod


def _pod_template(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod itself, or the template that a workload makes its pods from."""
    while True:
        spec = json_facts.mapping(item, "spec")
        inner = json_facts.mapping(spec, "template") or json_facts.mapping(spec, "jobTemplate")
        if not inner:
            return item
        item = inner


def read_described_pod(lines: Sequence[str]) -> PodFacts:
    """Read the images and the GPU request of a pod from `kubectl describe pod`."""
    pod = PodFacts("", "", "", 1, requests_gpu=any(map(DESCRIBED_GPU.search, lines)))
    pod.images = [match["image"] for line in lines if (match := DESCRIBED_IMAGE.match(line))]
    pod.runtime_class = next((match["value"] for line in lines if (match := DESCRIBED_CLASS.match(line))), "")
    devices = (match["value"] for line in lines if (match := DESCRIBED_DEVICES.match(line)))
    pod.names_devices = any(value not in NO_DEVICES for value in devices)
    return pod
