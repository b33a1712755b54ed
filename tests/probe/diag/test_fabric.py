"""The fabric check: every pair once, a slow link told from a slow end, and ranks that fail named."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli.node.diag_fabric import PORT, as_plain, meeting
from watchkeeper.model.diag import DiagVerdict
from watchkeeper.probe.fabric import launcher
from watchkeeper.probe.fabric.pairwise import Pair, Rank, Reduction, judge, rounds

RANKS = [Rank(node, f"g{gpu}") for node in ("n0", "n1", "n2") for gpu in range(4)]
# A stand-in for an interpreter: a rank that does what the word in its first argument says.
RANK = r"""#!{python}
import json, os, sys, time
order = json.loads(sys.argv[-1])
def say(**words):
    print(json.dumps(words), flush=True)
behaviour = "{behaviour}"
if behaviour == "absent":
    say(say="absent", why="no torch")
elif behaviour == "late" and order["rank"] == 1:
    time.sleep(600)
elif behaviour == "dies" and order["rank"] == 1:
    say(say="joined", rank=1); print("NCCL WARN Bootstrap", file=sys.stderr); os.abort()
else:
    say(say="joined", rank=order["rank"])
    if behaviour in ("dies", "late"):
        time.sleep(600)
    if order["rank"] == 0:
        ranks = [dict(node="n0", gpu=f"cpu{{rank}}") for rank in range(order["world"])]
        pairs = [dict(one=0, other=1, rate=5.0)]
        say(say="found", ranks=ranks, reductions=[dict(size_bytes=1 << 30, seconds=0.01, ranks=2)], pairs=pairs)
    say(say="end")
