"""Messages of compilers, servers, schedulers and other makers' GPUs: named where they decide, left open where not."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

NAMED = {
    "nccl_timeout_straggler": (
        "[rank2]:[E9 ProcessGroupNCCL.cpp:9] [PG ID 3 PG GUID 0 Rank 2] Timeout at NCCL work: 77, last completed: 76.",
    ),
    "cuda_version_incompat": (
        "ImportError: fused_ops.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops5zeros4callE",
        "`ptxas` stderr:\nptxas fatal   : Value 'sm_130' is not defined for option 'gpu-name'",
        "RuntimeError: Outdated cuBLAS installation found.\nMinimum supported: 120900",
        "[E] 6: The engine plan file is not compatible with this version of TensorRT, please rebuild.",
        "terminate: hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
    ),
    "insufficient_gpu_capacity": (
        "Demands:\n {'CPU': 2.0, 'GPU': 4.0} * 3 (STRICT_SPREAD): 2+ pending placement groups",
    ),
    "nccl_bootstrap_firewall": ("WARNING utils.py:9 -- Unable to connect to GCS at head-0:6379. Check that it runs.",),
    "nccl_rank_died": ("gcs_rpc_client.h:7: Failed to connect to GCS within 30 seconds. GCS may have been killed.",),
    "nccl_rdma_not_used": (
        "[g1:7:0] ucp_mm.c:1 UCX ERROR failed to register address 0x10 mem_type bit 0x2 length 8 on md[1]=mlx5_1: I/O",
        "transport.cpp:275: init failed for transport: IBRC\nnvshmem: aborting",
    ),
    "nccl_ib_gid": ("ibgda.cpp:22: NULL value Unable to create ah.",),
    "container_runtime_missing": (
        "runc: invoking the NVIDIA Container Runtime Hook directly (with --gpus) is not supported.",
    ),
    "driver_not_loaded": (
        'error gathering device information while adding custom device "/dev/nvidia3": no such file or directory.',
        "nvidia 0000:c1:00.0: Direct firmware load for nvidia/590.1/gsp_tu10x.bin failed with error -2",
    ),
    "storage_unreachable": (
        "kernel: beegfs: cp(71): Retrying communication with node: beegfs-meta store-2 [ID: 2]",
        "desc = rbd: sysfs write failed rbd: map failed: (110) Connection timed out",
        "[ 7.1] tar  D 0  311  300 0x00000004\n[ 7.2] Call Trace:\n[ 7.4]  nfs_wait_bit_killable+0x11/0x40 [nfs]\n",
    ),
    "checkpoint_failing": (
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1, 5])",
    ),
    "ecc_uncorrectable": ("amdgpu 0000:05:00.0: amdgpu: 3 uncorrectable hardware errors detected in umc block",),
    "app_illegal_access": ("Memory access fault by GPU node-4 (Agent handle: 0x1) on address 0x2. Reason: Unknown.",),
}


@pytest.mark.parametrize(("cause", "text"), [(cause, text) for cause, texts in NAMED.items() for text in texts])
def test_a_message_that_decides_is_named(cause: str, text: str) -> None:
    assert causes(ask(text))[:1] == [cause]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("OutOfResources: out of resource: shared memory, Required: 300, Hardware limit: 200.", "neither /dev/shm"),
        ("RuntimeError: CUDA error: operation not permitted when stream is capturing", "CUDA graph"),
        ("mkdir /sys/fs/cgroup/memory/kubepods/burstable/pod7: cannot allocate memory", "control group"),
        ("slurmd: error: cannot create cgroup context for cgroup/v2", "slurmd did not start"),
        (
            "pyxis: couldn't start container\npyxis: enroot-switchroot: failed to execute: /usr/bin/zsh: ",
            "not in its image",
        ),
        ("The checkpoint being loaded used a TP world size of 4 but the current world size is 8.", "another layout"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", "did not start"),
        ("amdgpu 0000:05:00.0: amdgpu: GPU reset begin!", "AMD"),
        ("ROCk module is loaded\nUnable to open /dev/kfd read-write: Cannot allocate memory", "AMD"),
    ],
)
def test_a_message_without_a_catalogue_cause_is_unknown_and_explained(text: str, says: str) -> None:
    first = ask(text).findings[0]
    assert (first.cause, says in first.why) == ("unknown", True)


def test_the_linker_called_nvlink_is_no_link_between_gpus() -> None:
    text = (
        "nvlink error   : Undefined reference to 'put_nbi' in 'build/halo.o'\nninja: build stopped: subcommand failed."
    )
    assert "nvlink_error" not in causes(ask(text))


def test_corrected_errors_of_an_amd_gpu_are_no_memory_failure() -> None:
    text = "amdgpu 0000:05:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block"
    assert "ecc_uncorrectable" not in causes(ask(text))


def test_a_fabric_manager_with_nothing_to_do_is_at_fault_where_cuda_waits_for_it() -> None:
    # HGX B200 without NVLSM or ib_umad: the service sees no NVSwitch, and yet there are some.
    idle = "nv-fabricmanager[7]: query failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"
    assert causes(ask(idle)) == []
    assert causes(ask(idle + "cudaGetDeviceCount: error 802, system not yet initialized\n"))[:1] == [
        "fabric_manager_down"
    ]


def test_health_watches_that_are_not_enabled_are_answered_with_the_commands() -> None:
    (finding,) = ask("Error: Health watches not enabled. Please enable watches.").findings
    assert finding.title == "DCGM cannot say whether the GPUs are healthy"
    assert [step.command for step in finding.actions] == ["dcgmi health -g 0 -s a", "dcgmi health -g 0 -c"]


def test_a_module_that_secure_boot_refused_has_a_step_for_its_key() -> None:
    finding, *_ = ask("modprobe: ERROR: could not insert 'nvidia': Required key not available").findings
    commands = " ".join(step.command or "" for step in finding.actions)
    assert finding.cause == "driver_not_loaded"
    assert all(word in commands for word in ("mokutil --import", "blacklist nouveau", "linux-headers-", "dkms status"))
