"""Shapes in which each cause shows up in the wild, one line or a few, with names and numbers of our own."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

SHAPES: list[tuple[str, str]] = [
    (
        "container_runtime_missing",
        "Message: failed to create shim task: OCI runtime create failed: runc create failed: error running hook #1: exit status 1, stderr: Auto-detected mode as 'legacy'",
    ),
    ("nccl_bootstrap_firewall", "    data = store.get(key)\nRuntimeError: Socket Timeout"),
    ("nccl_bootstrap_firewall", "A process was unable to complete a TCP connection to another process: host n1, n2"),
    ("cuda_oom", "E0810 1 backend_model.cc:9] ERROR: maxTokensInPagedKvCache must be large enough for one sequence"),
    (
        "driver_not_loaded",
        "Installing Linux kernel headers...\nE: Unable to locate package linux-headers-6.1.0-9-cloud",
    ),
    ("driver_not_loaded", "Could not unload NVIDIA driver kernel modules, driver is in use"),
    ("host_oom", " actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 9"),
    ("gpu_missing", "kernel: NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x22:0x56:894)"),
    ("fabric_manager_down", "n1:1:2 [2] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'"),
    (
        "ib_link_degraded",
        "Apr 10 12:01:14 n1 kernel: mlx5_core 0000:9a:00.0 ibp1s0: Link down\nApr 10 12:09:40 n1 kernel: mlx5_core 0000:9a:00.0 ibp1s0: Link down",
    ),
    ("host_oom", "Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"),
    (
        "cuda_oom",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.35 GiB total capacity; 70.1 GiB already allocated; 1.2 GiB free; 71 GiB reserved in total by PyTorch)",
    ),
    (
        "cuda_oom",
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (50000). Try increasing `gpu_memory_utilization`",
    ),
    (
        "cuda_oom",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    ),
    (
        "shm_too_small",
        "RuntimeError: DataLoader worker (pid 5123) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    ("host_oom", "RuntimeError: DataLoader worker (pid 1823) is killed by signal: Killed."),
    (
        "nccl_bootstrap_firewall",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node-01]:29500 (errno: 113 - No route to host).",
    ),
    (
        "nccl_bootstrap_firewall",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    ),
    (
        "nccl_bootstrap_firewall",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.1.2.3, 29500).",
    ),
    (
        "nccl_wrong_interface",
        "node1:77:77 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\nnode2:88:88 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\nnode2:88:90 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 172.17.0.1<44219> failed : Connection refused",
    ),
    (
        "nccl_wrong_interface",
        "node1:77:77 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\nnode1:77:77 [0] NCCL INFO init.cc:120 -> 3",
    ),
    (
        "nccl_ib_link_error",
        "node3:10:20 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<41231> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGidsfe80::2 hca mlx5_4",
    ),
    (
        "nccl_ib_link_error",
        "node3:10:20 [4] NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 32600, vendor err 129",
    ),
    (
        "nccl_ib_link_error",
        "node3:10:20 [4] transport/net_ib.cc:90 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error",
    ),
    (
        "nccl_rank_died",
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2035, remote process exited or there was a network error, NCCL version 2.21.5\n[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n[rank3]: Last error:\n[rank3]: NET/IB: Got completion from peer",
    ),
    ("nccl_version_mismatch", "NCCL WARN Mismatched NCCL version detected : rank 0 version 22005 rank 4 version 21805"),
    (
        "nccl_rank_died",
        "srun: error: gpu13: task 5: Segmentation fault (core dumped)\nsrun: error: gpu12: task 0: Exited with exit code 1",
    ),
    (
        "nccl_timeout_straggler",
        "[rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9141, OpType=_ALLGATHER_BASE, NumelIn=19008, NumelOut=152064, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
    ),
    (
        "app_illegal_access",
        "RuntimeError: CUDA error: device-side assert triggered\n../aten/src/ATen/native/cuda/Indexing.cu:1239: indexSelectSmallIndex: block: [3,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
    ),
    ("app_illegal_access", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("app_illegal_access", "kernel: NVRM: Xid (PCI:0000:c1:00): 43, pid=1234, name=python, Ch 00000010"),
    ("app_illegal_access", "[ 123.1] NVRM: Xid (PCI:0000:01:00): 69, pid=99, name=x, Class Error: ChId 0008"),
    (
        "gpu_fell_off_bus",
        "Unable to determine the device handle for GPU 0000:C1:00.0: GPU is lost.  Reboot the system to recover this GPU",
    ),
    ("gpu_fell_off_bus", "RuntimeError: NVML error: GPU is lost"),
    (
        "driver_library_mismatch",
        "NVRM: API mismatch: the client has the version 535.104.05, but\nNVRM: this kernel module has the version 535.86.10.  Please",
    ),
    (
        "driver_not_loaded",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n",
    ),
    (
        "driver_not_loaded",
        "Error: failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
    ),
    (
        "driver_library_mismatch",
        "stderr: nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
    ),
    (
        "container_runtime_missing",
        'Warning  FailedCreatePodSandBox  2s  kubelet  Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "nvidia" is configured',
    ),
    (
        "container_runtime_missing",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    ),
    ("container_runtime_missing", "docker: Error response from daemon: unknown or invalid runtime name: nvidia."),
    ("container_runtime_missing", "Failed to initialize NVML: Unknown Error"),
    (
        "container_runtime_missing",
        "Error: failed to generate container spec: failed to inject CDI devices: unresolvable CDI devices management.nvidia.com/gpu=all",
    ),
    (
        "cuda_version_incompat",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a newer version, or use an earlier cuda container: unknown",
    ),
    ("cuda_version_incompat", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    (
        "cuda_version_incompat",
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ),
    (
        "cuda_version_incompat",
        "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW",
    ),
    (
        "fabric_manager_down",
        "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
    ),
    (
        "driver_library_mismatch",
        "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination",
    ),
    (
        "fabric_manager_down",
        "Aug 10 10:00:00 dgx nv-fabricmanager[3312]: failed to initialize all the available NVSwitch, exiting\nAug 10 10:00:00 dgx systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
    ),
    (
        "mig_misconfig",
        "nvidia-mig-manager: Failed to apply MIG config: error setting MIGConfig: error attempting multiple config orderings: all orderings failed",
    ),
    (
        "mig_misconfig",
        "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources\nFailed to create GPU instances: Insufficient Resources",
    ),
    (
        "insufficient_gpu_capacity",
        "Warning  UnexpectedAdmissionError  6m  kubelet  Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected",
    ),
    (
        "insufficient_gpu_capacity",
        "Warning  FailedScheduling  3s  default-scheduler  0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }. preemption: 0/5 nodes are available",
    ),
    (
        "untolerated_taint",
        "Warning  FailedScheduling  3s  default-scheduler  0/4 nodes are available: 1 node(s) had taint {node-role.kubernetes.io/master: }, that the pod didn't tolerate, 3 node(s) had taint {nvidia.com/gpu: present}, that the pod didn't tolerate.",
    ),
    (
        "node_selector_mismatch",
        "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 node(s) didn't match Pod's node affinity/selector.",
    ),
    (
        "quota_exceeded",
        'Error creating: pods "x" is forbidden: exceeded quota: compute, requested: requests.nvidia.com/gpu=4, used: 8, limited: 8',
    ),
    (
        "quota_exceeded",
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n              4711       gpu    train      ana PD       0:00      1 (QOSMaxGRESPerUser)\n",
    ),
    (
        "insufficient_gpu_capacity",
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n              4711       gpu    train      ana PD       0:00      8 (Resources)\n",
    ),
    (
        "node_down",
        "NodeName=gpu05 CoresPerSocket=16\n   Gres=gpu:8\n   State=DOWN*+DRAIN ThreadsPerCore=2\n   Reason=Not responding [slurm@2026-08-10T10:00:00]\n",
    ),
    (
        "gpu_missing",
        "NodeName=gpu05 CoresPerSocket=16\n   Gres=gpu:8\n   State=IDLE+DRAIN+INVALID_REG ThreadsPerCore=2\n   Reason=gres/gpu count reported lower than configured (7 < 8) [slurm@2026-08-10T10:00:00]\n",
    ),
    (
        "node_down",
        "Conditions:\n  Ready  Unknown  Mon, 10 Aug 2026 10:00:00 +0000  NodeStatusUnknown  Kubelet stopped posting node status.\n",
    ),
    (
        "thermal_throttle",
        "GPU 00000000:18:00.0\n    Clocks Throttle Reasons\n        Idle                        : Not Active\n        HW Slowdown                 : Active\n            HW Thermal Slowdown     : Active\n            HW Power Brake Slowdown : Not Active\n        SW Thermal Slowdown         : Active\n",
    ),
    (
        "power_brake",
        "GPU 00000000:18:00.0\n    Clocks Event Reasons\n        SW Power Cap                : Not Active\n        HW Slowdown                 : Active\n            HW Thermal Slowdown     : Not Active\n            HW Power Brake Slowdown : Active\n",
    ),
    (
        "row_remap_failure",
        "    Remapped Rows\n        Correctable Error                 : 0\n        Uncorrectable Error               : 8\n        Pending                           : No\n        Remapping Failure Occurred        : Yes\n",
    ),
    (
        "row_remap_pending",
        "GPU 00000000:18:00.0\n    Remapped Rows\n        Correctable Error                 : 0\n        Uncorrectable Error               : 1\n        Pending                           : Yes\n        Remapping Failure Occurred        : No\n",
    ),
    (
        "row_remap_pending",
        "NVRM: Xid (PCI:0000:10:00): 63, pid=96234, Row Remapper: New row marked for remapping, reset gpu to activate.",
    ),
    (
        "ecc_uncorrectable",
        "NVRM: Xid (PCI:0000:10:00): 94, pid=96234, name=python, Contained: SM (0x1). RST: No, D-RST: No\nNVRM: Xid (PCI:0000:10:00): 45, pid=96234, name=python, Ch 00000008",
    ),
    ("nvlink_error", "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up (First)"),
    (
        "nvlink_error",
        "GPU 0: NVIDIA H100 (UUID: GPU-11111111-1111-1111-1111-111111111111)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n\t Link 2: 26.562 GB/s\n",
    ),
    (
        "gsp_timeout",
        "NVRM: Xid (PCI:0000:10:00): 119, pid=96234, name=python, Timeout waiting for RPC from GSP0! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x8).",
    ),
    (
        "pcie_degraded",
        "pcieport 0000:16:01.0: AER: Multiple Corrected error received: 0000:17:00.0\nnvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\nnvidia 0000:17:00.0:   device [10de:2330] error status/mask=00000001/0000e000\nnvidia 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n",
    ),
    (
        "ib_link_degraded",
        "# Port extended counters: Lid 12 port 1 (CapMask: 0x5A00)\nSymbolErrorCounter:..............65535\nLinkErrorRecoveryCounter:........255\nLinkDownedCounter:...............12\n",
    ),
    (
        "training_diverged",
        "epoch 3 step 1200: train_loss=nan, lr=0.0003\nepoch 3 step 1200: train_loss=nan, lr=0.0003\nepoch 3 step 1200: train_loss=nan, lr=0.0003\n",
    ),
    (
        "training_diverged",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1\nException: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ),
    (
        "checkpoint_failing",
        'RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 2123456 vs 2123344\n  File "trainer.py", line 3, in _save_checkpoint\n    torch.save(state, path)',
    ),
    (
        "checkpoint_failing",
        "OSError: [Errno 122] Disk quota exceeded: '/scratch/ana/ckpt/global_step1000/mp_rank_00_model_states.pt'",
    ),
    (
        "inference_overload",
        "WARNING 07-01 scheduler.py:1099] Sequence group 12 is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space. total_num_cumulative_preemption=51",
    ),
    (
        "driver_call_hung",
        "[Mon Aug 10] INFO: task nvidia-smi:48211 blocked for more than 120 seconds.\n task:nvidia-smi state:D stack:0 pid:48211\n",
    ),
    (
        "driver_call_hung",
        "[  +0.000049] task:python3.11      state:D stack:    0 pid:15277 ppid: 15257 flags:0x00000002\n[  +0.000006] Call Trace:\n[  +0.000005]  uvm_page_tree_get_ptes_async+0x93/0x970 [nvidia_uvm]\n[  +0.000042]  uvm_ioctl+0x13e0/0x16f0 [nvidia_uvm]\n",
    ),
    ("model_load_slow", "INFO 08-10 10:00:00 loader.py:447] Loading weights took 1912.40 seconds\n"),
    (
        "silent_data_corruption",
        "100.0%  proc'd: 1234 (12345 Gflop/s)   errors: 0 - 12 (WARNING!)\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n",
    ),
    (
        "nccl_shape_or_collective_mismatch",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss.",
    ),
    ("missing_gpu_request", "slurmstepd: CUDA_VISIBLE_DEVICES=NoDevFiles\nRuntimeError: No CUDA GPUs are available"),
    (
        "data_loader_starved",
        "UserWarning: The 'train_dataloader' does not have many workers which may be a bottleneck. Consider increasing the value of the `num_workers` argument` to `num_workers=63` in the `DataLoader` to improve performance.",
    ),
    (
        "no_device_plugin",
        "Capacity:\n  cpu: 64\n  memory: 1Ki\n  nvidia.com/gpu: 0\nAllocatable:\n  cpu: 64\n  nvidia.com/gpu: 0\n",
    ),
    (
        "nccl_timeout_straggler",
        "[2024-01-01 10:00:00.1: W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate that different ranks are trying to submit different tensors\nMissing ranks:\n1: [allreduce.x]",
    ),
    (
        "host_oom",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.1, ID: abc) where the task was running was 480.12GB / 503.49GB (0.953), which exceeds the memory usage threshold of 0.95.",
    ),
    (
        "power_cap",
        "GPU 00000000:18:00.0\n    Clocks Event Reasons\n        SW Power Cap                : Active\n    GPU Power Readings\n        Power Draw : 349 W\n        Current Power Limit : 350.00 W\n        Default Power Limit : 700.00 W\n",
    ),
    (
        "nccl_ib_gid",
        "node1:1:2 [0] misc/ibvwrap.cc:200 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22\n",
    ),
    (
        "nccl_ib_gid",
        "node1:1:2 [0] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 0, local GID fe80::1, remote GID fe80::2\n",
    ),
    (
        "nccl_ib_link_error",
        "[rank5]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2035, remote process exited or there was a network error, NCCL version 2.27.3\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nNET/IB: Got completion from peer 10.0.4.5<51234> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129 localGid fe80::1 remoteGidsfe80::2 hca mlx5_3\n",
    ),
    (
        "cuda_oom",
        "node1:1:2 [3] include/alloc.h:48 NCCL WARN Cuda failure 2 'out of memory'\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    ),
    (
        "shm_too_small",
        "RuntimeError: NCCL error: unhandled system error, NCCL version 2.14.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-3dEf12 (size 9637888)",
    ),
    (
        "host_oom",
        "[12345.67] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:81234567kB, anon-rss:66012345kB, file-rss:0kB, shmem-rss:0kB, UID:1000",
    ),
    (
        "host_oom",
        "deepspeed [launch.py:315:sigkill_handler] Killing subprocess 1234\n[ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9",
    ),
    (
        "host_oom",
        "/var/spool/slurmd/job123/slurm_script: line 12: 4711 Killed                  python train.py\nslurmstepd: error: Detected 3 oom_kill events in StepId=123.batch. Some of the step tasks have been OOM Killed.",
    ),
    ("host_oom", 'Error: signal: killed\n container "main" was OOMKilled (limit 64Gi)'),
    (
        "app_illegal_access",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address",
    ),
    (
        "app_illegal_access",
        "kernel: NVRM: Xid (PCI:0000:5e:00): 13, pid=2207, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 0, SM 1): Out Of Range Address\nkernel: NVRM: Xid (PCI:0000:5e:00): 43, pid=2207, name=python3, Ch 00000010",
    ),
    (
        "ecc_uncorrectable",
        "kernel: NVRM: Xid (PCI:0000:5e:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) ECC error\nkernel: NVRM: Xid (PCI:0000:5e:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0) marked for remapping, reset gpu to activate.\nkernel: NVRM: Xid (PCI:0000:5e:00): 94, pid=2, name=python3, Contained\nkernel: NVRM: Xid (PCI:0000:5e:00): 45, pid=2, name=python3, Ch 00000008",
    ),
    (
        "row_remap_failure",
        "NVRM: Xid (PCI:0000:5e:00): 64, pid='<unknown>', name=<unknown>, Row Remapper: Error recording row remapping",
    ),
    (
        "gpu_fell_off_bus",
        "NVRM: The NVIDIA GPU 0000:41:00.0\nNVRM: (PCI ID: 10de:20b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.\nnvidia: probe of 0000:41:00.0 failed with error -1",
    ),
    (
        "gpu_fell_off_bus",
        "pcieport 0000:40:01.0: pciehp: Slot(2): Link Down\npcieport 0000:40:01.0: pciehp: Slot(2): Card not present\nNVRM: Xid (PCI:0000:41:00): 79, pid=0, GPU has fallen off the bus.",
    ),
    (
        "gsp_timeout",
        "NVRM: GPU at PCI:0000:41:00: GPU-0a\nNVRM: Xid (PCI:0000:41:00): 120, pid=1, name=x, GSP task exception: instruction access fault",
    ),
    (
        "nvlink_error",
        "NVRM: Xid (PCI:0000:41:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    ),
    (
        "nvlink_error",
        "GPU 0: NVIDIA A100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 12\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 0\n",
    ),
    (
        "pcie_degraded",
        "    PCI\n        GPU Link Info\n            PCIe Generation\n                Max : 4\n                Current : 4\n            Link Width\n                Max : 16x\n                Current : 1x\n    Clocks Event Reasons\n        Idle : Not Active\n",
    ),
    (
        "fabric_manager_down",
        "    Fabric\n        State                             : In Progress\n        Status                            : N/A\n    Clocks Event Reasons\n        Idle : Active\n",
    ),
    (
        "container_runtime_missing",
        "nvidia-device-plugin: I0810 Detected non-NVML platform: could not load NVML library: libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
    ),
    (
        "container_runtime_missing",
        "E0810 main.go:126] error starting plugins: error creating plugin manager: unable to create plugin manager: platform detection failed\nE0810 Incompatible platform detected\nE0810 If this is a GPU node, did you configure the NVIDIA Container Toolkit?",
    ),
    (
        "no_device_plugin",
        "Warning  Failed  kubelet  Error: endpoint not found in cache for a registered resource: nvidia.com/gpu",
    ),
    ("mig_misconfig", "nvidia.com/mig.config=all-1g.10gb\nnvidia.com/mig.config.state=failed\n"),
    ("mig_misconfig", "Error: could not create MIG devices: invalid MIG profile '3g.20gb' for this GPU"),
    ("node_down", "Warning  NodeNotReady  5m  node-controller  Node is not ready\n"),
    (
        "node_down",
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu*         up   infinite      1  down* gpu07\ngpu*         up   infinite      7   idle gpu[01-06,08]\n",
    ),
    (
        "untolerated_taint",
        "0/6 nodes are available: 6 node(s) had untolerated taint {nvidia.com/gpu: }. preemption: 0/6 nodes are available: 6 Preemption is not helpful for scheduling.",
    ),
    (
        "gpu_fragmentation",
        'couldn\'t assign flavors to pod set main: topology "default" allows to fit only 1 out of 2 pod(s)',
    ),
    (
        "quota_exceeded",
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    ),
    (
        "node_selector_mismatch",
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n              99       gpu    train      ana PD       0:00      1 (BadConstraints)\n",
    ),
    (
        "thermal_throttle",
        "ERROR [[Health]] Detected a WARNING in health system Thermal: 'Detected clocks event due to thermal violation in GPU 2. Verify that the cooling on this machine is functional",
    ),
    (
        "thermal_throttle",
        "index, temperature.gpu, clocks_event_reasons.hw_thermal_slowdown, clocks.sm [MHz]\n0, 91, Active, 600 MHz\n1, 60, Not Active, 1980 MHz\n",
    ),
    (
        "gpu_idle_waste",
        "timestamp, index, utilization.gpu [%], memory.used [MiB]\n2026/08/10 10:00:00, 0, 0 %, 71234 MiB\n2026/08/10 10:01:00, 0, 0 %, 71234 MiB\n2026/08/10 10:02:00, 0, 0 %, 71234 MiB\n2026/08/10 10:03:00, 0, 0 %, 71234 MiB\n2026/08/10 10:04:00, 0, 0 %, 71234 MiB\n2026/08/10 10:05:00, 0, 0 %, 71234 MiB\n2026/08/10 10:06:00, 0, 0 %, 71234 MiB\n2026/08/10 10:07:00, 0, 0 %, 71234 MiB\n2026/08/10 10:08:00, 0, 0 %, 71234 MiB\n2026/08/10 10:09:00, 0, 0 %, 71234 MiB\n2026/08/10 10:10:00, 0, 0 %, 71234 MiB\n2026/08/10 10:11:00, 0, 0 %, 71234 MiB\n2026/08/10 10:12:00, 0, 0 %, 71234 MiB\n2026/08/10 10:13:00, 0, 0 %, 71234 MiB\n2026/08/10 10:14:00, 0, 0 %, 71234 MiB\n2026/08/10 10:15:00, 0, 0 %, 71234 MiB\n2026/08/10 10:16:00, 0, 0 %, 71234 MiB\n2026/08/10 10:17:00, 0, 0 %, 71234 MiB\n2026/08/10 10:18:00, 0, 0 %, 71234 MiB\n2026/08/10 10:19:00, 0, 0 %, 71234 MiB\n2026/08/10 10:20:00, 0, 0 %, 71234 MiB\n2026/08/10 10:21:00, 0, 0 %, 71234 MiB\n2026/08/10 10:22:00, 0, 0 %, 71234 MiB\n2026/08/10 10:23:00, 0, 0 %, 71234 MiB\n2026/08/10 10:24:00, 0, 0 %, 71234 MiB\n2026/08/10 10:25:00, 0, 0 %, 71234 MiB\n2026/08/10 10:26:00, 0, 0 %, 71234 MiB\n2026/08/10 10:27:00, 0, 0 %, 71234 MiB\n2026/08/10 10:28:00, 0, 0 %, 71234 MiB\n2026/08/10 10:29:00, 0, 0 %, 71234 MiB\n",
    ),
    (
        "training_diverged",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.9e-05, 'epoch': 0.12}\n{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.8e-05, 'epoch': 0.13}\n",
    ),
    (
        "training_diverged",
        "iteration 120/ 5000 | lm loss: NAN | loss scale: 1.0 | grad norm: nan | number of nan iterations: 3\n",
    ),
    (
        "checkpoint_failing",
        'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ),
    ("checkpoint_failing", "RuntimeError: PytorchStreamWriter failed writing file data/112: file write failed"),
    (
        "data_loader_starved",
        "[100/5000] time 2.10 (2.08) data 1.80 (1.79) loss 3.21\n[110/5000] time 2.12 (2.08) data 1.85 (1.79) loss 3.20\n[120/5000] time 2.09 (2.08) data 1.77 (1.79) loss 3.18\n[130/5000] time 2.10 (2.08) data 1.80 (1.79) loss 3.17\n",
    ),
    ("model_load_slow", "Loading safetensors checkpoint shards:  10% Completed | 3/30 [12:30<1:52:30, 250.00s/it]\n"),
    (
        "inference_overload",
        "Engine 000: Avg prompt throughput: 9000.0 tokens/s, Avg generation throughput: 800.0 tokens/s, Running: 256 reqs, Waiting: 1432 reqs, GPU KV cache usage: 99.8%, Prefix cache hit rate: 1.0%\n",
    ),
    (
        "nccl_rank_died",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\nERROR Worker proc VllmWorker-3 died unexpectedly, shutting down executor.",
    ),
    (
        "nccl_rank_died",
        "[node2:12345] *** Process received signal ***\n[node2:12345] Signal: Segmentation fault (11)\nmpirun noticed that process rank 3 with PID 12345 on node node2 exited on signal 11 (Segmentation fault).",
    ),
    ("nccl_timeout_straggler", "[Rank 0]: Ranks 3, 7 failed to pass monitoredBarrier in 1800000 ms"),
    (
        "training_stalled",
        "[rank3]:[F] [PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
    ),
    (
        "nccl_version_mismatch",
        "node1:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nnode2:1:1 [0] NCCL INFO NCCL version 2.18.3+cuda12.1\n",
    ),
    (
        "nccl_rdma_not_used",
        "node1:1:1 [0] NCCL INFO NET/IB : No device found.\nnode1:1:1 [0] NCCL INFO Using network Socket\nnode2:1:1 [0] NCCL INFO NET/IB : No device found.\nnode2:1:1 [0] NCCL INFO Using network Socket\n",
    ),
    (
        "ib_link_degraded",
        "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\nCA 'mlx5_1'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\nCA 'mlx5_2'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 100\n",
    ),
    ("cooling_failure", "1 | 08/10/2026 | 10:00:00 | Fan #0x41 | Lower Critical going low  | Asserted\n"),
    ("power_brake", "2 | 08/10/2026 | 10:00:00 | Power Supply #0x61 | Power Supply AC lost | Asserted\n"),
    ("cuda_version_incompat", "AssertionError: Torch not compiled with CUDA enabled"),
    (
        "cuda_version_incompat",
        "ImportError: /usr/lib/libcudnn.so.9: undefined symbol: cudnnGetX, version libcudnn.so.9",
    ),
    (
        "cuda_version_incompat",
        "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.4). Please make sure to use the same CUDA versions.",
    ),
    (
        "silent_data_corruption",
        "| Memory                    | Fail - GPU: 2                                  |\n| Warning                   | GPU 2 memory miscompare detected at address 0x  |\n",
    ),
    (
        "ecc_uncorrectable",
        "| Memory | Fail |\n| Error | GPU 4 Detected 2 volatile double-bit ECC error(s) in GPU 4. Drain the GPU and reset it or reboot the node. |",
    ),
    (
        "nvlink_error",
        "| NVLink system | Failure |\n| Error | GPU 0's NvLink link 3 is currently down. Check DCGM and system logs for errors |",
    ),
    (
        "pcie_degraded",
        "| PCIe system | Warning |\n| Warning | Detected 120 PCIe replays per minute for GPU 1. Reconnect PCIe card. Run field diagnostic on the GPU. |",
    ),
    (
        "driver_call_hung",
        "nvidia-smi: command timed out after 60s\nps aux | grep ' D '\nroot 4711 0.0 D nvidia-smi\nsubprocess.TimeoutExpired: Command '['nvidia-smi']' timed out after 30 seconds",
    ),
]
HEALTHY: list[str] = [
    "2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n2026-08-10 10:00:00 INFO epoch 1 step 100 loss=2.31 errors=0 failed=0\n",
    "gpu01:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\ngpu01:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\ngpu01:1:1 [0] NCCL INFO Using network IB\ngpu01:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 - Init COMPLETE\n",
    "Name: node1\nConditions:\n  Ready  True\nCapacity:\n  cpu: 64\n  nvidia.com/gpu: 8\nAllocatable:\n  cpu: 64\n  nvidia.com/gpu: 8\nEvents: <none>\n",
    "JobID JobName State ExitCode\n1 train COMPLETED 0:0\n",
    "+---+\n| NVIDIA-SMI 550.54.15 Driver Version: 550.54.15 CUDA Version: 12.4 |\n|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |\n| N/A   34C    P0            113W /  700W |   71234MiB /  81559MiB |     98%      Default |\n",
    "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n",
    "Sep 1 10:00:00 n1 kernel: nvidia-nvlink: Nvlink Core is being initialized, major device number 507\nSep 1 10:00:00 n1 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03\n",
    "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'foo'\n",
    "+-----+\n| Overall Health | Healthy |\n+-----+\n",
    "I0810 10:00:00.000 1 main.go:100] Registered device plugin for 'nvidia.com/gpu' with Kubelet\n",
    "WARNING: this version of the driver has not been tested with NaN handling; info only\nloss 2.3 nanoseconds\n",
    "LOG: oldest xid is far in the past; xid 48 will be frozen\n2026-08-10 INFO transaction xid=79 committed",
    "No thermal violations detected\nNo double bit ECC errors detected on GPU 3\n0 uncorrectable ECC errors",
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 412.3",
    "+---------------------------+------------------------------------------------+\n| Diagnostic                | Result                                         |\n+===========================+================================================+\n|-----  Deployment  --------+------------------------------------------------|\n| Denylist                  | Pass                                           |\n| NVML Library              | Pass                                           |\n| Page Retirement/Row Remap | Pass                                           |\n| Memory                    | Pass - All                                     |\n| Targeted Stress | Skip - All |",
    "NAME    READY   STATUS    RESTARTS   AGE\ntrain-0   1/1   Running   0   3d\n",
    "LAST SEEN   TYPE     REASON      OBJECT       MESSAGE\n5m   Normal   Pulled   pod/x   Container image already present\n5m  Normal  Scheduled pod/x Successfully assigned ml/x to gpu01\n",
    "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu*         up   infinite      8   idle gpu[01-08]\n",
    "INFO 08-10 10:00:00 Loading weights took 12.4 seconds\nINFO Engine 000: Avg prompt throughput: 12.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix cache hit rate: 20%\n",
    "[Mon Aug 10] EDAC MC0: Ver: 3.0.0\n[Mon Aug 10] ACPI Error: No handler for Region [POWR]\n[Mon Aug 10] usb 1-1: device descriptor read/64, error -71\n[Mon Aug 10] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged\n",
    'nginx: worker process 123 exited with code 0\n10.0.0.1 - - "GET /health HTTP/1.1" 200\n',
    "Traceback (most recent call last):\nFileNotFoundError: [Errno 2] No such file or directory: 'data.json'\n",
    "export NCCL_DEBUG=INFO\nexport NCCL_SOCKET_IFNAME=eth0\nexport MASTER_ADDR=10.0.0.1\n",
    "W0810 10:00:00 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\n",
    "[rank0]:[W810 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.\n",
    "step 100 grad_norm: 0.91 loss: 2.1 (nan_count: 0, inf_count: 0, overflow: False)\n",
    'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0\nDCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 0\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"} 0\nDCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} 4\n',
    "slurmstepd: error: *** JOB 4711 ON gpu01 CANCELLED AT 2026-08-10T10:00:00 DUE TO TIME LIMIT ***\n",
    "Container exited with code 143\nState: Terminated\n Reason: Completed\n Exit Code: 0\n",
    "NVRM: GPU at PCI:0000:3b:00: GPU-0a1b2c3d-1111-2222-3333-444455556666\nnvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver\n",
    "gpu01:1:2 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\ngpu01:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE\n",
    "Epoch 3: 100%|####| 500/500 [10:00<00:00, 1.2s/it, loss=0.4]\nSaving checkpoint to /ckpt/3.pt\nCheckpoint saved successfully\n",
    "kubelet: probe failed once: Liveness probe failed: HTTP probe failed with statuscode: 500\n",
    "ib0: enabling connected mode will cause multicast packet drops\nmlx5_core: Link up\n",
    "2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n2026-08-10 INFO Memory: allocated 40.1 GB, reserved 60 GB, max memory 61 GB out of 80 GB\n",
]


@pytest.mark.parametrize(("cause", "text"), SHAPES, ids=[f"{at}-{cause}" for at, (cause, _) in enumerate(SHAPES)])
def test_the_cause_of_a_pasted_text_comes_first(cause: str, text: str) -> None:
    assert causes(ask(text))[0] == cause


@pytest.mark.parametrize("text", HEALTHY, ids=range(len(HEALTHY)))
def test_a_healthy_text_gets_no_confident_answer(text: str) -> None:
    assert not [finding for finding in ask(text).findings if finding.cause != "unknown"]