"""


@given(st.integers(2, 40))
def test_every_pair_meets_exactly_once_and_nobody_is_in_two_at_the_same_time(ranks: int) -> None:
    schedule = rounds(ranks)
    assert sorted(pair for matched in schedule for pair in matched) == list(combinations(range(ranks), 2))
    assert all(len({end for pair in matched for end in pair}) == 2 * len(matched) for matched in schedule)
    assert len(schedule) == ranks - 1 + ranks % 2


def sweep(slow: set[tuple[int, int]]) -> list[Pair]:
    """Pairs of twelve GPUs on three nodes: 400 GB/s inside, 50 between, a tenth of that where slow."""
    return [
        Pair(one, other, (400.0 if one // 4 == other // 4 else 50.0) / (10 if (one, other) in slow else 1))
        for one, other in combinations(range(12), 2)
    ]


def found(slow: set[tuple[int, int]]) -> dict[str, tuple[DiagVerdict, str]]:
    return {result.test: (result.verdict, result.why) for result in judge(RANKS, (), sweep(slow))}


def test_pairs_are_held_against_their_own_kind() -> None:
    assert {test: verdict for test, (verdict, _) in found(set()).items()} == {
        "pairs_inside": DiagVerdict.PASS,
        "pairs_between": DiagVerdict.PASS,
    }


def test_one_slow_link_is_named_by_its_two_ends() -> None:
    verdict, why = found({(1, 2)})["pairs_inside"]
    assert verdict is DiagVerdict.FAIL
    assert why == "1 of 18 pairs inside nodes are slow, good ones reach 400 GB/s: n0/g1 and n0/g2: 40"
    assert found({(1, 2)})["pairs_between"][0] is DiagVerdict.PASS


def test_a_gpu_whose_every_pair_is_slow_is_named_instead_of_its_pairs() -> None:
    slow = {(one, other) for one, other in combinations(range(12), 2) if 5 in (one, other)}
    answer = found(slow)
    assert answer["pairs_inside"][1].endswith("GB/s: all 3 pairs of n1/g1, 40")
    assert answer["pairs_between"][1].endswith("GB/s: all 8 pairs of n1/g1, 5")


def test_a_node_behind_a_slow_uplink_is_named_instead_of_its_gpus() -> None:
    slow = {(one, other) for one, other in combinations(range(12), 2) if (one // 4 == 2) != (other // 4 == 2)}
    verdict, why = found(slow)["pairs_between"]
    assert verdict is DiagVerdict.FAIL
    assert why == "32 of 48 pairs between nodes are slow, good ones reach 50 GB/s: all 32 pairs of n2, 5"


def test_two_pairs_are_too_few_to_blame_one() -> None:
    (result,) = judge(RANKS, (), [Pair(0, 1, 400.0), Pair(2, 3, 4.0)])
    assert (result.verdict, "too few to compare" in result.why) == (DiagVerdict.PASS, True)


def test_an_all_reduce_is_told_in_bus_bandwidth_and_held_against_what_is_wanted() -> None:
    reduction = Reduction(size_bytes=10**9, seconds=0.005, ranks=8)
    assert reduction.bus_rate == pytest.approx(350.0)
    assert judge(RANKS, [reduction], ())[0].verdict is DiagVerdict.PASS
    (result,) = judge(RANKS, [reduction], (), expected=400.0)
    assert (result.verdict, result.why.endswith("400 is wanted (88%)")) == (DiagVerdict.FAIL, True)


def plan(folder: Path, behaviour: str) -> launcher.FabricPlan:
    program = folder / "python"
    program.write_text(RANK.format(python=sys.executable, behaviour=behaviour))
    program.chmod(0o755)
    limits = {"join_seconds": 0.5, "silent_seconds": 60.0}
    return launcher.FabricPlan(("cpu0", "cpu1"), "gloo", python=str(program), **limits)  # type: ignore[arg-type]


def test_ranks_that_finish_give_rates_and_a_verdict(tmp_path: Path) -> None:
    report = launcher.run(plan(tmp_path, "healthy"))
    assert report.exit_code == 0
    plain = json.loads(json.dumps(as_plain(report)))
    assert plain["pairs"] == [{"one": 0, "other": 1, "rate": 5.0}]
    assert plain["allreduce"][0]["bus_gb_per_second"] == pytest.approx(2**30 / 1e7)


def test_a_rank_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    report = launcher.run(plan(tmp_path, "dies"))
    assert (report.exit_code, report.results[0].why) == (1, "rank 1 ended (signal 6: NCCL WARN Bootstrap)")


@pytest.mark.slow
def test_a_rank_that_does_not_join_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Time enough for the other one to be started, also where others have the cores.
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 4.0)
    report = launcher.run(plan(tmp_path, "late"))
    assert report.results[0].why == "rank 1 did not join at 127.0.0.1 within 0.5 s"


def test_without_torch_the_fabric_cannot_be_judged(tmp_path: Path) -> None:
    report = launcher.run(plan(tmp_path, "absent"))
    assert (report.exit_code, "--python" in report.results[0].why) == (3, True)


def test_a_node_takes_its_place_from_slurm_or_from_options() -> None:
    slurm = {"SLURM_NODEID": "2", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "gpu-[05-08]"}
    assert meeting(slurm, nodes=None, node_rank=None, master=None) == (4, 2, "gpu-05", PORT)
    assert meeting({}, nodes=2, node_rank=1, master="a:77") == (2, 1, "a", 77)
    assert meeting({}, nodes=None, node_rank=None, master=None) == (1, 0, "127.0.0.1", 0)


def test_a_step_on_some_nodes_of_a_job_meets_at_the_first_of_its_own() -> None:
    job = {"SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_NODELIST": "gpu-[01-08]", "SLURM_NODEID": "1"}
    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu-[05,07]"}
    assert meeting(job | step, nodes=None, node_rank=None, master=None) == (2, 1, "gpu-05", PORT)


@pytest.mark.parametrize(("nodes", "rank", "master"), [(2, 0, None), (2, 2, "a"), (2, 0, "a:b")])
def test_a_meeting_that_cannot_be_is_wrong_use(nodes: int, rank: int, master: str | None) -> None:
    with pytest.raises(click.UsageError):
        meeting({}, nodes=nodes, node_rank=rank, master=master)


def test_a_slowed_pair_is_found_over_gloo() -> None:
    pytest.importorskip("torch")
    names = tuple(f"cpu{number}" for number in range(4))
    report = launcher.run(launcher.FabricPlan(names, "gloo", slow_pair=(1, 3)))
    slowest = min(report.pairs, key=lambda pair: pair.rate)
    assert (slowest.one, slowest.other, len(report.pairs)) == (1, 3, 6)
    assert report.exit_code == 1
