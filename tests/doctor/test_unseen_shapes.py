"""Wordings that public threads taught, each with names and numbers of our own, and lines that only look like faults."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes
from watchkeeper.doctor import signatures
from watchkeeper.doctor.signatures import Role

SHAPES: list[tuple[str, str]] = [
    (
        "driver_call_hung",
        "stderr: nvidia-container-cli: initialization error: driver rpc error: timed out: unknown",
    ),
    (
        "container_runtime_missing",
        "nvidia-container-cli: mount error: file creation failed: /rootfs/a/libx.so.1: file exists",
    ),
    ("container_runtime_missing", "Error: stat nvidia.com/gpu=3: no such file or directory"),
    ("container_runtime_missing", 'exec: "nvidia-smi": executable file not found in $PATH: unknown'),
    (
        "container_runtime_missing",
        "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.",
    ),
    ("driver_not_loaded", "gpu-operator   nvidia-driver-daemonset-aaaaa   0/1   CrashLoopBackOff   31   4h"),
    ("driver_not_loaded", "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'some_symbol'"),
    (
        "driver_library_mismatch",
        "kernel version 570.10.1 does not match DSO version 570.20.2 -- cannot find working devices",
    ),
    ("gpu_fell_off_bus", "nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device inaccessible"),
    ("cuda_version_incompat", "nvcc fatal   : Unsupported gpu architecture 'compute_130'"),
    ("cuda_version_incompat", "ERROR: CUDA 13.1 is not supported by\nyour driver (which supports up to 12.4)"),
    (
        "nccl_ib_link_error",
        "n1:7:9 [1] NCCL WARN NET/IBX : Got completion from peer fe80::1%ib0<533> with status=12 opcode=1 len=0 vendor err 129 (Send)",
    ),
    ("nccl_ib_link_error", "[n1:7:0] UCX  ERROR Transport retry count exceeded on mlx5_4:1/IB (synd 0x15 vend 0x81)"),
    ("nccl_ib_gid", "n1:7:9 [0] NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument"),
    (
        "nccl_wrong_interface",
        "ncclSocketInit: connecting to address  with family 4242 is neither AF_INET(2) nor AF_INET6(10)",
    ),
    ("nccl_rdma_not_used", "n1:7:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'"),
    (
        "nccl_shape_or_collective_mismatch",
        "init.cc:99 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 5.",
    ),
    ("nccl_bootstrap_firewall", "RuntimeError: connect() timed out. Original timeout was 30000 ms."),
    ("nccl_rank_died", "[ERROR] [launch.py:1:sigkill_handler] ['python', 'a.py'] exits with return code = -11"),
    ("nccl_rank_died", "process 3 terminated with signal SIGSEGV"),
    (
        "host_oom",
        "(raylet) node_manager.cc:1: 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed at node (ID: a, IP: 10.9.9.9)",
    ),
    ("host_oom", "Epoch 3 done\nKilled\n$ "),
    ("host_oom", "slurmstepd: error: Job 99 exceeded memory limit (70000 > 65536), being killed"),
    ("cuda_oom", "alloc_buffer: allocating 2048.00 MiB on device 1: cudaMalloc failed: out of memory"),
    (
        "shm_too_small",
        "WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes available.",
    ),
    ("insufficient_gpu_capacity", "ValueError: Total available GPUs 2.0 is less than total desired GPUs 16"),
    ("insufficient_gpu_capacity", "Reason:         OutOfalpha.kubernetes.io/nvidia-gpu"),
    ("quota_exceeded", 'pods "a-0" is forbidden: failed quota: team-q: must specify requests.cpu'),
    ("no_device_plugin", "Allocate failed due to rpc error: code = Unavailable desc = error reading from server: EOF"),
    (
        "node_down",
        "The node with node id: 0f0f and address: 10.9.9.9 has been marked dead because the detector has missed too many heartbeats",
    ),
    ("node_down", "[ 12.5] Kernel panic - not syncing: Fatal exception in interrupt"),
    ("checkpoint_failing", "RuntimeError: File out/run1/checkpoint_7.pt cannot be opened."),
    ("training_stalled", "[2026-08-10 10:00:00 TP5] Watchdog timeout (self.watchdog_timeout=300)"),
    ("inference_overload", "[2026-08-10 10:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3"),
    ("nvlink_error", "|  NvLink Link Status  |\nGPUs:\n    gpuId 0:\n        U U D D U U\nKey: Up=U, Down=D"),
    ("app_illegal_access", "Exception: cuTensorMapEncodeTiled failed, error code 700"),
    ("fabric_manager_down", "gpu07: fabric manager config file item: TOPOLOGY_FILE_PATH has an invalid value"),
    (
        "nccl_bootstrap_firewall",
        "n1:1:2 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying (21/34) after sleep for 2100 msec",
    ),
    (
        "nccl_timeout_straggler",
        "#0-0 (0a1b2c3d) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  7 ranks have launched up to operation 41",
    ),
    (
        "training_diverged",
        "[INFO] [loss_scaler.py:183:update_scale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1",
    ),
    (
        "host_oom",
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. The worker may have exceeded K8s pod memory limits.",
    ),
    (
        "container_runtime_missing",
        'level=error msg="start failed" error="could not select device driver \\"cdi\\" with capabilities: [[]]"',
    ),
    (
        "container_runtime_missing",
        "n1:1:1 [0] misc/cudawrap.cc:179 NCCL WARN Failed to find CUDA library libcuda.so : libcuda.so: cannot open shared object file: No such file",
    ),
    (
        "quota_exceeded",
        "Warning  Pending  4m  kueue-admission  couldn't assign flavors to pod set main: resource cpu unavailable in ClusterQueue",
    ),
    ("nvlink_error", "Detected XID 145 for GPU 3 Please consult the documentation for details of this XID."),
    ("nvlink_error", "GPU 3: NVIDIA H100 (UUID: [redacted])\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>"),
    (
        "nccl_rank_died",
        "E coordination_service.cc:1170] /job:jax_worker/replica:0/task:0 has been set to ERROR in coordination service: UNAVAILABLE",
    ),
    (
        "nccl_rdma_not_used",
        "10.0.0.3: WARN: Function: find_ofi_provider Line: 543: NET/OFI Couldn't find any optimal provider",
    ),
    ("ib_link_degraded", "ibpanic: [4711] main: stat of IB device 'mlx5_4' failed: No such file or directory"),
    ("cuda_oom", "rank 0 CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("nccl_rdma_not_used", "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument"),
    ("nccl_rdma_not_used", "[   91.2] nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err 0)"),
    (
        "nccl_rdma_not_used",
        "n1:7:9 [0] nccl_net_ofi_rdma_init:77 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available",
    ),
    ("shm_too_small", 'Warning  Evicted  9s  kubelet  Usage of EmptyDir volume "dshm" exceeds the limit "2Gi".'),
    (
        "gpu_missing",
        "kernel: NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:5e:00.0)\nkernel: nvidia: probe of 0000:5e:00.0 failed with error -1",
    ),
    (
        "container_runtime_missing",
        "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.\nW0810 05:36:05.1 1 pinned_memory_manager.cc:236] CUDA driver version is insufficient for CUDA runtime version",
    ),
    (
        "insufficient_gpu_capacity",
        "Warning  FailedScheduling  9s  hami-scheduler  no available node, all node scores do not meet",
    ),
    ("insufficient_gpu_capacity", "n7 ollama[41]: cuda driver library failed to get device context 46"),
    ("agent_down", 'level=error msg="Failed to collect metrics: Host engine connection invalid/disconnected"'),
    ("agent_down", "Starting NVIDIA host engine...\nFailed to start host engine server"),
    ("ib_link_degraded", "Aug 10 05:36:05 n7 kernel: mlx5_core 0000:9a:00.0 ens3f0np0: TX timeout detected"),
    (
        "nccl_ib_link_error",
        " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0",
    ),
    (
        "nccl_shape_or_collective_mismatch",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=_ALLGATHER_BASE, NumelIn=4096, NumelOut=8192, Timeout(ms)=600000) ran for 600012 milliseconds\n[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=_ALLGATHER_BASE, NumelIn=16, NumelOut=32, Timeout(ms)=600000) ran for 600012 milliseconds",
    ),
    (
        "container_runtime_missing",
        "stderr: nvidia-container-cli: initialization error: nvml error: insufficient permissions: unknown.",
    ),
    ("nccl_ib_link_error", "[n7:41 :0:41]    ud_iface.c:737  UCX Fatal: transport error: Endpoint timeout"),
    (
        "nccl_rdma_not_used",
        "[n7:41 :0]  select.c:438  UCX  ERROR no active messages transport to n8: self/memory - Destination is unreachable",
    ),
    ("gsp_timeout", "[  121.8] NVRM: kfspPollForResponse_IMPL: FSP command timed out"),
    (
        "gpu_recovery_needed",
        "[ 9.3] NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:7",
    ),
    (
        "insufficient_gpu_capacity",
        "message: '4/4 tasks in gang unschedulable: pod group is not ready, 4 Pending, 4 minAvailable; Pending: 4 Unschedulable'",
    ),
    (
        "insufficient_gpu_capacity",
        'Could not schedule pod, no instance type satisfied resources {"nvidia.com/gpu":"2"}',
    ),
    (
        "nccl_bootstrap_firewall",
        "DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:",
    ),
    (
        "nccl_timeout_straggler",
        "Execution failed: DEADLINE_EXCEEDED: GetKeyValue() timed out with key: devices=[0,1] and duration: 10m",
    ),
    ("nccl_ib_gid", "/src/transport/ibrc/ibrc.cpp:418: non-zero status: 110 ibv_modify_qp failed"),
    (
        "driver_call_hung",
        "error: *** STEP 7.0 STEPD TERMINATED ON n7 AT 2026-08-10T05:36:05 DUE TO JOB NOT ENDING WITH SIGNALS ***",
    ),
    (
        "driver_call_hung",
        "[ 91.1] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]\n[ 91.2] Call Trace:\n[ 91.3]  os_acquire_spinlock+0x11/0x20 [nvidia]",
    ),
    ("gpu_fell_off_bus", "Unable to determine the device handle for GPU 00:4A:00.0: Unknown Error"),
    ("gpu_fell_off_bus", "[ERROR] NVML get temperature failed with code: GPUIsLost"),
    ("fabric_manager_down", "nvidia-nvswitch: Version mismatch, kernel version 535.10.01 user version 535.20.02"),
    ("shm_too_small", "ERROR shard-manager: launcher: Shard process was signaled to shutdown with signal 7 rank=3"),
    (
        "nccl_ib_link_error",
        "[n4:811:0:811] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_6:1/RoCE (synd 0x15)",
    ),
    (
        "ib_link_degraded",
        "# Port info: Lid 7 port 1\nLinkState:.......................Down\nPhysLinkState:...................Disabled",
    ),
    (
        "gsp_timeout",
        "NVRM:     -1    76   GSP_RM_CONTROL              9 0x0000000020800a01 0x0000000000000010 0x0006000000000001 0x0006000000000002    88us",
    ),
    ("app_illegal_access", "nvgpu: 17000000.gpu nvgpu_tsg_set_ctx_mmu_error:99 [ERR]  TSG 5 generated a mmu fault"),
    (
        "cuda_oom",
        "RuntimeError: Failed to allocate memory for batch_prefill_tmp_s with size 1048576 and alignment 16 in AlignedAllocator",
    ),
    ("no_device_plugin", 'err="prepare dynamic resources: DRA driver gpu.nvidia.com is not registered" pod="a/b-0"'),
    (
        "driver_call_hung",
        "INFO: task python:71 blocked for more than 120 seconds.\n  nvkms_ioctl_common+0x4a/0xa0 [nvidia_modeset]",
    ),
    (
        "driver_not_loaded",
        "Error: Failed to initialize NVML\nError: Unable to connect to host engine. Host engine connection invalid/disconnected.",
    ),
    ("nvlink_error", "kernel: NVRM: Xid (PCI:xxxx:xx:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 04"),
    (
        "checkpoint_failing",
        '    torch.save(net.state_dict(), path)\n  File "a.py", line 3, in close\n    f.close()\nOSError: [Errno 5] Input/output error',
    ),
    (
        "checkpoint_failing",
        'step 900: saving checkpoint...\nTraceback (most recent call last):\n  File "a.py", line 3, in main\nOSError: [Errno 30] Read-only file system',
    ),
    ("checkpoint_failing", "luajit: torch/File.lua:9: write error: wrote 100 blocks instead of 200 at THDiskFile.c:7"),
    (
        "cuda_oom",
        "/src/host/mem/mem_heap.cpp:88: non-zero status: 2 cuMemCreate failed\n[barrier.cpp:2] cuda failed with an illegal memory access was encountered",
    ),
    ("nccl_ib_gid", "[Rank 3]: Error 22 (Invalid argument) at (IB.c:8):Failed to modify QP (libibverbs)"),
    (
        "ecc_uncorrectable",
        "Warning: Detected a GPU SRAM uncorrectable error for the volatile counter for GPU ID 6, offline n7",
    ),
    (
        "nccl_bootstrap_firewall",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: k:1 (world_size=16, worker_count=8, timeout=0:30:00)",
    ),
    (
        "container_runtime_missing",
        "waiting for nvidia container stack to be setup\nwaiting for nvidia container stack to be setup",
    ),
    (
        "driver_not_loaded",
        "stat: cannot statx '/run/nvidia/validations/.driver-ctr-ready': No such file or directory\ncommand failed, retrying after 5 seconds",
    ),
    (
        "driver_not_loaded",
        "failed to create CDI spec: lstat /run/nvidia/driver/dev/nvidia-uvm: no such file or directory",
    ),
    (
        "gpu_fell_off_bus",
        '  XidCriticalError   True   Mon, 10 Aug 2026 10:00:00 +0000   Mon, 10 Aug 2026 09:59:00 +0000   {"79":true}   0f0e',
    ),
    (
        "driver_not_loaded",
        "Error: Unable to find a match: kernel-headers-5.14.0-9.el9.x86_64 kernel-devel-5.14.0-9.el9.x86_64",
    ),
    ("gpu_missing", "  Warning  Unhealthy  3m  kubelet  Startup probe failed: No devices were found"),
    ("nccl_rank_died", "ORTE has lost communication with a remote daemon.\n  Remote daemon: [[7,0],2] on node n2"),
    (
        "nccl_wrong_interface",
        "Last error:\nsocketStartConnect: Connect to fe80::1:2ff:fe03:4%veth77<41> failed : Software caused connection abort",
    ),
    (
        "nccl_bootstrap_firewall",
        "[rank5]: Last error:\n[rank5]: socketPollConnect poll() returned 1, no POLLOUT events",
    ),
    ("gsp_timeout", '        "message": "xid 119 detected by dmesg (3 minutes ago)"'),
]


@pytest.mark.parametrize(("cause", "text"), SHAPES, ids=[f"{cause}-{at}" for at, (cause, _) in enumerate(SHAPES)])
def test_a_real_message_leads_to_its_cause(cause: str, text: str) -> None:
    assert causes(ask(text))[:1] == [cause]


HARMLESS = [
    "Tolerations:     node.kubernetes.io/not-ready:NoExecute op=Exists for 300s\n                 node.kubernetes.io/unreachable:NoExecute op=Exists for 300s",
    "Tolerations:     node.kubernetes.io/unreachable:NoExecute for 300s\n                 nvidia.com/gpu=present:NoSchedule",
    "W0810 10:00:00.1 99 nvc.c:186] failed to set inheritable capabilities\nW0810 10:00:00.2 99 nvc.c:187] skipping kernel modules load due to failure\nI0810 10:00:00.3 99 driver.c:133] starting driver service",
    "W tensorflow/bfc_allocator.cc:239] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB. The caller indicates that this is not a failure, but may mean that there could be performance gains.",
    "# Watch for Xid 79 and Xid 48 on every GPU of the fleet",
    '    raise RuntimeError("CUDA out of memory")  # the message we look for',
    "slurmstepd: error: *** JOB 99 ON n1 CANCELLED AT 2026-08-10T10:00:00 DUE TO TIME LIMIT ***",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x7 and 5x9)",
    "[   12.1] mlx5_core 0000:5e:00.0 ens1f0: Link down\n[   14.1] mlx5_core 0000:5e:00.0 ens1f0: Link up",
    "n1:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\nn1:1:2 [0] NCCL INFO Using network Socket",
    "n1:1:2 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (1/34) after sleep for 100 msec",
    "W0810 05:36:05.1 1 pinned_memory_manager.cc:271] Unable to allocate pinned system memory: operation not supported",
    "found 0 double-bit ECC errors on GPU 0",
    "n7 kernel: mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x9a6171), err(-22)",
    " 10-08-2026 05:36:05:865 [pid=7 tid=7] ERROR  cufio-drv:716 nvidia-fs.ko driver not loaded",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_a_line_that_only_looks_like_a_fault_gets_no_cause(text: str) -> None:
    assert set(causes(ask(text))) <= {"unknown"}


def test_a_pods_tolerations_do_not_hide_why_it_waits() -> None:
    text = """Tolerations:     node.kubernetes.io/unreachable:NoExecute op=Exists for 300s
