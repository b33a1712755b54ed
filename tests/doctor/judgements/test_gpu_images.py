"""Pods whose image or environment needs a GPU, with and without a request for one."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes
from watchkeeper.catalogue import tables

POD = """apiVersion: v1
kind: Pod
metadata:
  name: train-0
  namespace: team-a
{annotations}spec:
{spec}  containers:
  - name: main
    image: {image}
    resources: {resources}
{environment}"""
PARTS = {"annotations": "", "spec": "", "image": "nvcr.io/nvidia/cuda:12.4.1-base-ubuntu22.04", "resources": "{}"}
DEVICES = "    env:\n    - name: NVIDIA_VISIBLE_DEVICES\n      value: "


def pod(**parts: str) -> str:
    return POD.format(**(PARTS | {"environment": ""} | parts))


@pytest.mark.parametrize(
    "text",
    [
        pod(),
        pod(spec="  runtimeClassName: nvidia\n"),
        pod(image="pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime", resources="{limits: {cpu: '8', memory: 64Gi}}"),
        pod(image="registry.example.org/team/app:1", environment=DEVICES + "nvidia.com/gpu=all\n"),
        pod(image="registry.example.org/team/app:1", environment=DEVICES + "all\n"),
        (
            '{"apiVersion":"batch/v1","kind":"CronJob","metadata":{"name":"t"},"spec":{"jobTemplate":{"spec":{"template":'
            '{"spec":{"containers":[{"name":"c","image":"vllm/vllm-openai:v0.9.0"}]}}}}}}'
        ),
    ],
)
def test_a_pod_that_needs_a_gpu_and_requests_none_is_found(text: str) -> None:
    assert causes(ask(text)) == ["missing_gpu_request"]


@pytest.mark.parametrize(
    "text",
    [
        pod(resources="{limits: {nvidia.com/gpu: '1'}}"),
        pod(resources="{limits: {nvidia.com/mig-1g.10gb: '1'}}"),
        pod(spec="  resourceClaims:\n  - name: gpu\n    resourceClaimTemplateName: one\n"),
        pod(annotations="  annotations:\n    cdi.k8s.io/gpu: nvidia.com/gpu=all\n"),
        pod(image="registry.example.org/team/app:1", environment=DEVICES + "void\n"),
        pod(
            image="registry.example.org/team/app:1", spec="  runtimeClassName: nvidia\n", environment=DEVICES + "all\n"
        ),
        pod(image="nvcr.io/nvidia/k8s-device-plugin:v0.17.0", environment=DEVICES + "all\n"),
        pod(image="nginx:1.27"),
    ],
)
def test_a_pod_that_has_a_gpu_or_needs_none_is_no_fault(text: str) -> None:
    assert not ask(text).findings


DESCRIBED = """Name:             train-0
Namespace:        team-a
Node:             gpu07/10.0.0.7
Containers:
  main:
    Image:         nvcr.io/nvidia/pytorch:25.01-py3
    Limits:
      {resource}:  1
QoS Class:                   Burstable
"""


def test_a_described_pod_is_read_like_its_manifest() -> None:
    answer = ask(DESCRIBED.format(resource="cpu"))
    assert causes(answer) == ["missing_gpu_request"]
    assert answer.findings[0].where == {"pod": "train-0", "namespace": "team-a", "node": "gpu07"}
    assert not ask(DESCRIBED.format(resource="nvidia.com/gpu")).findings


@pytest.mark.parametrize(
    ("image", "uses_gpu"),
    [
        ("nvidia/cuda:12.2.0-devel-ubuntu22.04", True),
        ("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", True),
        ("nvcr.io/nim/meta/llama-3.1-8b-instruct:1.3", True),
        ("rayproject/ray:2.40.0-py310-cu121", True),
        ("tensorflow/tensorflow:2.17.0-gpu", True),
        ("rocm/pytorch:latest", True),
        ("ghcr.io/huggingface/text-generation-inference:3.0-intel-cpu", False),
        ("nvcr.io/nvidia/k8s/dcgm-exporter:4.8.2-4.9.1-ubuntu22.04", False),
        ("nvcr.io/nvidia/cloud-native/gpu-operator-validator:v25.3.0", False),
        ("quay.io/prometheus/node-exporter:v1.9.1", None),
        ("pytorch/torchserve:0.12.0", None),
    ],
)
def test_images_are_known_by_their_names(image: str, uses_gpu: bool | None) -> None:
    row = tables.find_image(image)
    assert (None if row is None else row.uses_gpu) is uses_gpu
