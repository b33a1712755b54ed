"""What a machine depends on beside its GPUs: MPS, licences, IMEX, file servers, and the IOMMU between devices."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

# Each with the least confidence that it deserves.
FAILED = {
    "mps_unavailable": (
        (0.8, "RuntimeError: Error 805: MPS client failed to connect to the MPS control daemon or the MPS server"),
        (0.8, "kernel_run.cu:9: cudaErrorMpsServerNotReady"),
        (0.8, "widget: CUDA_ERROR_MPS_CLIENT_TERMINATED (810) from cuCtxSynchronize"),
        (0.8, "CUDA error: the hardware resources required to create MPS client have been exhausted"),
        (0.8, "[2026-08-10 05:36:05.441 Control    73] Server 95 exited with status 1"),
        (0.8, "[2026-08-10 05:36:05.441 Server    95] Failed to start : invalid argument"),
        (0.3, "ERROR: the MPS daemon of gpu 3 could not be started"),
    ),
    "vgpu_unlicensed": (
        (0.8, "Aug 10 05:36:05 n7 nvidia-gridd: Failed to acquire license from 10.9.9.9"),
        (0.8, "Aug 10 05:36:05 n7 nvidia-gridd[99]: Valid GRID license not found. GPU features are restricted."),
        (0.8, "        License Status                    : Unlicensed (Restricted)"),
        (0.8, "RuntimeError: cudaErrorDeviceNotLicensed"),
        (0.5, "        License Status                    : Unlicensed (Unrestricted)"),
        (0.8, "   Virtualization Mode  : VGPU\n   Host VGPU Mode  : N/A\n   License Status  : Unlicensed\n"),
        (0.3, "nvidia-gridd: error while reading the licence response"),
    ),
    "imex_not_ready": (
        (0.6, "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&handle, size, &prop, 0 )"),
        (0.5, "widget.cc:7 cuMemImportFromShareableHandle() failed with 101"),
        (0.7, "[ERROR] Failed to get export ref for UUID: 4711 for request from node id 0"),
        (0.7, "[ERROR] [tid 7] Node disconnect event detected for node 3 with address 10.9.9.9, attempting to"),
        (0.8, "[Aug 10 2026 05:36:05] [ERROR] [tid 31] Failed to allocate Imex session NV_ERR_IN_USE"),
        (0.8, "Nodes From\\To  0   1\n       0       C   N\nDomain State: DOWN\n"),
        (0.5, "Domain State: DEGRADED"),
        (0.8, "Aug 10 05:36:05 n7 systemd[1]: nvidia-imex.service: Failed with result 'exit-code'."),
        (0.7, "prepare devices failed: error asserting ComputeDomain Ready: current node not ready in ComputeDomain"),
    ),
    "storage_unreachable": (
        (0.8, "Aug 10 05:36:05 n7 kernel: nfs: server 10.9.9.9 not responding, still trying"),
        (0.8, "Aug 10 05:36:05 n7 kernel: LustreError: 167-0: x-OST01-osc-ff: This client was evicted by x-OST01; in"),
        (0.8, "LustreError: 11-0: x-MDT0-mdc-ff: operation obd_ping to node 10.9.9.9@tcp failed: rc = -107"),
        (0.8, "Aug 10 05:36:05 n7 kernel: ceph: [47-11 99]: mds0 hung"),
        (0.8, "mount.nfs: Connection timed out"),
        (0.8, "mount error: no mds (Metadata Server) is up. The cluster might be laggy"),
        (0.5, "Lustre: 9:0:(client.c:9:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply"),
        (0.5, "unmounted volumes=[data], unattached volumes=[data token]: timed out waiting for the condition"),
        (0.5, "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/scratch/a.bin'"),
        (0.5, "ls: cannot access /data/: Stale file handle"),
        (0.3, "weka: the client was disconnected from its cluster"),
    ),
    "iommu_fault": (
        (0.8, "n7 kernel: nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x1]"),
        (0.5, "n7 kernel: DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0x1 [fault reason 0x05] PTE"),
        (0.5, 'n7:7:9 [0] init.cc:9 NCCL WARN Missing "iommu=pt" from kernel command line'),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "least", "text"), [(cause, *row) for cause, rows in FAILED.items() for row in rows], ids=str
)
def test_a_service_that_fails_is_named_with_something_to_do(cause: str, least: float, text: str) -> None:
    first = ask(text).findings[0]
    assert first.cause == cause
    assert first.confidence >= least
    assert [step for step in first.actions if step.command]


MPS_LOG = """[2026-08-10 05:36:05.1 Control 7] User did not send valid credentials
[2026-08-10 05:36:05.1 Control 7] NEW CLIENT 8 from user 9: Server is not ready, push client to pending list
[2026-08-10 05:36:05.2 Control 7] NEW SERVER 11: Ready"""


@pytest.mark.parametrize(
    "text",
    [
        MPS_LOG,
        "[2026-08-10 05:36:05.1 Control 7] Server 11 exited with status 0",
        "        License Status                    : Licensed (Expiry: 2026-12-1 0:0:0 GMT)",
        "        Virtualization Mode               : None\n        License Status                    : Unlicensed",
        "Domain State: UP",
        "[    0.361] DMAR: [DMA Read NO_PASID] Request device [00:02.0] fault addr 0x7cd80000 [fault reason 0x01]",
        "Installed CUDA version 12 does not match the version torch was compiled with 13, accepting this combination",
    ],
)
def test_a_service_that_works_is_not_called_broken(text: str) -> None:
    assert ask(text).findings == ()


def test_a_refused_access_names_the_device() -> None:
    first = ask("n7 kernel: nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT address=0x1]").findings[0]
    assert (first.cause, first.where["pci"]) == ("iommu_fault", "0000:07:00")


def test_a_file_server_that_came_back_counts_less_than_one_that_is_away() -> None:
    away, back = "[  10.0] nfs: server {} not responding, still trying\n", "[  19.0] nfs: server {} OK\n"
    over = ask(away.format("a") + back.format("a")).findings[0]
    other = ask(away.format("a") + back.format("b")).findings[0]
    again = ask(back.format("a") + away.format("a")).findings[0]
    assert {over.cause, other.cause, again.cause} == {"storage_unreachable"}
    assert over.confidence < 0.5 < min(other.confidence, again.confidence)
    assert "recovered afterwards" in over.why


def test_a_licence_that_was_acquired_after_all_is_no_sure_finding() -> None:
    failed = "Aug 10 05:36:05 n7 nvidia-gridd: Failed to acquire license from 10.9.9.9\n"
    acquired = "Aug 10 05:37:05 n7 nvidia-gridd: License acquired successfully. (Info: 10.9.9.9)\n"
    assert ask(failed + acquired).findings[0].confidence < 0.5
    assert ask(acquired.replace("37", "35") + failed).findings[0].confidence > 0.8


@pytest.mark.parametrize("frame", ["nfs_file_flush+0x46/0x60 [nfs]", "(nfs_file_fsync) from [<802d>] (vfs_fsync)"])
def test_tasks_that_wait_for_files_do_not_wait_for_the_driver(frame: str) -> None:
    log = f"INFO: task python3:4711 blocked for more than 120 seconds.\n[<0>] {frame}\n"
    assert causes(ask(log)) == ["storage_unreachable"]
    assert causes(ask(log.replace("nfs", "widget"))) == ["unknown"]


def test_timeouts_of_a_job_with_lost_storage_are_consequences() -> None:
    log = (
        "Aug 10 05:36:05 n7 kernel: nfs: server 10.9.9.9 not responding, still trying\n"
        "[rank3]:[E810 06:06:05.1 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800017 ms\n"
    )
    by_cause = {finding.cause: finding.confidence for finding in ask(log).findings}
    assert next(iter(by_cause)) == "storage_unreachable"
    assert by_cause["nccl_timeout_straggler"] < 0.5


@pytest.mark.parametrize(
    "reasons",
    [
        "7 node(s) didn't match Pod's node affinity/selector, 2 max node group size reached",
        "1 in backoff after failed scale-up, 4 node(s) didn't match Pod's node affinity/selector",
        "2 node(s) didn't match Pod's node affinity/selector, 3 Insufficient nvidia.com/gpu",
    ],
)
def test_groups_that_match_and_are_full_are_the_reason_not_those_that_do_not_match(reasons: str) -> None:
    answer = ask(f"  Normal  NotTriggerScaleUp  9s  cluster-autoscaler  pod didn't trigger scale-up: {reasons}")
    assert causes(answer)[:2] == ["insufficient_gpu_capacity", "node_selector_mismatch"]
    assert answer.findings[1].confidence < 0.7


NOT_LOADED = "This request is serviced by a module of DCGM that is not currently loaded"
TAUGHT = (
    (
        "cuda_version_incompat",
        "Installed CUDA version 13.0 does not match the version torch was compiled with 12.6, unable",
    ),
    ("driver_not_loaded", "Kernel module load error: Operation not permitted"),
    ("agent_down", f'time="2026-08-10T05:36:05Z" level=fatal msg="Error watching fields: {NOT_LOADED}"'),
    ("unknown", f"Error setting watches. Result: -33: {NOT_LOADED}"),
    ("unknown", "Error setting watches. Result: The third-party Profiling module returned an unrecoverable error"),
    (
        "nccl_ib_link_error",
        "efa:cq:efa_rdm_txe_handle_error():7<warn> err: 5, message: Unresponsive receiver My EFA addr: fi",
    ),
    ("nccl_rank_died", "genNotif: backend 'UCX' returned error status NIXL_ERR_REMOTE_DISCONNECT"),
    ("nccl_rank_died", "Decode transfer failed: Failed to get kvcache from prefill instance, it might be dead"),
    (
        "unknown",
        "slurmstepd: error: pyxis: failed to import docker image\nsrun: error: n7: task 0: Exited with exit code 1",
    ),
    ("nccl_timeout_straggler", "unbound_buffer.cc:133] Timed out waiting 1800000ms for send operational complete"),
    ("unknown", "[CUDA_ERROR_INVALID_VALUE] invalid argument in expression cuMemSetAccess(buffer, size, &desc, 1 )"),
    ("unknown", "vmiop_log: (0x0): Incompatible Guest/Host drivers: Guest VGX version is newer"),
)


@pytest.mark.parametrize(("cause", "text"), TAUGHT)
def test_messages_of_unseen_texts_lead_to_their_cause(cause: str, text: str) -> None:
    assert ask(text).findings[0].cause == cause
