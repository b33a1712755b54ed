"""Verdicts about speed: against the model's row, against the node's median, with both numbers in the sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.diag import DiagVerdict
from watchkeeper.probe import expectations
from watchkeeper.probe.diag import plan
from watchkeeper.probe.diag.judge import Measurement, judge_measurements

ORDER = list(DiagVerdict)


def bf16(rate: float, gpu: str = "a", *, model: str = "NVIDIA H200") -> Measurement:
    return Measurement("matmul_bf16", gpu, model, "TFLOP/s", rate)


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [(799, DiagVerdict.PASS), (736, DiagVerdict.PASS), (734, DiagVerdict.WARN), (638, DiagVerdict.FAIL)],
)
def test_a_measured_model_warns_below_92_percent_and_fails_below_80(rate: float, verdict: DiagVerdict) -> None:
    assert judge_measurements([bf16(rate)])[0].verdict is verdict


def test_an_estimate_is_held_against_a_gpu_only_far_below_it() -> None:
    model = "NVIDIA H100 80GB HBM3"
    row = expectations.of_model(model)["matmul_bf16"]
    found = judge_measurements([bf16(row.expected * 0.85, model=model)])[0]
    assert (found.verdict, "should reach about 791" in found.why) == (DiagVerdict.PASS, True)
    assert judge_measurements([bf16(row.expected * 0.55, model=model)])[0].verdict is DiagVerdict.FAIL


def test_a_gpu_that_lags_behind_its_peers_warns_though_its_model_would_pass() -> None:
    found = judge_measurements([bf16(820, "a"), bf16(825, "b"), bf16(822, "c"), bf16(745, "d")])
    assert [result.verdict for result in found] == [DiagVerdict.PASS] * 3 + [DiagVerdict.WARN]
    assert found[3].why == "745 TFLOP/s; this model reaches 799 (93%); the median of this node is 821 (91%)"
    assert found[3].peers == 821


def test_two_gpus_are_not_held_against_each_other() -> None:
    assert [result.peers for result in judge_measurements([bf16(800, "a"), bf16(750, "b")])] == [None, None]


def test_a_slow_pair_is_held_against_the_other_pairs_and_named() -> None:
    slow = Measurement(
        "p2p", "a", "NVIDIA Z1", "GB/s", 90.0, facts={"median": 370.0}, note="the slowest is from 2 to 3"
    )
    found = judge_measurements([slow])[0]
    assert (found.verdict, found.peers) == (DiagVerdict.FAIL, 370.0)
    assert found.why.endswith("the median of this node is 370 (24%); the slowest is from 2 to 3")


def test_a_memory_test_without_triton_is_not_called_slow() -> None:
    slow = Measurement("memory_patterns", "a", "NVIDIA H200", "GB/s", 370.0, facts={"engine": "torch"})
    found = judge_measurements([slow])[0]
    assert (found.verdict, found.expected) == (DiagVerdict.PASS, None)
    assert "its speed is not judged" in found.why


def test_a_model_that_nobody_knows_passes_and_says_so() -> None:
    found = judge_measurements([bf16(5, model="NVIDIA Z1")])[0]
    assert (found.verdict, found.why) == (DiagVerdict.PASS, "5 TFLOP/s; nobody has said what NVIDIA Z1 reaches")


def test_a_test_that_ran_often_counts_with_its_slowest_run_and_every_problem() -> None:
    one, two = bf16(799), Measurement("matmul_bf16", "a", "NVIDIA H200", "TFLOP/s", 500.0, problems=("wrong",))
    (found,) = judge_measurements([one, two, one])
    assert (found.measured, found.verdict, found.why) == (500.0, DiagVerdict.FAIL, "silent data corruption: wrong")


def test_a_failure_after_a_good_run_is_a_failure() -> None:
    hung = Measurement("stress", "a", "NVIDIA H200", "TFLOP/s", failed="no answer within 3 s")
    (found,) = judge_measurements([Measurement("stress", "a", "NVIDIA H200", "TFLOP/s", 660.0), hung])
    assert (found.verdict, found.measured, found.why) == (DiagVerdict.FAIL, None, "no answer within 3 s")


def test_many_problems_are_counted_and_only_the_first_are_told() -> None:
    many = Measurement("memory_patterns", "a", "NVIDIA H200", "GB/s", 4000.0, problems=tuple(map(str, range(20))))
    assert judge_measurements([many])[0].why == "silent data corruption: 0; 1; 2; 3; 4; 5; 6; 7; and 12 more"


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_a_slower_gpu_never_gets_a_better_verdict(one: float, other: float) -> None:
    slow, fast = sorted((one, other))
    assert ORDER.index(judge_measurements([bf16(slow)])[0].verdict) >= ORDER.index(
        judge_measurements([bf16(fast)])[0].verdict
    )


def test_every_row_of_the_table_is_about_a_test_that_exists_in_its_unit() -> None:
    assert {(row.test, row.unit) for _, row in expectations.table()} <= set(plan.UNITS.items())


@pytest.mark.parametrize(
    "model",
    [
        *("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe"),
        *("NVIDIA L40S", "NVIDIA L4", "Tesla T4", "Tesla V100-SXM2-32GB", "NVIDIA B200"),
    ],
)
def test_a_model_has_one_row_for_each_test_and_its_memory_and_products_are_known(model: str) -> None:
    rows = [row for pattern, row in expectations.table() if pattern.fullmatch(model)]
    assert len({row.test for row in rows}) == len(rows)
    assert {"memory_copy", "memory_patterns", "matmul_fp16", "pcie_to_gpu"} <= {row.test for row in rows}
