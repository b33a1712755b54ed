"""Whose line it is: ranks, nodes and pods that launchers, tracebacks and shippers name apart from the error itself."""

from __future__ import annotations

import json

import pytest

from tests.doctor.asking import ask, causes

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
GAVE_UP = (
    "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=64, "
    "NumelOut=64, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)


def test_the_number_that_srun_puts_before_each_line_is_a_rank_and_its_own_line_has_the_node() -> None:
    text = "\n".join(
        [
            "0: step 40 loss 2.1",
            "5: Traceback (most recent call last):",
            f"5: {ECC}",
            *(f"{rank}: {GAVE_UP.format(rank)}" for rank in (0, 1, 2)),
            "srun: error: cn0107: task 5: Exited with exit code 1",
        ]
    )
    first = ask(text).findings[0]
    assert (first.cause, first.where["rank"], first.where["node"]) == ("ecc_uncorrectable", 5, "cn0107")


def test_a_number_before_some_lines_only_is_no_rank() -> None:
    first = ask(f"5: {ECC}\nTraceback (most recent call last):\n{ECC}\n").findings[0]
    assert "rank" not in first.where


def test_the_host_of_torchrun_s_block_is_the_node_of_its_rank() -> None:
    text = f"""[rank11]: Traceback (most recent call last):
[rank11]: {ECC}
Root Cause (first observed failure):
[0]:
  time      : 2026-08-10_05:36:05
  host      : cn17.example.org
  rank      : 11 (local_rank: 3)
  exitcode  : 1 (pid: 4711)
"""
    first = ask(text).findings[0]
    assert (first.cause, first.where["rank"], first.where["node"]) == ("ecc_uncorrectable", 11, "cn17.example.org")


def test_a_rank_that_two_nodes_are_named_for_has_none() -> None:
    lines = [f"cn1: [rank3]: {ECC}", "cn2: [rank3]: Traceback (most recent call last):", f"[rank3]: {ECC} again"]
    finding = ask("\n".join(lines)).findings[0]
    assert finding.where["rank"] == 3
    assert finding.where["node"] == "cn1"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[2026-08-10 05:36:05 DP1 TP3 EP3] ", 3),
        ("[2026-08-10 05:36:05 TP7] ", 7),
        ("(Worker_DP0_TP2 pid=4711) ", 2),
        ("(VllmWorker rank=6 pid=4711) ", 6),
    ],
)
def test_serving_programs_name_their_ranks_by_tensor_parallel_number(prefix: str, rank: int) -> None:
    heading = "Scheduler hit an exception: Traceback (most recent call last):"
    text = f"{prefix}{heading}\n  File 'x.py', line 3, in run\n{ECC}\n"
    assert ask(text).findings[0].where["rank"] == rank


def test_what_a_shipper_says_about_the_pod_is_its_place() -> None:
    def line(at: int, pod: int, text: str) -> str:
        about = {"pod_name": f"llm-worker-{pod}", "container_name": "main", "host": f"cn{pod}", "namespace_name": "ml"}
        return json.dumps({"time": f"2026-08-10T05:3{at}:05Z", "log": text, "kubernetes": about})

    text = "\n".join([line(0, 2, f"[rank17]: {ECC}"), *(line(9, pod, GAVE_UP.format(pod)) for pod in (0, 1))])
    first = ask(text).findings[0]
    assert (first.where["rank"], first.where["node"], first.where["pod"]) == (17, "cn2", "llm-worker-2")


def test_the_launcher_s_line_names_rank_and_node_of_every_sign_on_it() -> None:
    text = "mpirun noticed that process rank 5 with PID 0 on node cn12 exited on signal 7 (Bus error).\n"
    first = ask(text).findings[0]
    assert (first.cause, first.where["rank"], first.where["node"]) == ("shm_too_small", 5, "cn12")


def test_a_line_after_that_of_another_rank_is_not_that_rank_s() -> None:
    text = f"(Trainer pid=31, ip=10.0.0.12) {GAVE_UP.format(4)}\nray.exceptions.RayActorError: The actor died.\n"
    died = next(finding for finding in ask(text).findings if finding.cause == "nccl_rank_died")
    assert "rank" not in died.where


def test_a_raylet_s_line_has_the_address_of_its_node() -> None:
    text = (
        "(raylet, ip=10.0.3.17) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed\n"
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    )
    first = ask(text).findings[0]
    assert (first.cause, first.where["node"]) == ("host_oom", "10.0.3.17")


def test_jax_names_the_task_that_is_gone_on_a_line_of_its_own() -> None:
    text = (
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
        "/job:jax_worker/replica:0/task:6\n"
        "The tasks have crashed. Check the task logs for an earlier error.\n"
    )
    first = ask(text).findings[0]
    assert (first.title, first.where["missing_rank"]) == ("A rank of this job died: rank 6", 6)


def test_megatron_s_own_words_name_rank_node_and_gpu() -> None:
    text = (
        "RuntimeError: Rank 9, node cn44, device 1, iteration 332: found NaN in local grad norm for bucket #3\n"
        f"{GAVE_UP.format(0)}\n"
    )
    first = ask(text).findings[0]
    assert (first.cause, first.where["rank"], first.where["node"]) == ("training_diverged", 9, "cn44")
    assert first.where["gpu"] == 1


def test_a_rank_s_own_exception_is_quoted_where_the_launcher_names_only_its_exit_code() -> None:
    text = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/data.py", line 31, in collate
[rank3]: KeyError: '<|im_end|>'
E0810 05:36:05.200000 881 api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 903) of binary: /usr/bin/python3
"""
    answer = ask(text)
    assert causes(answer)[0] == "nccl_rank_died"
    assert answer.findings[0].title == "Rank 3 died"
    assert answer.findings[0].why.endswith("Rank 3 failed with KeyError: '<|im_end|>'")


def test_a_described_message_without_a_cause_is_the_title() -> None:
    text = (
        "0: step 881 loss 1.9\n"
        "slurmstepd: error: *** JOB 4412 ON cn101 CANCELLED AT 2026-08-10T05:36:05 DUE TO PREEMPTION ***\n"
        "3: Traceback (most recent call last):\n3: KeyboardInterrupt\n"
    )
    first = ask(text).findings[0]
    assert first.cause == "unknown"
    assert first.title.startswith("Slurm itself ended the job")


def test_the_rank_that_is_behind_is_in_the_title() -> None:
    status = (
        "[PG ID 0 PG GUID 0(default_pg) Rank {}] Exception detected by watchdog at work: 9, last enqueued NCCL work:"
        " {}, last completed NCCL work: {}."
    )
    lines = [GAVE_UP.format(rank) + "\n" + status.format(rank, 812, 811) for rank in (0, 2, 3)]
    answer = ask("\n".join([*lines, status.format(1, 810, 810)]))
    assert answer.findings[0].title == "This job waits for a slow rank: rank 1"