Events:
  Warning  FailedScheduling  9m  default-scheduler  0/5 nodes are available: 5 Insufficient nvidia.com/gpu."""
    assert causes(ask(text)) == ["insufficient_gpu_capacity"]


def test_a_node_that_carries_the_taint_is_down() -> None:
    assert causes(ask("Taints:             node.kubernetes.io/unreachable:NoExecute"))[:1] == ["node_down"]


def test_another_reading_of_the_same_line_does_not_explain_the_first_away() -> None:
    findings = {finding.cause: finding for finding in ask('exec: "nvidia-smi": executable file not found').findings}
    assert findings["driver_not_loaded"].confidence >= 0.5
    assert findings["container_runtime_missing"].confidence > findings["driver_not_loaded"].confidence


def test_a_task_that_exited_with_a_code_is_no_sure_answer() -> None:
    first = ask("srun: error: n7: task 3: Exited with exit code 1").findings[0]
    assert (first.cause, first.where["node"], first.where["rank"]) == ("nccl_rank_died", "n7", 3)
    assert first.confidence < 0.5


def test_a_failure_in_unknown_words_gets_a_hint_and_never_a_confident_one() -> None:
    first = ask("nvshmem: ibgda: failed to open mlx5_9 device").findings[0]
    assert first.cause == "nccl_ib_link_error"
    hints = [sign for sign in signatures.table().signs.values() if sign.role is Role.HINT]
    assert hints
    assert max(sign.confidence for sign in hints) < 0.35


def test_a_hint_does_not_count_next_to_a_sign_with_a_cause() -> None:
    answer = ask(
        "nvshmem: ibgda: failed to open mlx5_9 device\nRuntimeError: CUDA out of memory. Tried to allocate 1 GiB"
    )
    assert causes(answer) == ["cuda_oom"]


def test_a_hint_does_not_count_next_to_a_harmless_line() -> None:
    text = "NVSwitch query failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
    assert causes(ask(text)) == []


def test_counters_as_sysfs_has_them_name_the_adapter_and_its_port() -> None:
    folder = "/sys/class/infiniband/mlx5_6/ports/1"
    first = ask(f"{folder}/counters/link_downed:3\n{folder}/hw_counters/duplicate_request:0\n").findings[0]
    assert (first.cause, first.where["hca"], first.where["port"]) == ("ib_link_degraded", "mlx5_6", 1)


def test_a_cut_out_of_a_node_in_yaml_shows_gpus_that_may_not_be_handed_out() -> None:
    text = 'status:\n  allocatable:\n    cpu: "8"\n    nvidia.com/gpu: "0"\n  capacity:\n    cpu: "8"\n    nvidia.com/gpu: "4"\n'
    assert causes(ask(text))[:2] == ["no_device_plugin", "insufficient_gpu_capacity"]
    assert causes(ask(text.replace('"0"', '"3"')))[:1] == ["insufficient_gpu_capacity"]
    assert causes(ask(text.replace('"0"', '"4"'))) == []


def test_a_gpu_that_reports_temperature_and_power_has_not_fallen_off_the_bus() -> None:
    rows = "|   0  NVIDIA L4   Off  | 0000:01:00.0 Off |   N/A |\n|  0%   44C    P8    10W / 160W |   1845MiB /  6144MiB |  {}   Default |\n"
    lost = "|   0  NVIDIA L4   Off  | 0000:01:00.0 Off |   N/A |\n|ERR!   ERR!  ERR!    ERR! / ERR! |   0MiB /  6144MiB |  ERR!   Default |\n"
    head = "| NVIDIA-SMI 550.54.14    Driver Version: 550.54.14    CUDA Version: 12.4 |\n"
    assert not ask(head + rows.format("ERR!")).findings
    assert causes(ask(head + lost))[:1] == ["gpu_fell_off_bus"]


def test_an_io_error_that_no_save_comes_before_is_no_checkpoint() -> None:
    text = '  File "a.py", line 3, in __getitem__\n    raw = f.read()\nOSError: [Errno 5] Input/output error'
    assert "checkpoint_failing" not in causes(ask(text))


PORT = (
    "pcieport 0000:20:01.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Receiver ID)\n"
)


def test_a_port_above_a_device_that_is_no_gpu_is_no_gpus_link() -> None:
    first = ask(PORT + "xhci_hcd 0000:21:00.0: AER: can't recover (no error_detected callback)").findings[0]
    assert (first.cause, first.confidence < 0.5) == ("unknown", True)
    assert "xhci_hcd" in first.why
    assert "pci" not in first.where


def test_a_port_above_a_gpu_stays_one_beside_the_other_functions_of_the_board() -> None:
    board = (
        "nvidia 0000:21:00.0: AER: can't recover (no error_detected callback)\n"
        "xhci_hcd 0000:21:00.2: AER: can't recover (no error_detected callback)"
    )
    assert causes(ask(PORT + board))[:1] == ["pcie_degraded"]


def test_corrected_errors_of_another_port_still_count_beside_a_disk_that_did_not_recover() -> None:
    corrected = "pcieport 0000:40:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n" * 3
    answer = ask(corrected + PORT + "nvme 0000:21:00.0: AER: can't recover (no error_detected callback)")
    assert [(finding.cause, finding.confidence < 0.5) for finding in answer.findings] == [("pcie_degraded", True)]


def test_an_xid_without_its_address_names_no_gpu() -> None:
    first = ask("NVRM: Xid (PCI:...): 48, pid=7, name=python, DBE").findings[0]
    assert first.cause == "ecc_uncorrectable"
    assert "pci" not in first.where


def test_a_socket_on_the_node_itself_that_is_taken_is_no_firewall() -> None:
    text = "n1:33:58 [2] misc/ipcsocket.cc:57 NCCL WARN UDS: Binding to socket /tmp/nccl-socket-2-0a1b failed : Address already in use (98)"
    assert "nccl_bootstrap_firewall" not in causes(ask(text))


def test_the_node_that_the_controller_drains_is_the_place_and_not_the_controller() -> None:
    text = "Aug 10 10:00:00 ctl1 slurmctld[9]: error: Setting node gpu07 state to INVAL with reason:gres/gpu count reported lower than configured (7 < 8)"
    assert ask(text).findings[0].where["node"] == "gpu07"


def test_a_waiting_task_is_named_by_its_own_number_and_not_by_its_parents() -> None:
    text = "task:python3.12 state:D stack:0 pid:4711 ppid:4242 flags:0x2\n uvm_ioctl+0x13e0/0x16f0 [nvidia_uvm]"
    assert ask(text).findings[0].where["pid"] == 4711
