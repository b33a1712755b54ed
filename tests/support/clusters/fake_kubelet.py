"""A kubelet as far as its pod-resources socket goes, served by grpcio: real framing, messages encoded by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

SERVICE = "v1.PodResourcesLister"


@dataclass(slots=True)
class Container:
    """`devices` are (resource, device ids); `claims` are (claim, driver, device name, CDI ids)."""

    name: str = "main"
    devices: list[tuple[str, list[str]]] = field(default_factory=list)
    claims: list[tuple[str, str, str, list[str]]] = field(default_factory=list)


@dataclass(slots=True)
class Pod:
    name: str
    containers: list[Container]
    namespace: str = "research"


@dataclass(slots=True)
class Kubelet:
    """What it will answer; `answer` replaces everything, and may raise through the context it gets."""

    socket: Path
    pods: list[Pod] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    answer: Callable[[grpc.ServicerContext], bytes] | None = None
    calls: list[str] = field(default_factory=list)

    def list(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls.append("List")
        return self.answer(context) if self.answer else b"".join(part(1, encode(pod)) for pod in self.pods)

    def allocatable(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls.append("GetAllocatableResources")
        gpus = text(1, "nvidia.com/gpu") + b"".join(text(2, id) for id in self.offered)
        return part(1, gpus) + part(1, text(1, "rdma/hca") + text(2, "mlx5_0"))


def gpu_pod(name: str, *uuids: str, namespace: str = "research") -> Pod:
    return Pod(name, [Container(devices=[("nvidia.com/gpu", list(uuids))])], namespace)


@contextmanager
def serving(kubelet: Kubelet, service: str = SERVICE) -> Iterator[Kubelet]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    methods = {
        "List": grpc.unary_unary_rpc_method_handler(kubelet.list),
        "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(kubelet.allocatable),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_insecure_port(f"unix:{kubelet.socket}")
    server.start()
    try:
        yield kubelet
    finally:
        server.stop(None).wait()


def encode(pod: Pod) -> bytes:
    return (
        text(1, pod.name)
        + text(2, pod.namespace)
        + b"".join(part(3, _container(container)) for container in pod.containers)
    )


def _container(container: Container) -> bytes:
    # Topology, CPUs and memory are there on a real node, and must not be taken for devices.
    topology = part(3, part(1, bytes([0x08, 0x01])))
    devices = [
        text(1, resource) + b"".join(text(2, id) for id in ids) + topology for resource, ids in container.devices
    ]
    claims = [
        text(2, claim)
        + text(3, "research")
        + part(4, b"".join(part(1, text(1, cdi)) for cdi in cdi_ids) + text(2, driver) + text(3, "n1") + text(4, name))
        for claim, driver, name, cdi_ids in container.claims
    ]
    cpus = part(3, bytes([1, 2, 0x80, 0x01]))
    memory = part(4, text(1, "memory") + bytes([0x10, 0x80, 0x80, 0x04]))
    whole = [text(1, container.name), *(part(2, device) for device in devices), cpus, memory]
    return b"".join(whole + [part(5, claim) for claim in claims])


def text(number: int, value: str) -> bytes:
    return part(number, value.encode())


def part(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))
