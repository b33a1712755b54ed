"""Cut-outs and mixtures as people paste them: half a table, a service's status, errors that follow another fault."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

SMI = "| NVIDIA-SMI 550.54.14    Driver Version: 550.54.14    CUDA Version: 12.4 |\n"
ROW = "|   0  {model}   Off  | 00000000:05:00.0 Off |   N/A |\n| N/A   51C    P0    15W /  70W |   0MiB /  4096MiB |      0%      Default |\n"
UNIT = "× {name}.service - Some service\n     Loaded: loaded (/lib/systemd/system/{name}.service; enabled)\n     Active: {state} since Mon 2026-08-10\n"

SHAPES: list[tuple[str, str]] = [
    ("insufficient_gpu_capacity", "Message:   Pod Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested:2, Available: 1, which is unexpected"),
    ("mig_misconfig", "[root@n1 ~]# nvidia-smi mig -lgi\nFailed to display GPU instances: Insufficient Permissions"),
    ("mig_misconfig", 'level=debug msg="    Updating MIG mode: Enabled"\nlevel=debug msg="    Mode change pending: true"'),
    ("gpu_fell_off_bus", "stderr: nvidia-container-cli: detection error: nvml error: unknown error: unknown."),
    ("driver_not_loaded", "ERROR [1:9] Cannot load NVML; DCGM will proceed without managing GPUs.\nERROR [1:9] [[NvSwitch]] Could not load NSCQ."),
    ("host_oom", "[INFO] [utils.py:7:see_memory_usage] CPU Virtual Memory: used = 240.1 GB, percent = 97.2%\n[INFO] [launch.py:3:sigkill_handler] Killing subprocess 81"),
    ("nccl_rank_died", "n1: [INFO] [launch.py:3:sigkill_handler] Killing subprocess 81"),
    ("pcie_degraded", "nvidia 0000:1a:00.0: AER: can't recover (no error_detected callback)\nNVRM: Xid (PCI:0000:1a:00): 31, pid=7, name=python, MMU Fault: ENGINE GRAPHICS FAULT_PDE"),
    ("nccl_shape_or_collective_mismatch", "n1:7:9 [2] NCCL WARN Message truncated : receiving 1024 bytes instead of 64."),
    ("fabric_manager_down", UNIT.format(name="nvidia-fabricmanager", state="failed (Result: signal)")),
    ("driver_not_loaded", UNIT.format(name="nvidia-persistenced", state="failed (Result: exit-code)")),
    ("node_down", UNIT.format(name="slurmd", state="inactive (dead)")),
    ("container_runtime_missing", "slurmstepd: error: pyxis: couldn't start container\nsrun: error: n1: task 0: Exited with exit code 1"),
    ("driver_not_loaded", "Compiling NVIDIA driver kernel modules...\nmake[2]: *** [cc_version_check] Error 1\nmake: *** [modules] Error 2"),
    ("fabric_manager_down", "    Fabric\n        State                 : In Progress\n        Status                : N/A\n        CliqueId              : N/A\n"),
    ("gsp_timeout", "dcgmi dmon -e 230\n#Entity    XIDER\nID\nGPU 0      0\nGPU 3      119\n"),
]  # fmt: skip

HARMLESS: list[str] = [
    "nvidia-fabricmanager.service failed because the control process exited\n" + SMI + ROW.format(model="NVIDIA GeForce ..."),
    "nvme 0000:03:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "n1:7:8 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.3<0> [1]vethab12:fe80::78d8:4eff:fe15:8fed%vethab12<0>\nn1:7:8 [0] NCCL INFO Using network Socket",
    "2026-02-01 14:12:01.2 ERROR [95:98] [[SysMon]] Ex: Incompatible hardware vendor for sysmon.",
    UNIT.format(name="nvidia-fabricmanager", state="active (running)"),
    "    Clocks\n        Graphics                 : 1410 MHz\n        SM                       : 1410 MHz\n        Memory                   : 1593 MHz\n",
    "dcgmi dmon -e 230\n#Entity    XIDER\nID\nGPU 0      0\nGPU 1      0\n",
]  # fmt: skip


@pytest.mark.parametrize(("cause", "text"), SHAPES, ids=[f"{at}-{cause}" for at, (cause, _) in enumerate(SHAPES)])
def test_the_cause_of_a_cut_out_comes_first(cause: str, text: str) -> None:
    assert causes(ask(text))[0] == cause


@pytest.mark.parametrize("text", HARMLESS, ids=range(len(HARMLESS)))
def test_a_cut_out_that_only_looks_like_a_fault_names_no_cause(text: str) -> None:
    assert not [finding for finding in ask(text).findings if finding.cause != "unknown"]


def test_fabric_manager_counts_where_the_boards_may_have_switches() -> None:
    failed = "nvidia-fabricmanager.service: Failed with result 'exit-code'.\n"
    assert causes(ask(failed + SMI + ROW.format(model="NVIDIA H200"))) == ["fabric_manager_down"]
    note = ask(failed + SMI + ROW.format(model="NVIDIA L40S")).notes
    assert any("No NVSwitch" in text for text in note)


def test_a_recovery_action_in_a_table_without_a_header_names_its_gpu() -> None:
    command = "nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv,noheader\n"
    answer = ask(command + "0, None\n1, Reset\n2, None\n")
    assert (causes(answer), answer.findings[0].where["gpu"]) == (["unknown"], 1)
    assert ask(command + "0, None\n1, None\n").findings == ()


def test_two_ranks_on_one_gpu_are_the_launcher_s_mistake_and_no_confident_cause() -> None:
    answer = ask("Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 4e000")
    assert causes(answer)[0] == "unknown"
    assert all(finding.confidence < 0.5 for finding in answer.findings)


def test_a_link_local_interface_counts_once_a_connection_failed() -> None:
    uses = "n1:7:8 [0] NCCL INFO NET/Socket : Using [0]ens5:10.0.0.3<0> [1]veth7:fe80::1:2%veth7<0>\n"
    fails = "n1:7:9 [0] NCCL WARN Connect to fe80::4:5%veth9<394> failed : Network is unreachable\n"
    assert ask(uses).findings == ()
    assert causes(ask(uses + fails))[0] == "nccl_wrong_interface"
