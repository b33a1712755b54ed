"""Read messages of the kubelet's pod-resources API: which container each device is allocated to.

The API has few protobuf messages (k8s.io/kubelet, podresources/v1/api.proto, read 2026-11 as of Kubernetes 1.20; later
fields from its documentation and from other readers), so the agent needs no protobuf runtime. Devices are named as in
NVML: the UUID of a GPU or MIG instance, `nvidia3` where a plugin counts device files, or `3` where it counts GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from watchkeeper.errors import CollectError
from watchkeeper.kit import protobuf
from watchkeeper.model import workloads

# The wire type of a field that holds a text or a message.
LENGTH_DELIMITED = 2
# A node with 8 GPUs, 7 MIG instances each, shared 16 ways has fewer; a longer list is not from a kubelet.
MAX_DEVICES = 10_000
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
GPU_DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com")

# GPU-0d7b8a1c-… and MIG-b1f5a9d0-…; MIG-GPU-0d7b8a1c-…/3/0 was MIG's name before driver 470.
UUID = re.compile(r"(?:MIG-GPU-[0-9a-fA-F-]{36}/\d+/\d+|(?:MIG|GPU)-[0-9a-fA-F]{8}-[0-9a-fA-F-]{27})")
# nvidia0, nvidia0/vgpu3, nvidia0/gi2 and nvidia0/gi2/vgpu1 as GKE's plugin writes them.
DEVICE_FILE = re.compile(r"^nvidia(?P<minor>\d{1,3})(?:/gi(?P<slice>\d{1,2}))?(?:/vgpu\d+)?$")
# gpu-0 and gpu-0-mig-1g.10gb-19-0, as NVIDIA's driver for dynamic resources names its devices by their minor number.
CLAIM_DEVICE = re.compile(r"^gpu-(?P<minor>\d{1,3})(?:-mig-(?P<slice>[\w.+-]+))?$")
# k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-0, and k8s.gpu.nvidia.com/device=gpu-0 of older
# releases of that driver. Kubelets that do not list the driver yet have only this name.
CDI_NAME = re.compile(r"^k8s\.(?P<driver>gpu\.nvidia\.com)/(?:claim|device)=(?:[0-9a-f-]{36}-)?(?P<name>gpu-\d.*)$")


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A device by its NVML name. `slice` names the MIG instance; None is the whole GPU."""

    key: str
    slice: str | None = None


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of one container, as the kubelet lists it; `is_claimed` for a dynamic resource."""

    namespace: str
    pod: str
    container: str
    device_id: str
    is_claimed: bool = False
    cdi_ids: tuple[str, ...] = ()

    @property
    def device(self) -> NvmlDevice | None:
        """The allocated device; None if the id does not name an NVIDIA device."""
        for text in (*self.cdi_ids, self.device_id):
            if match := UUID.search(text):
                return NvmlDevice(match[0], match[0] if match[0].startswith("MIG-") else None)
        # A plugin that shares a GPU appends the replica number: `0::3`, `nvidia1-replica-2`.
        name = re.split(r"::|-replica", self.device_id)[0]
        if name.isascii() and name.isdigit():
            return NvmlDevice(name)
        name_match = (CLAIM_DEVICE if self.is_claimed else DEVICE_FILE).match(name)
        return None if name_match is None else NvmlDevice(f"nvidia{int(name_match['minor'])}", name_match["slice"])


def read_list(message: bytes) -> tuple[AllocatedDevice, ...]:
    """Every NVIDIA device in a ListPodResourcesResponse; CollectError for any other message."""
    devices: list[AllocatedDevice] = []
    for pod in _read_parts(message, 1):
        devices += _devices_of_pod(pod)
        if len(devices) > MAX_DEVICES:
            raise CollectError(
                f"the kubelet lists at least {len(devices)} allocated devices, the limit is {MAX_DEVICES}"
            )
    return tuple(devices)


def holdings_by_device(allocated_devices: Iterable[AllocatedDevice]) -> Mapping[str, tuple[workloads.Holding, ...]]:
    """The holders of each device; a container with several replicas of a device is listed once."""
    by_device: dict[str, dict[workloads.Holding, None]] = {}
    for allocated in allocated_devices:
        device = allocated.device
        key = allocated.device_id if device is None else device.key
        pod = workloads.Workload(
            workloads.WorkloadKind.POD, allocated.pod, namespace=allocated.namespace, container=allocated.container
        )
        slice_name = None if device is None else device.slice
        by_device.setdefault(key, {})[workloads.Holding(pod, slice=slice_name)] = None
    return {key: tuple(device_holdings) for key, device_holdings in by_device.items()}


def _devices_of_pod(pod: bytes) -> Iterator[AllocatedDevice]:
    name, namespace = _read_text(pod, 1), _read_text(pod, 2)
    for container in _read_parts(pod, 3):
        holder = AllocatedDevice(namespace, name, _read_text(container, 1), "")
        for devices in _read_parts(container, 2):
            if _read_text(devices, 1).startswith(GPU_RESOURCES):
                for device_id in _read_parts(devices, 2):
                    yield replace(holder, device_id=device_id.decode("utf-8", "replace"))
        for claim in _read_parts(container, 5):
            yield from _devices_of_claim(claim, holder)


def _devices_of_claim(claim: bytes, holder: AllocatedDevice) -> Iterator[AllocatedDevice]:
    for resource in _read_parts(claim, 4):
        driver, cdi_ids = _read_text(resource, 2), tuple(_read_text(device, 1) for device in _read_parts(resource, 1))
        devices = [(_read_text(resource, 4), cdi_ids)] if driver in GPU_DRIVERS else []
        if not driver:
            devices = [(match["name"], (match[0],)) for match in map(CDI_NAME.match, cdi_ids) if match is not None]
        for device_id, ids in devices:
            yield replace(holder, device_id=device_id, is_claimed=True, cdi_ids=ids)


def _read_parts(message: bytes, field_number: int) -> Iterator[bytes]:
    """The values of one field, in order; CollectError if the bytes are not a message of the API."""
    try:
        for tag, start, end in protobuf.read_fields(message, 0, len(message)):
            if tag >> 3 == field_number:
                if tag & 7 != LENGTH_DELIMITED:
                    raise IndexError(f"field {field_number} has wire type {tag & 7}, expected {LENGTH_DELIMITED}")
                yield message[start:end]
    except IndexError as error:
        raise CollectError(f"not a message of the pod-resources API: {error}") from error


def _read_text(message: bytes, field_number: int) -> str:
    """The last value of a text field, as in protobuf; empty if the field is absent."""
    values = [b"", *_read_parts(message, field_number)]
    return values[-1].decode("utf-8", "replace")
