"""Words of clusters and their clouds, of job launchers and of Slurm, each with names and numbers of our own."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

SHAPES: list[tuple[str, str]] = [
    (
        "container_runtime_missing",
        "Message: OCI runtime create failed: error running prestart hook #0: exit status 1, stderr: Auto-detected mode as 'legacy'",
    ),
    (
        "untolerated_taint",
        'Could not schedule pod, incompatible with nodepool "a100", did not tolerate taint (taint=team=vision:NoSchedule)',
    ),
    ("quota_exceeded", "Node scale up in zones z1 associated with this pod failed: GCE quota exceeded."),
    ("quota_exceeded", "VcpuLimitExceeded: you asked for more vCPU capacity than your limit of 64 allows"),
    (
        "quota_exceeded",
        '"code": "QuotaExceeded", "message": "it results in exceeding approved standardFamily Cores quota"',
    ),
    ("insufficient_gpu_capacity", "Node scale up in zones z1 associated with this pod failed: GCE out of resources."),
    ("insufficient_gpu_capacity", "InsufficientInstanceCapacity: none left in zone z1"),
    ("insufficient_gpu_capacity", '(OverconstrainedZonalAllocationRequest) Message="Allocation failed."'),
    (
        "insufficient_gpu_capacity",
        "The requested size for resource 'vm-7' is currently not available in location 'l1'.",
    ),
    ("insufficient_gpu_capacity", "RuntimeError: You don't have enough GPUs available in a current node."),
    ("driver_not_loaded", "E0810 05:36:05.1 7 install.go:9] failed to verify GPU driver installation: exit status 3"),
    (
        "driver_not_loaded",
        "NAME  DESIRED  CURRENT  READY  UP-TO-DATE  AVAILABLE\nnvidia-driver-daemonset   3   3   0   3   0   a=b   9m",
    ),
    ("no_device_plugin", 'controllers.ClusterPolicy  No GPU node in the cluster, do not create DaemonSets {"a": "b"}'),
    (
        "no_device_plugin",
        '"ListAndWatch ended unexpectedly for device plugin" err="rpc error: code = Unavailable" resource="nvidia.com/gpu"',
    ),
    ("scheduler_unreachable", "slurm_load_node error: Unable to contact slurm controller (connect failure)"),
    (
        "scheduler_unreachable",
        'Error: UPGRADE FAILED: Kubernetes cluster unreachable: Get "https://10.9.9.9:6443/version": dial tcp 10.9.9.9:6443: i/o timeout',
    ),
    (
        "pod_network_broken",
        'failed to get server groups: Get "https://10.96.0.1:443/api?timeout=32s": dial tcp 10.96.0.1:443: i/o timeout',
    ),
    ("scheduler_unreachable", "slurmd: error: auth_p_verify: Munge decode failed: Expired credential"),
    ("node_down", "[2026-08-10T05:36:05.101] error: Node gpu07 unexpectedly rebooted boot_time=1 last response=2"),
    ("gpu_missing", "ERROR:  nhc:  Health check failed:  Check check_gpu_count 8 returned 1"),
    ("row_remap_pending", "Found XID errors: 63\nERROR:  nhc:  Health check failed:  Check check_xid returned 1"),
    (
        "nccl_timeout_straggler",
        "This thread has been waiting for `a; b` for 20 seconds and may be stuck. Expected 4 threads to join the rendezvous, but not all of them arrived on time.",
    ),
    (
        "nccl_bootstrap_firewall",
        "E client.cc:9] Coordination service agent in error status: DEADLINE_EXCEEDED: Deadline Exceeded",
    ),
    ("nccl_rank_died", "WatchTasksAsync failed for task 6: UNAVAILABLE: failed to connect to all addresses"),
    ("insufficient_gpu_capacity", "A big-gpu-8 VM instance is currently unavailable in the zone-b zone."),
    (
        "insufficient_gpu_capacity",
        "a.b.ResourcesUnavailableError: Failed to provision all possible launchable resources. Relax it",
    ),
    ("driver_not_loaded", 'msg="Error: error validating driver installation: failed to create NVIDIA device nodes"'),
    ("cuda_version_incompat", "[TM][ERROR] CUDA runtime error: invalid device function /src/a.cu:9"),
    ("cuda_version_incompat", "CUDA runtime error: API call is not supported in the installed CUDA driver /src/a.h:9"),
    ("scheduler_unreachable", "slurm_persist_conn_open_without_init: failed to open persistent connection to host:h:1"),
    (
        "cuda_oom",
        "[TensorRT-LLM][ERROR] Assertion failed: maxTokensInPagedKvCache (64) must be large enough to process one",
    ),
]


@pytest.mark.parametrize(("cause", "text"), SHAPES, ids=[f"{cause}-{at}" for at, (cause, _) in enumerate(SHAPES)])
def test_cluster_messages_lead_to_their_cause(cause: str, text: str) -> None:
    assert causes(ask(text))[:1] == [cause]


NO_FAULT_OF_A_GPU = [
    'ValidationError(ClusterPolicy.spec.toolkit): unknown field "newer" in com.nvidia.v1.ClusterPolicy.spec.toolkit',
    "failed to wait for nvidia-driver-controller caches: timed out waiting for cache to be synced for Kind *v1.NVIDIADriver",
    "[2026-08-10T05:36:05.101] error: Incomplete node data checkpoint file",
    "error: Node configuration differs from hardware: CPUs=8:4(hw) Boards=1:1(hw)",
    "slurmstepd: error: *** STEP 9.0 ON n7 CANCELLED AT 2026-08-10T10:00:00 DUE TO JOB REQUEUE ***\nsrun: error: n7: tasks 2-3: Exited with exit code 1",
]


@pytest.mark.parametrize("text", NO_FAULT_OF_A_GPU)
def test_a_configuration_problem_is_not_a_fault(text: str) -> None:
    first = ask(text).findings[0]
    assert first.cause == "unknown"
    assert first.confidence >= 0.3


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-10 05:36:05 node-health: check_gpu_count: expected 8, found 8: PASS",
        "INFO controllers.ClusterPolicy: 4 GPU nodes in the cluster, DaemonSets are ready",
        "slurmctld: Node gpu07 now responding",
    ],
)
def test_the_same_words_in_a_success_message_are_no_finding(text: str) -> None:
    assert not ask(text).findings


def test_pods_that_do_not_stay_up_are_named() -> None:
    rows = (
        "nvidia-driver-daemonset-7k7k7   0/1   CrashLoopBackOff   9   41m\nserve-x2x   0/1   ImagePullBackOff   0   2m"
    )
    assert ask(rows).findings[0].where["pod"] == "nvidia-driver-daemonset-7k7k7"
    assert ask("serve-x2x   0/1   ImagePullBackOff   0   2m").findings[0].where["pod"] == "serve-x2x"


def test_the_first_node_and_rank_of_torchruns_report_are_the_place() -> None:
    text = """Failures:
[1]:
  time      : 2026-08-10_10:00:07
  host      : gpu04.example.org
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 41)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-08-10_10:00:00
  host      : gpu03.example.org
  rank      : 3 (local_rank: 3)
  exitcode  : -6 (pid: 42)
  error_file: <N/A>
"""
    first = ask(text).findings[0]
    assert (first.cause, first.where["node"], first.where["rank"]) == ("nccl_rank_died", "gpu03.example.org", 3)
    assert "aborted" in first.why


WAITED = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.\n"


@pytest.mark.parametrize(
    "ended",
    [
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 3 (pid: 41) of binary: python\n",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n",
    ],
)
def test_a_rank_that_its_watchdog_ended_did_not_die_first(ended: str) -> None:
    assert causes(ask(WAITED + ended))[:1] == ["nccl_timeout_straggler"]
    assert causes(ask(ended + WAITED))[:1] == ["nccl_rank_died"]


@pytest.mark.parametrize(
    "line",
    [
        "[2026-08-10T05:36:05.101] Killing JobId=48211 on failed node gpu07",
        "[2026-08-10T05:36:05.101] requeue job JobId=48211 due to failure of node gpu07",
        "WARNING - Node state check: no corresponding instance in EC2 for node gpu07(10.9.9.9)",
        "[2026-08-10T05:36:05.101] update_node: node gpu07 reason set to: Not responding",
    ],
)
def test_a_node_that_the_controller_gave_up_is_the_place(line: str) -> None:
    first = ask(line).findings[0]
    assert (first.cause, first.where["node"]) == ("node_down", "gpu07")


def test_a_task_that_ended_with_a_bus_error_is_the_place() -> None:
    first = ask("srun: error: gpu07: task 12: Bus error").findings[0]
    assert (first.cause, first.where["node"], first.where["rank"]) == ("shm_too_small", "gpu07", 12)


def test_a_task_that_the_coordinator_lost_is_the_place() -> None:
    text = "Task /job:jax_worker/replica:0/task:7 heartbeat timeout."
    assert ask(text).findings[0].where["rank"] == 7


@pytest.mark.parametrize("state", ["down*", "idle*", "drained"])
def test_nodes_one_in_a_row_are_read_with_their_reasons(state: str) -> None:
    text = f"""Mon Aug 10 10:00:00 2026
NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON
gpu06          1      gpu*        idle   64   2:16:2 515000        0      1   (null) none
gpu07          1      gpu*  {state:>10}   64   2:16:2 515000        0      1   (null) Not responding
"""
    first = ask(text).findings[0]
    assert (first.cause, first.where["node"]) == ("node_down", "gpu07")


def test_an_xid_in_the_reason_of_a_node_in_a_row_counts() -> None:
    text = """NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON
gpu07          1      gpu*     drained   64   2:16:2 515000        0      1   (null) Xid 79 on GPU 3
"""
    assert causes(ask(text))[:1] == ["gpu_fell_off_bus"]


def test_healthy_nodes_in_rows_of_one_are_healthy() -> None:
    text = "NODELIST   NODES PARTITION STATE \ngpu06          1      gpu* idle  \ngpu07          1      gpu* mix   \n"
    assert not ask(text).findings
