"""Listings: nvidia-smi, InfiniBand tools, kubectl, Slurm; what is wrong in them, and silence about what is not."""

from __future__ import annotations

import json

import pytest

from tests.doctor.asking import ask, causes

SMI = """==============NVSMI LOG==============
Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H200
    Performance State                     : P0
    PCI
        GPU Link Info
            PCIe Generation
                Current                   : 5
                Device Max                : 5
            Link Width
                Max                       : 16x
                Current                   : {width}
    Clocks Event Reasons
        HW Slowdown                       : {slow}
            HW Thermal Slowdown           : {hot}
            HW Power Brake Slowdown       : {brake}
    ECC Errors
        Volatile
            DRAM Uncorrectable            : {errors}
        Aggregate
            DRAM Uncorrectable            : 4
    Remapped Rows
        Pending                           : {pending}
        Remapping Failure Occurred        : {failed}
"""
HEALTHY = {
    "width": "16x",
    "slow": "Not Active",
    "hot": "Not Active",
    "brake": "Not Active",
    "errors": "0",
    "pending": "No",
    "failed": "No",
}


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({}, None),
        ({"errors": "2"}, "ecc_uncorrectable"),
        ({"pending": "Yes"}, "row_remap_pending"),
        ({"failed": "Yes"}, "row_remap_failure"),
        ({"slow": "Active", "hot": "Active"}, "thermal_throttle"),
        ({"slow": "Active", "brake": "Active"}, "power_brake"),
        ({"width": "8x"}, "pcie_degraded"),
    ],
)
def test_one_changed_value_of_nvidia_smi_is_one_cause(changed: dict[str, str], cause: str | None) -> None:
    answer = ask(SMI.format(**(HEALTHY | changed)))
    assert causes(answer)[:1] == ([cause] if cause else [])
    if cause:
        assert answer.findings[0].where["pci"] == "0000:3b:00"


def test_xml_with_entities_is_not_expanded() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log><gpu id="0">&b;</gpu></nvidia_smi_log>'
    assert not ask('<?xml version="1.0" ?>' + bomb).findings


def test_ports_and_counters_of_infiniband_name_the_port() -> None:
    down = "CA 'mlx5_3'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n"
    assert ask(down).findings[0].where == {"hca": "mlx5_3", "port": 1}
    errors = "# Port counters: Lid 9 port 4 (CapMask: 0x1300)\nSymbolErrorCounter:..............4000\n"
    assert causes(ask(errors))[0] == "ib_link_degraded"
    assert not ask(errors.replace("4000", "0")).findings


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("0/8 nodes are available: 8 Insufficient nvidia.com/gpu.", "insufficient_gpu_capacity"),
        ("0/8 nodes are available: 8 node(s) had untolerated taint(s).", "untolerated_taint"),
        ("0/8 nodes are available: 8 node(s) didn't match Pod's node affinity/selector.", "node_selector_mismatch"),
        ("      Reason:       OOMKilled\n      Exit Code:    137\n", "host_oom"),
        ("Capacity:\n  cpu:  12\n  memory:  1Ki\nAllocatable:\n  cpu:  12\n", "no_device_plugin"),
        ("NodeName=n1 Arch=x\n   State=DOWN* Reason=Not responding [slurm@now]\n", "node_down"),
        ("REASON  USER  TIMESTAMP  NODELIST\nxid 79  root  2026-11-15T02:00:35  n2\n", "gpu_fell_off_bus"),
        ("  4711  gpu  t  ana PD  0:00  4 (QOSMaxGRESPerUser)\n", "quota_exceeded"),
    ],
)
def test_schedulers_say_why_work_waits_or_ended(text: str, cause: str) -> None:
    assert causes(ask(text))[0] == cause


def test_a_killed_container_in_json_names_its_pod() -> None:
    status = {
        "containerStatuses": [{"name": "main", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train-0", "namespace": "ml"},
        "spec": {},
        "status": status,
    }
    answer = ask(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}, indent=1))
    assert causes(answer)[0] == "host_oom"
    assert answer.findings[0].where["pod"] == "train-0"


def test_trends_of_a_training_log_are_seen_and_noise_is_not() -> None:
    growing = "".join(f"step {at} loss: 2.0 rss={1000 + 50 * at} MB\n" for at in range(80))
    assert causes(ask(growing)) == ["memory_leak"]
    waiting = "".join(f"step {at} data_time: 0.9{at % 10} batch_time: 1.1{at % 10} loss: 2.1\n" for at in range(30))
    assert causes(ask(waiting)) == ["data_loader_starved"]
    noisy = "".join(f"step {at} loss: {2 + (at * 7 % 5) / 5} mem 40.{at % 9} GB\n" for at in range(80))
    assert not ask(noisy).findings


def test_a_pod_without_a_gpu_request_explains_a_program_that_finds_none() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0"}, "spec": {"containers": [{"name": "c"}]}}
    answer = ask(json.dumps(pod), "RuntimeError: No CUDA GPUs are available")
    assert causes(answer)[0] == "missing_gpu_request"
    assert answer.findings[0].where["pod"] == "train-0"


def test_an_out_of_memory_error_with_holes_gets_the_allocator_setting() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has a total capacity of 23.65 "
        "GiB of which 1.66 GiB is free. Of the allocated memory 12.09 GiB is allocated by PyTorch, and 4.84 GiB is "
        "reserved by PyTorch but unallocated."
    )
    finding = ask(text).findings[0]
    assert (finding.cause, finding.where["gpu"]) == ("cuda_oom", 2)
    assert "expandable_segments" in finding.actions[0].do
