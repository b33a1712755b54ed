"""Verdicts about speed: compared with the expected value and the node's median, with both numbers in the reason."""

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


def test_a_gpu_fails_only_far_below_an_estimated_value() -> None:
    model = "NVIDIA H100 80GB HBM3"
    row = expectations.expectations_by_test(model)["matmul_bf16"]
    result = judge_measurements([bf16(row.expected * 0.85, model=model)])[0]
    assert (result.verdict, "should reach about 791" in result.why) == (DiagVerdict.PASS, True)
    assert judge_measurements([bf16(row.expected * 0.55, model=model)])[0].verdict is DiagVerdict.FAIL


def test_a_gpu_that_is_slower_than_its_peers_warns_even_if_it_reaches_the_expected_value() -> None:
    results = judge_measurements([bf16(820, "a"), bf16(825, "b"), bf16(822, "c"), bf16(745, "d")])
    assert [result.verdict for result in results] == [DiagVerdict.PASS] * 3 + [DiagVerdict.WARN]
    assert results[3].why == "745 TFLOP/s; this model reaches 799 (93%); the median of this node is 821 (91%)"
    assert results[3].peers == 821


def test_two_gpus_are_not_compared_with_each_other() -> None:
    assert [result.peers for result in judge_measurements([bf16(800, "a"), bf16(750, "b")])] == [None, None]


def test_a_slow_pair_is_compared_with_the_other_pairs_and_named() -> None:
    slow = Measurement(
        "p2p", "a", "NVIDIA Z1", "GB/s", 90.0, facts={"median": 370.0}, note="the slowest is from 2 to 3"
    )
    result = judge_measurements([slow])[0]
    assert (result.verdict, result.peers) == (DiagVerdict.FAIL, 370.0)
    assert result.why.endswith("the median of this node is 370 (24%); the slowest is from 2 to 3")


def test_a_memory_test_without_triton_is_not_called_slow() -> None:
    slow = Measurement("memory_patterns", "a", "NVIDIA H200", "GB/s", 370.0, facts={"engine": "torch"})
    result = judge_measurements([slow])[0]
    assert (result.verdict, result.expected) == (DiagVerdict.PASS, None)
    assert "speed not judged" in result.why


def test_an_unknown_model_passes_and_the_reason_says_so() -> None:
    result = judge_measurements([bf16(5, model="NVIDIA Z1")])[0]
    assert (result.verdict, result.why) == (DiagVerdict.PASS, "5 TFLOP/s; no expected value for NVIDIA Z1")


def test_a_repeated_test_has_its_slowest_rate_and_all_problems() -> None:
    fast, slow = bf16(799), Measurement("matmul_bf16", "a", "NVIDIA H200", "TFLOP/s", 500.0, problems=("wrong",))
    (result,) = judge_measurements([fast, slow, fast])
    assert (result.measured, result.verdict, result.why) == (500.0, DiagVerdict.FAIL, "silent data corruption: wrong")


def test_a_failure_after_a_good_run_is_a_failure() -> None:
    hung = Measurement("stress", "a", "NVIDIA H200", "TFLOP/s", failure="no answer within 3 s")
    (result,) = judge_measurements([Measurement("stress", "a", "NVIDIA H200", "TFLOP/s", 660.0), hung])
    assert (result.verdict, result.measured, result.why) == (DiagVerdict.FAIL, None, "no answer within 3 s")


def test_only_the_first_problems_are_listed_and_the_rest_counted() -> None:
    many = Measurement("memory_patterns", "a", "NVIDIA H200", "GB/s", 4000.0, problems=tuple(map(str, range(20))))
    assert judge_measurements([many])[0].why == "silent data corruption: 0; 1; 2; 3; 4; 5; 6; 7; and 12 more"


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_a_slower_gpu_never_gets_a_better_verdict(first: float, second: float) -> None:
    slow, fast = sorted((first, second))
    assert ORDER.index(judge_measurements([bf16(slow)])[0].verdict) >= ORDER.index(
        judge_measurements([bf16(fast)])[0].verdict
    )


def test_every_row_of_the_table_has_an_existing_test_and_its_unit() -> None:
    assert {(row.test, row.unit) for _, row in expectations.load_table()} <= set(plan.UNITS.items())


@pytest.mark.parametrize(
    "model",
    [
        *("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe"),
        *("NVIDIA L40S", "NVIDIA L4", "Tesla T4", "Tesla V100-SXM2-32GB", "NVIDIA B200"),
    ],
)
def test_a_model_has_one_row_for_each_test_and_its_memory_and_products_are_known(model: str) -> None:
    rows = [row for pattern, row in expectations.load_table() if pattern.fullmatch(model)]
    assert len({row.test for row in rows}) == len(rows)
    assert {"memory_copy", "memory_patterns", "matmul_fp16", "pcie_to_gpu"} <= {row.test for row in rows}
