"""The kubelet's word about which container holds which device: messages of its pod-resources API, read by hand.

The API is a handful of protobuf messages (k8s.io/kubelet, podresources/v1/api.proto, read 2026-11 as of Kubernetes
1.20; later fields from its documentation and other people's readers), which never change their field numbers; reading
them with `kit.protobuf` costs the agent nothing, a protobuf runtime would. `collect/kubelet` brings the bytes, and
attribution asks for devices under the names that NVML knows: a GPU's UUID, a MIG slice's UUID, `nvidia3` where a
plugin counts device files, or `3` where it counts GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from watchkeeper.errors import CollectError
from watchkeeper.kit import protobuf
from watchkeeper.model import workloads

# The kind of a field that holds a text or another message.
BYTES = 2
# A node of 8 GPUs cut into 7 slices and shared 16 ways has fewer; more is not a kubelet.
MAX_DEVICES = 10_000
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
GPU_DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com")

# GPU-0d7b8a1c-… and MIG-b1f5a9d0-…; MIG-GPU-0d7b8a1c-…/3/0 was MIG's name before driver 470.
UUID = re.compile(r"(?:MIG-GPU-[0-9a-fA-F-]{36}/\d+/\d+|(?:MIG|GPU)-[0-9a-fA-F]{8}-[0-9a-fA-F-]{27})")
# nvidia0, nvidia0/vgpu3, nvidia0/gi2 and nvidia0/gi2/vgpu1 as GKE's plugin writes them.
DEVICE_FILE = re.compile(r"^nvidia(?P<minor>\d{1,3})(?:/gi(?P<slice>\d{1,2}))?(?:/vgpu\d+)?$")
# gpu-0 and gpu-0-mig-1g.10gb-19-0, as NVIDIA's driver for dynamic resources names its devices by their minor number.
CLAIMED = re.compile(r"^gpu-(?P<minor>\d{1,3})(?:-mig-(?P<slice>[\w.+-]+))?$")
# k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-0, and k8s.gpu.nvidia.com/device=gpu-0 of older
# releases of that driver. Kubelets that do not name the driver yet tell nothing but this.
CDI_NAME = re.compile(r"^k8s\.(?P<driver>gpu\.nvidia\.com)/(?:claim|device)=(?:[0-9a-f-]{36}-)?(?P<name>gpu-\d.*)$")


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A device under the name that NVML knows. `slice` names the part of it that is meant; None: all of it."""

    key: str
    slice: str | None = None


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device in one container, as the kubelet wrote it. `claim` is set for a dynamic resource."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    claim: str = ""
    cdi_ids: tuple[str, ...] = ()

    @property
    def device(self) -> NvmlDevice | None:
        """The device that is held; None for an id that names no NVIDIA device."""
        for text in (*self.cdi_ids, self.device_id):
            if found := UUID.search(text):
                return _of_uuid(found[0])
        # A plugin that shares a GPU appends the number of the share: `0::3`, `nvidia1-replica-2`.
        name = re.split(r"::|-replica", self.device_id)[0]
        if name.isascii() and name.isdigit():
            return NvmlDevice(name)
        whole = (CLAIMED if self.claim else DEVICE_FILE).match(name)
        return None if whole is None else NvmlDevice(f"nvidia{int(whole['minor'])}", whole["slice"])


def read_list(message: bytes) -> tuple[AllocatedDevice, ...]:
    """Every NVIDIA device that a ListPodResourcesResponse names; CollectError if it is no such message."""
    found: list[AllocatedDevice] = []
    for pod in _all(message, 1):
        found += _of_pod(pod)
        if len(found) > MAX_DEVICES:
            raise CollectError(f"the kubelet names {len(found)} devices or more, the limit is {MAX_DEVICES}")
    return tuple(found)


def read_allocatable(message: bytes) -> tuple[str, ...]:
    """Ids of the NVIDIA devices that an AllocatableResourcesResponse offers, in the kubelet's order."""
    found: list[str] = []
    for devices in _all(message, 1):
        if _text(devices, 1).startswith(GPU_RESOURCES):
            found += (part.decode("utf-8", "replace") for part in _all(devices, 2))
        if len(found) > MAX_DEVICES:
            raise CollectError(f"the kubelet offers {len(found)} devices or more, the limit is {MAX_DEVICES}")
    return tuple(found)


def holdings(held: Iterable[AllocatedDevice]) -> Mapping[str, tuple[workloads.Holding, ...]]:
    """Who holds each device, once for each container however many shares of it the container has."""
    found: dict[str, dict[workloads.Holding, None]] = {}
    for one in held:
        device = one.device
        key = one.device_id if device is None else device.key
        pod = workloads.Workload(workloads.WorkloadKind.POD, one.pod, namespace=one.namespace, container=one.container)
        part = None if device is None else device.slice
        found.setdefault(key, {})[workloads.Holding(pod, slice=part)] = None
    return {key: tuple(those) for key, those in found.items()}


def _of_uuid(uuid: str) -> NvmlDevice:
    return NvmlDevice(uuid, uuid) if uuid.startswith("MIG-") else NvmlDevice(uuid)


def _of_pod(pod: bytes) -> Iterator[AllocatedDevice]:
    name, namespace = _text(pod, 1), _text(pod, 2)
    for container in _all(pod, 3):
        called = _text(container, 1)
        for devices in _all(container, 2):
            resource = _text(devices, 1)
            if resource.startswith(GPU_RESOURCES):
                for device_id in _all(devices, 2):
                    yield AllocatedDevice(namespace, name, called, resource, device_id.decode("utf-8", "replace"))
        for claim in _all(container, 5):
            yield from _of_claim(claim, AllocatedDevice(namespace, name, called, "", ""))


def _of_claim(claim: bytes, holder: AllocatedDevice) -> Iterator[AllocatedDevice]:
    name = _text(claim, 2)
    for resource in _all(claim, 4):
        driver, cdi_ids = _text(resource, 2), tuple(_text(device, 1) for device in _all(resource, 1))
        named = [(driver, _text(resource, 4), cdi_ids)] if driver in GPU_DRIVERS else []
        if not driver:
            found = [(cdi_id, CDI_NAME.match(cdi_id)) for cdi_id in cdi_ids]
            named = [(match["driver"], match["name"], (cdi_id,)) for cdi_id, match in found if match is not None]
        for by, device, ids in named:
            yield AllocatedDevice(holder.namespace, holder.pod, holder.container, by, device, name or "claim", ids)


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    """The parts under one number, in the order they stand; CollectError where the bytes are no message of the API."""
    try:
        for tag, start, end in protobuf.read_fields(message, 0, len(message)):
            if tag >> 3 == wanted:
                if tag & 7 != BYTES:
                    raise IndexError(f"a number under {wanted}, where a part should be")
                yield message[start:end]
    except IndexError as error:
        raise CollectError(f"not a message of the pod-resources API: {error}") from error


def _text(message: bytes, wanted: int) -> str:
    """The last value of a text field, as protobuf has it; empty where it is absent."""
    last = b""
    for value in _all(message, wanted):
        last = value
    return last.decode("utf-8", "replace")
