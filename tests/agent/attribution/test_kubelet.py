"""The kubelet's pod-resources socket over real gRPC: every name of a device, and every failure."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters.fake_kubelet import Container, Kubelet, Pod, encode, gpu_pod, part, serving
from watchkeeper.agent.attribution.kubelet import PodResourcesClient
from watchkeeper.errors import CollectError
from watchkeeper.model.workloads import Holding, Workload, WorkloadKind
from watchkeeper.readers.clusters import pod_resources

GPU = "GPU-0d7b8a1c-5e1f-4a3b-9c2d-111111111111"
OTHER = "GPU-0d7b8a1c-5e1f-4a3b-9c2d-222222222222"
MIG = "MIG-b1f5a9d0-5e1f-4a3b-9c2d-333333333333"


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with serving(Kubelet(tmp_path / "kubelet.sock")) as running:
        yield running


def holding(pod: str, *, container: str = "main", part: str | None = None) -> Holding:
    return Holding(Workload(WorkloadKind.POD, pod, "research", container), slice=part)


def read(kubelet: Kubelet) -> dict[str, tuple[Holding, ...]]:
    return dict(asyncio.run(PodResourcesClient(kubelet.socket).read()))


def test_each_gpu_of_a_pod_is_its_own(kubelet: Kubelet) -> None:
    kubelet.pods = [gpu_pod("train-0", GPU, OTHER)]
    assert read(kubelet) == {GPU: (holding("train-0"),), OTHER: (holding("train-0"),)}


def test_a_node_without_gpu_pods_is_an_answer_and_not_a_failure(kubelet: Kubelet) -> None:
    kubelet.pods = [Pod("web", [Container(devices=[("rdma/hca", ["mlx5_0"]), ("example.com/gpu", [GPU])])])]
    assert read(kubelet) == {}


def test_two_pods_that_share_a_gpu_by_time_slicing_both_hold_it(kubelet: Kubelet) -> None:
    kubelet.pods = [gpu_pod("a", f"{GPU}::0"), gpu_pod("b", f"{GPU}::3", f"{GPU}::4")]
    assert read(kubelet) == {GPU: (holding("a"), holding("b"))}


@pytest.mark.parametrize(
    ("device_id", "key", "part"),
    [
        (GPU, GPU, None),
        (f"{GPU}::12", GPU, None),
        (f"{GPU}-replica-2", GPU, None),
        (MIG, MIG, MIG),
        (f"{MIG}::1", MIG, MIG),
        (f"MIG-{GPU}/3/0", f"MIG-{GPU}/3/0", f"MIG-{GPU}/3/0"),
        ("nvidia3", "nvidia3", None),
        ("nvidia3/vgpu1", "nvidia3", None),
        ("nvidia0/gi2", "nvidia0", "2"),
        ("nvidia0/gi2/vgpu1", "nvidia0", "2"),
        ("7", "7", None),
        ("7::1", "7", None),
        ("something new", "something new", None),
    ],
)
def test_a_device_is_found_by_every_name_that_plugins_use(device_id: str, key: str, part: str | None) -> None:
    pod = Pod("p", [Container(devices=[("nvidia.com/mig-1g.10gb", [device_id])])])
    holders = pod_resources.holdings_by_device(pod_resources.read_list(_list(pod)))
    assert holders == {key: (holding("p", part=part),)}


@pytest.mark.parametrize(
    ("device", "cdi_ids", "key", "part"),
    [
        ("gpu-3", ["k8s.gpu.nvidia.com/claim=6f1e-gpu-3"], "nvidia3", None),
        ("gpu-0-mig-1g.10gb-19-0", [], "nvidia0", "1g.10gb-19-0"),
        ("gpu-0", [f"nvidia.com/gpu={GPU}"], GPU, None),
        ("mig-0", [f"nvidia.com/gpu={MIG}"], MIG, MIG),
    ],
)
def test_a_claim_of_a_dynamic_resource_is_attributed(
    kubelet: Kubelet, device: str, cdi_ids: list[str], key: str, part: str | None
) -> None:
    claims = [("one-gpu", "gpu.nvidia.com", device, cdi_ids), ("nic", "dra.net", "gpu-5", [])]
    kubelet.pods = [Pod("dra", [Container("worker", claims=claims)])]
    assert read(kubelet) == {key: (holding("dra", container="worker", part=part),)}


@pytest.mark.parametrize(
    ("cdi_id", "parts"),
    [
        ("k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-0", {"nvidia0": None}),
        (
            "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-1-mig-1g18gb-19-0",
            {"nvidia1": "1g18gb-19-0"},
        ),
        ("k8s.gpu.nvidia.com/device=gpu-2", {"nvidia2": None}),
        ("k8s.compute-domain.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-channel-0", {}),
        ("vendor.com/gpu=gpu-0", {}),
    ],
)
def test_without_a_driver_name_the_kubelets_cdi_names_are_read(
    kubelet: Kubelet, cdi_id: str, parts: dict[str, str | None]
) -> None:
    kubelet.pods = [Pod("dra", [Container("worker", claims=[("one-gpu", "", "", [cdi_id])])])]
    assert read(kubelet) == {key: (holding("dra", container="worker", part=part),) for key, part in parts.items()}


def test_an_old_kubelet_is_called_with_its_api_version(tmp_path: Path) -> None:
    old = Kubelet(tmp_path / "old.sock", pods=[gpu_pod("a", GPU)])
    with serving(old, "v1alpha1.PodResourcesLister"):
        assert read(old) == {GPU: (holding("a"),)}


def test_an_answer_of_many_frames_is_read_whole(kubelet: Kubelet) -> None:
    kubelet.pods = [gpu_pod(f"pod-{number}-{'x' * 200}", f"{GPU}::{number}") for number in range(2_000)]
    assert len(read(kubelet)[GPU]) == 2_000


def failure(source: PodResourcesClient) -> str:
    with pytest.raises(CollectError) as raised:
        asyncio.run(source.read())
    return str(raised.value)


def test_a_missing_kubelet_is_an_error(tmp_path: Path) -> None:
    source = PodResourcesClient(tmp_path / "kubelet.sock")
    assert not source.exists()
    assert failure(source).endswith("kubelet.sock: no kubelet listens on this socket")


def test_the_call_of_a_hung_kubelet_times_out(kubelet: Kubelet) -> None:
    released = threading.Event()
    kubelet.answer = lambda _: b"\x00" * released.wait(60)
    began = time.monotonic()
    assert failure(PodResourcesClient(kubelet.socket, timeout_seconds=0.2)).endswith("no answer within 0.2 s")
    assert time.monotonic() - began < 30
    released.set()


def test_the_message_of_a_kubelet_that_refuses_is_in_the_error(kubelet: Kubelet) -> None:
    def refuse(context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    kubelet.answer = refuse
    assert "resource exhausted: 'rejected by rate limit'" in failure(PodResourcesClient(kubelet.socket))


def test_an_answer_that_is_too_large_is_refused_with_both_numbers(kubelet: Kubelet) -> None:
    kubelet.answer = lambda _: b"\x0a\x80\x80\x04" + b"x" * 65536
    assert "the limit is 1000" in failure(PodResourcesClient(kubelet.socket, max_bytes=1000))


@pytest.mark.parametrize("rubbish", [b"\xff" * 40, b"\x0a\x7f", b"\x08\x01\x0a\x02\x0a", b"\x0f\x00", b"\x08\x01"[:1]])
def test_an_invalid_message_in_valid_grpc_is_an_error(kubelet: Kubelet, rubbish: bytes) -> None:
    kubelet.answer = lambda _: rubbish
    assert "not a message of the pod-resources API" in failure(PodResourcesClient(kubelet.socket))


def test_a_socket_without_grpc_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"\x00\x00\x04\x04\x00\x00\x00\x00\x00none")

        thread = threading.Thread(target=answer)
        thread.start()
        assert "does not speak gRPC" in failure(PodResourcesClient(path))
        thread.join()


def test_a_kubelet_that_restarts_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    source = PodResourcesClient(path)
    with serving(Kubelet(path, pods=[gpu_pod("before", GPU)])):
        assert asyncio.run(source.read()) == {GPU: (holding("before"),)}
    assert "no kubelet listens on this socket" in failure(source)
    with serving(Kubelet(path, pods=[gpu_pod("after", GPU)])):
        assert asyncio.run(source.read()) == {GPU: (holding("after"),)}


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail_with_anything_but_our_error(message: bytes) -> None:
    with suppress(CollectError):
        pod_resources.read_list(message)


@given(st.lists(st.lists(st.sampled_from([GPU, OTHER, MIG]), max_size=4), max_size=4))
def test_encoded_pods_are_decoded_unchanged(devices: list[list[str]]) -> None:
    pods = [gpu_pod(f"p{number}", *ids) for number, ids in enumerate(devices)]
    held = pod_resources.read_list(_list(*pods))
    assert [(device.pod, device.device_id) for device in held] == [
        (pod.name, id) for pod, ids in zip(pods, devices, strict=True) for id in ids
    ]


def _list(*pods: Pod) -> bytes:
    return b"".join(part(1, encode(pod)) for pod in pods)
