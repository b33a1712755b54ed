"""Messages that blind rounds met and the doctor did not know, in other words than those in which they were met."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 9.1e-305", "training_diverged"),
        ("only 6 LinkUp ports found (expected at least 8); 2 'Polling' devices found (mlx5_4)", "ib_link_degraded"),
        ("(raylet) memory_monitor.cc:71: Node memory usage above threshold, used: 41, total: 42", "host_oom"),
        (
            "RuntimeError: [gloo/transport/tcp/pair.cc:7] connect [10.0.0.7]:48: Connection refused",
            "nccl_bootstrap_firewall",
        ),
        (
            "[rank5]: recvValue failed on SocketImpl(fd=6, remote=[n0]:29500): failed to recv, got 0 bytes",
            "nccl_rank_died",
        ),
        ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", "nccl_rank_died"),
        ("chroot: failed to run command 'nvidia-smi': No such file or directory", "driver_not_loaded"),
        ("Error: Quota exceeded.", "quota_exceeded"),
        ('level=fatal msg="Error retrieving DCGM MIG hierarchy: API version mismatch"', "cuda_version_incompat"),
        ("failed to create instance: CUDA memory allocation failed: out of memory", "cuda_oom"),
        ("[rank1]: failure detected by watchdog at work sequence id: 40 PG status: x", "nccl_timeout_straggler"),
    ],
)
def test_the_cause_comes_first(text: str, cause: str) -> None:
    assert causes(ask(text))[0] == cause


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory.", "locked-memory limit"),
        ("bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in", "same rank"),
        ('Warning  Failed  12s  kubelet  Failed to pull image "r.example/a:1": not found', "pull the image"),
    ],
)
def test_a_message_without_a_catalogue_cause_is_described(text: str, words: str) -> None:
    first = ask(text).findings[0]
    assert first.cause == "unknown"
    assert words in first.title


def test_a_full_disk_is_no_quota_of_gpus() -> None:
    assert "quota_exceeded" not in causes(ask("OSError: [Errno 122] Disk quota exceeded: '/data/model.bin'"))


def test_one_step_that_overflows_is_how_mixed_precision_finds_its_scale() -> None:
    assert not ask("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 256.0").findings
