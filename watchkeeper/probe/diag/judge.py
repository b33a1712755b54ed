"""Judge measurements: compare each with the expected value of the GPU model and with the other GPUs of the node.

`runner` calls `judge_measurements` once for all measurements. Each reason has the measured and the expected value.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.probe import expectations

# Two GPUs do not show which one is slow; a median needs a third.
MIN_PEERS = 3
MAX_PROBLEMS = 8
# The memory test without Triton is as thorough and about ten times slower.
SLOW_ENGINE = "torch"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one test from a worker; exactly one of `measured`, `skip_reason` and `failure` is set."""

    test: str
    gpu: str
    model: str
    unit: str
    measured: float | None = None
    skip_reason: str | None = None
    failure: str | None = None
    problems: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Text of the test itself, appended to the reason.
    note: str = ""


def judge_measurements(measurements: Sequence[Measurement]) -> tuple[TestResult, ...]:
    """One result for each test and GPU, in the order of their first measurements."""
    merged = _merge_repeats(measurements)
    rates_by_test: dict[tuple[str, str], list[float]] = {}
    for measurement in merged:
        if measurement.measured is not None:
            rates_by_test.setdefault((measurement.test, measurement.model), []).append(measurement.measured)
    return tuple(
        _judge_measurement(measurement, rates_by_test.get((measurement.test, measurement.model), ()))
        for measurement in merged
    )


def _merge_repeats(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Merge repeated tests: the slowest measurement with the problems of all."""
    merged: dict[tuple[str, str], Measurement] = {}
    for measurement in measurements:
        earlier = merged.get((measurement.test, measurement.gpu))
        if earlier is None:
            merged[measurement.test, measurement.gpu] = measurement
            continue
        slower = min(earlier, measurement, key=lambda run: float("inf") if run.measured is None else run.measured)
        failure = earlier.failure or measurement.failure
        measured, problems = None if failure else slower.measured, (*earlier.problems, *measurement.problems)
        key = measurement.test, measurement.gpu
        merged[key] = replace(slower, problems=problems, failure=failure, measured=measured)
    return list(merged.values())


def _judge_measurement(measurement: Measurement, node_rates: Sequence[float]) -> TestResult:
    facts = {name: value for name, value in measurement.facts.items() if isinstance(value, (int, float, str))}
    test, rate, problems = measurement.test, measurement.measured, measurement.problems
    passed = TestResult(test, measurement.gpu, DiagVerdict.PASS, "", rate, unit=measurement.unit, facts=facts)
    if measurement.failure is not None:
        return replace(passed, verdict=DiagVerdict.FAIL, why=measurement.failure, measured=None)
    if problems:
        omitted = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        why = "silent data corruption: " + "; ".join([*problems[:MAX_PROBLEMS], *omitted])
        return replace(passed, verdict=DiagVerdict.FAIL, why=why)
    if rate is None:
        return replace(passed, verdict=DiagVerdict.SKIP, why=measurement.skip_reason or "not run")
    peers = statistics.median(node_rates) if len(node_rates) >= MIN_PEERS else None
    if "median" in facts:
        # A test of pairs includes its peers: a slow link is compared with the other links.
        peers = float(facts["median"])
    is_slow_engine = facts.get("engine") == SLOW_ENGINE
    expectation = None if is_slow_engine else expectations.expectations_by_test(measurement.model).get(test)
    verdict, why = compare_rate(measurement, expectation, peers)
    expected = None if expectation is None else expectation.expected
    return replace(passed, verdict=verdict, why=why, expected=expected, peers=peers)


def compare_rate(
    measurement: Measurement, expectation: expectations.Expectation | None, peers: float | None
) -> tuple[DiagVerdict, str]:
    """The worse verdict of both comparisons, and a reason with all numbers."""
    rate = measurement.measured
    assert rate is not None
    parts, verdict = [f"{rate:.4g} {measurement.unit}"], DiagVerdict.PASS
    if measurement.facts.get("engine") == SLOW_ENGINE:
        parts.append("speed not judged: measured with torch, without Triton")
    elif expectation is None:
        parts.append(f"no expected value for {measurement.model}")
    else:
        relation = "reaches" if expectation.basis is expectations.Basis.MEASURED else "should reach about"
        share = rate / expectation.expected
        parts.append(f"this model {relation} {expectation.expected:.4g} ({share:.0%})")
        verdict = _verdict_of_share(share, expectations.LIMITS_BY_BASIS[expectation.basis])
    if peers is not None:
        parts.append(f"the median of this node is {peers:.4g} ({rate / peers:.0%})")
        verdict = max(verdict, _verdict_of_share(rate / peers, expectations.PEER_LIMITS), key=list(DiagVerdict).index)
    return verdict, "; ".join([*parts, *([measurement.note] if measurement.note else [])])


def _verdict_of_share(share: float, limits: expectations.ShareLimits) -> DiagVerdict:
    return DiagVerdict.FAIL if share < limits.fail else DiagVerdict.WARN if share < limits.warn else DiagVerdict.PASS
