"""Which of several ranks failed: the one that differs; none if two ranks differ."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask

RANKS = range(4)
NAN = "2026-11-15 12:59:51 WARNING [rank{}] step {} loss: nan\n"
DIFFER = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float), but Rank {1} is "
    "running collective: CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[5]).\n"
)
CLOSED = "RuntimeError: [/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:46261\n"
RESET = (
    "RuntimeError: [/build/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:46261: Connection reset by peer. x\n"
)


@pytest.mark.parametrize("bad", RANKS)
def test_the_first_rank_with_a_nan_loss_is_named(bad: int) -> None:
    logs = {f"rank{rank}_log": NAN.format(rank, 10 if rank == bad else 11) for rank in RANKS}
    finding = ask(**logs).findings[0]
    assert (finding.cause, finding.where["culprit_rank"]) == ("training_diverged", bad)
    assert finding.title == f"Training of rank {bad} has diverged"


def test_of_two_ranks_that_diverge_at_the_same_step_none_is_named() -> None:
    logs = {f"rank{rank}_log": NAN.format(rank, 10 if rank < 2 else 11) for rank in RANKS}
    assert "culprit_rank" not in ask(**logs).findings[0].where


@pytest.mark.parametrize("bad", RANKS)
def test_the_rank_that_disagrees_with_all_others_is_named(bad: int) -> None:
    other = min(set(RANKS) - {bad})
    logs = {f"rank{rank}_log": DIFFER.format(rank, other if rank == bad else bad) for rank in RANKS}
    finding = ask(**logs).findings[0]
    assert (finding.cause, finding.where["culprit_rank"]) == ("nccl_shape_or_collective_mismatch", bad)


def test_with_two_ranks_that_disagree_none_is_named() -> None:
    assert "culprit_rank" not in ask(DIFFER.format(0, 1), DIFFER.format(1, 0)).findings[0].where


@pytest.mark.parametrize("bad", RANKS)
def test_the_silent_rank_is_named_when_the_others_lost_a_peer(bad: int) -> None:
    logs = {f"rank{rank}_log": "step 9\n" if rank == bad else (CLOSED, RESET)[rank % 2] for rank in RANKS}
    finding = ask(**logs).findings[0]
    assert (finding.cause, finding.where["culprit_rank"]) == ("nccl_rank_died", bad)


def test_of_two_silent_ranks_none_is_named() -> None:
    logs = {f"rank{rank}_log": "step 9\n" if rank < 2 else CLOSED for rank in RANKS}
    assert "culprit_rank" not in ask(**logs).findings[0].where
