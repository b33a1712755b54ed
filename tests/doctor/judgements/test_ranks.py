"""Hangs: who is missing, who disagrees, and what the settings should be."""

from __future__ import annotations

import json
import pickle

import pytest

from tests.doctor.asking import ask, causes
from watchkeeper.readers import safe_pickle

TIMEOUT = (
    "[rank{rank}]:[E] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
    "NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
INIT = "gpu0{node}:10{rank}:10{rank} [{rank}] NCCL INFO comm 0x55 rank {rank} nranks 4 cudaDev {rank} busId 1000\n"


def timeout(rank: int, seq: int = 41, op: str = "ALLREDUCE", numel: int = 1024) -> str:
    return TIMEOUT.format(rank=rank, seq=seq, op=op, numel=numel)


def test_the_rank_that_never_timed_out_is_named() -> None:
    ranks = "".join(INIT.format(rank=rank, node=rank // 2) for rank in range(4))
    answer = ask(ranks + timeout(0) + timeout(1) + timeout(3))
    assert causes(answer)[0] == "nccl_timeout_straggler"
    assert answer.findings[0].where["missing_rank"] == 2
    assert answer.findings[0].where["collective"] == "ALLREDUCE number 41"


def test_ranks_that_wait_in_different_collectives_disagree() -> None:
    assert causes(ask(timeout(0), timeout(1, op="BROADCAST")))[0] == "nccl_shape_or_collective_mismatch"


def test_the_rank_that_enqueued_least_is_behind() -> None:
    status = "[rank{}]: PG status: last enqueued work: {}, last completed work: 40\n"
    answer = ask(timeout(0) + status.format(0, 60) + status.format(2, 41))
    assert answer.findings[0].where["missing_rank"] == 2


def test_a_rank_that_completed_more_than_another_is_not_behind_it() -> None:
    status = "[rank{}]: PG status: last enqueued work: {}, last completed work: {}\n"
    first = ask(timeout(0) + status.format(0, 60, 40) + status.format(2, 58, 42)).findings[0]
    assert first.cause == "nccl_timeout_straggler"
    assert "missing_rank" not in first.where


def test_ranks_that_timed_out_in_different_collectives_are_listed_separately() -> None:
    lines = timeout(0) + timeout(2, seq=43, op="BROADCAST")
    assert "Rank 0 waited in ALLREDUCE number 41; rank 2 waited in BROADCAST number 43" in ask(lines).findings[0].why


def dump(last: int, state: str, op: str = "all_reduce") -> dict[str, object]:
    entries = [
        {
            "process_group": ["0", "default"],
            "collective_seq_id": seq,
            "profiling_name": f"nccl:{op}",
            "state": "completed",
        }
        for seq in range(1, last)
    ]
    newest = {
        "process_group": ["0", "default"],
        "collective_seq_id": last,
        "profiling_name": f"nccl:{op}",
        "state": state,
    }
    return {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1, 2]"}}, "entries": [*entries, newest]}


def test_dumps_name_the_rank_that_is_behind_in_both_forms() -> None:
    answer = ask(
        nccl_trace_rank_0=pickle.dumps(dump(9, "started"), protocol=2),
        nccl_trace_rank_1=json.dumps(dump(7, "completed")),
        nccl_trace_rank_2=json.dumps(dump(9, "scheduled")),
    )
    assert {given.kind for given in answer.inputs} == {"flight_recorder"}
    assert causes(answer)[0] == "nccl_timeout_straggler"
    assert answer.findings[0].where["missing_rank"] == 1
    assert "CPU side" in answer.findings[0].why


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return eval, ("pytest.fail('the pickle was run')",)


def test_a_hostile_pickle_is_refused_and_never_run() -> None:
    hostile = pickle.dumps({"entries": [Trap()], "pg_config": {}, "nccl_version": "2"})
    answer = ask(nccl_trace_rank_0=hostile)
    assert "eval" in (answer.inputs[0].problem or "")
    assert not answer.findings
    with pytest.raises(safe_pickle.UnsafePickle, match="truncated"):
        safe_pickle.loads(pickle.dumps(dump(3, "started"))[:-40])


def test_two_nodes_on_sockets_without_rdma_devices_get_the_exact_change() -> None:
    lines = "".join(
        f"gpu0{node}:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
        f"gpu0{node}:1:2 [0] NCCL INFO Using network Socket\n"
        for node in (1, 2)
    )
    answer = ask(lines)
    assert causes(answer) == ["nccl_rdma_not_used"]
    assert "unset NCCL_IB_DISABLE" in answer.findings[0].actions[0].do


def test_a_single_node_on_sockets_is_healthy() -> None:
    line = "gpu01:1:2 [0] NCCL INFO NET/IB : No device found.\ngpu01:1:2 [0] NCCL INFO Using network Socket\n"
    assert not ask(line).findings


def test_the_missing_rank_has_its_node_and_gpu_and_meets_the_xid_of_that_gpu() -> None:
    ranks = "".join(
        f"gpu0{rank // 2}:1:2 [{rank}] NCCL INFO comm 0x5 rank {rank} nranks 4 cudaDev {rank % 2} "
        f"busId {rank % 2 + 1}b000\n"
        for rank in range(4)
    )
    hang = ask(ranks + timeout(0) + timeout(1) + timeout(2)).findings[0]
    assert (hang.where["missing_rank"], hang.where["missing_node"], hang.where["missing_gpu"]) == (3, "gpu01", 1)
    kernel = "Aug 10 20:36:51 gpu01 kernel: NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.\n"
    joined = ask(ranks + timeout(0) + timeout(1) + timeout(2), kernel)
    assert causes(joined)[0] == "gpu_fell_off_bus"
    assert (joined.findings[0].where["node"], joined.findings[0].where["rank"]) == ("gpu01", 3)
