"""The fabric test: every pair once, slow links and slow ends distinguished, and failed ranks named."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli.node.diag_fabric import PORT, as_plain, find_rendezvous
from watchkeeper.model.diag import DiagVerdict
from watchkeeper.probe.fabric import launcher
from watchkeeper.probe.fabric.pairwise import Pair, Rank, Reduction, judge_fabric, schedule_rounds

RANKS = [Rank(node, f"g{gpu}") for node in ("n0", "n1", "n2") for gpu in range(4)]
# A stand-in for an interpreter: a rank that does what the word in its first argument says.
RANK = r"""#!{python}
import json, os, sys, time
order = json.loads(sys.argv[-1])
def send(**words):
    print(json.dumps(words), flush=True)
behaviour = "{behaviour}"
if behaviour == "no_torch":
    send(type="no_torch", why="no torch")
elif behaviour == "late" and order["rank"] == 1:
    time.sleep(600)
elif behaviour == "dies" and order["rank"] == 1:
    send(type="joined", rank=1); print("NCCL WARN Bootstrap", file=sys.stderr); os.abort()
else:
    send(type="joined", rank=order["rank"])
    if behaviour in ("dies", "late"):
        time.sleep(600)
    if order["rank"] == 0:
        ranks = [dict(node="n0", gpu=f"cpu{{rank}}") for rank in range(order["world"])]
        pairs = [dict(first=0, second=1, gb_per_second=5.0)]
        send(type="measured", ranks=ranks, reductions=[dict(size_bytes=1 << 30, seconds=0.01, ranks=2)], pairs=pairs)
    send(type="end")
"""


@given(st.integers(2, 40))
def test_every_pair_is_scheduled_exactly_once_and_no_rank_has_two_partners_in_a_round(ranks: int) -> None:
    schedule = schedule_rounds(ranks)
    assert sorted(pair for matched in schedule for pair in matched) == list(combinations(range(ranks), 2))
    assert all(len({end for pair in matched for end in pair}) == 2 * len(matched) for matched in schedule)
    assert len(schedule) == ranks - 1 + ranks % 2


def sweep(slow: set[tuple[int, int]]) -> list[Pair]:
    """Pairs of twelve GPUs on three nodes: 400 GB/s inside, 50 between, a tenth of that where slow."""
    return [
        Pair(first, second, (400.0 if first // 4 == second // 4 else 50.0) / (10 if (first, second) in slow else 1))
        for first, second in combinations(range(12), 2)
    ]


def judge_slow(slow: set[tuple[int, int]]) -> dict[str, tuple[DiagVerdict, str]]:
    return {result.test: (result.verdict, result.why) for result in judge_fabric(RANKS, (), sweep(slow))}


def test_pairs_inside_and_between_nodes_are_compared_separately() -> None:
    assert {test: verdict for test, (verdict, _) in judge_slow(set()).items()} == {
        "pairs_inside": DiagVerdict.PASS,
        "pairs_between": DiagVerdict.PASS,
    }


def test_one_slow_link_is_named_by_its_two_ends() -> None:
    verdict, why = judge_slow({(1, 2)})["pairs_inside"]
    assert verdict is DiagVerdict.FAIL
    assert why == "1 of 18 pairs inside nodes are slow, normal is 400 GB/s: n0/g1 and n0/g2: 40"
    assert judge_slow({(1, 2)})["pairs_between"][0] is DiagVerdict.PASS


def test_a_gpu_whose_pairs_are_all_slow_is_named_instead_of_its_pairs() -> None:
    slow = {(first, second) for first, second in combinations(range(12), 2) if 5 in (first, second)}
    results = judge_slow(slow)
    assert results["pairs_inside"][1].endswith("GB/s: all 3 pairs of n1/g1, 40")
    assert results["pairs_between"][1].endswith("GB/s: all 8 pairs of n1/g1, 5")


def test_a_node_behind_a_slow_uplink_is_named_instead_of_its_gpus() -> None:
    slow = {(first, second) for first, second in combinations(range(12), 2) if (first // 4 == 2) != (second // 4 == 2)}
    verdict, why = judge_slow(slow)["pairs_between"]
    assert verdict is DiagVerdict.FAIL
    assert why == "32 of 48 pairs between nodes are slow, normal is 50 GB/s: all 32 pairs of n2, 5"


def test_two_pairs_are_too_few_to_blame_one() -> None:
    (result,) = judge_fabric(RANKS, (), [Pair(0, 1, 400.0), Pair(2, 3, 4.0)])
    assert (result.verdict, "too few to compare" in result.why) == (DiagVerdict.PASS, True)


def test_an_all_reduce_is_reported_as_bus_bandwidth_and_compared_with_the_required_rate() -> None:
    reduction = Reduction(size_bytes=10**9, seconds=0.005, ranks=8)
    assert reduction.bus_gb_per_second == pytest.approx(350.0)
    assert judge_fabric(RANKS, [reduction], ())[0].verdict is DiagVerdict.PASS
    (result,) = judge_fabric(RANKS, [reduction], (), expected=400.0)
    assert (result.verdict, result.why.endswith("400 is required (88%)")) == (DiagVerdict.FAIL, True)


def plan(folder: Path, behaviour: str) -> launcher.FabricPlan:
    program = folder / "python"
    program.write_text(RANK.format(python=sys.executable, behaviour=behaviour))
    program.chmod(0o755)
    limits = {"join_timeout_seconds": 0.5, "progress_timeout_seconds": 60.0}
    return launcher.FabricPlan(("cpu0", "cpu1"), "gloo", python=str(program), **limits)  # type: ignore[arg-type]


def test_ranks_that_finish_give_rates_and_a_verdict(tmp_path: Path) -> None:
    report = launcher.run(plan(tmp_path, "healthy"))
    assert report.exit_code == 0
    plain = json.loads(json.dumps(as_plain(report)))
    assert plain["pairs"] == [{"one": 0, "other": 1, "rate": 5.0}]
    assert plain["allreduce"][0]["bus_gb_per_second"] == pytest.approx(2**30 / 1e7)


def test_a_rank_that_dies_is_named_with_its_last_error_line(tmp_path: Path) -> None:
    report = launcher.run(plan(tmp_path, "dies"))
    assert (report.exit_code, report.results[0].why) == (1, "rank 1 exited (signal 6: NCCL WARN Bootstrap)")


@pytest.mark.slow
def test_a_rank_that_does_not_join_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Enough time to start the other rank on a busy machine.
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 4.0)
    report = launcher.run(plan(tmp_path, "late"))
    assert report.results[0].why == "rank 1 did not join at 127.0.0.1 within 0.5 s"


def test_without_torch_the_fabric_cannot_be_judged(tmp_path: Path) -> None:
    report = launcher.run(plan(tmp_path, "no_torch"))
    assert (report.exit_code, "--python" in report.results[0].why) == (3, True)


def test_node_rank_and_master_come_from_slurm_or_options() -> None:
    slurm = {"SLURM_NODEID": "2", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "gpu-[05-08]"}
    assert find_rendezvous(slurm, nodes=None, node_rank=None, master=None) == (4, 2, "gpu-05", PORT)
    assert find_rendezvous({}, nodes=2, node_rank=1, master="a:77") == (2, 1, "a", 77)
    assert find_rendezvous({}, nodes=None, node_rank=None, master=None) == (1, 0, "127.0.0.1", 0)


def test_a_job_step_joins_at_the_first_node_of_the_step() -> None:
    job = {"SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_NODELIST": "gpu-[01-08]", "SLURM_NODEID": "1"}
    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu-[05,07]"}
    assert find_rendezvous(job | step, nodes=None, node_rank=None, master=None) == (2, 1, "gpu-05", PORT)


@pytest.mark.parametrize(("nodes", "rank", "master"), [(2, 0, None), (2, 2, "a"), (2, 0, "a:b")])
def test_an_invalid_node_rank_or_master_is_wrong_use(nodes: int, rank: int, master: str | None) -> None:
    with pytest.raises(click.UsageError):
        find_rendezvous({}, nodes=nodes, node_rank=rank, master=master)


def test_a_slowed_pair_is_found_over_gloo() -> None:
    pytest.importorskip("torch")
    names = tuple(f"cpu{number}" for number in range(4))
    report = launcher.run(launcher.FabricPlan(names, "gloo", slow_pair=(1, 3)))
    slowest = min(report.pairs, key=lambda pair: pair.gb_per_second)
    assert (slowest.first, slowest.second, len(report.pairs)) == (1, 3, 6)
    assert report.exit_code == 1
