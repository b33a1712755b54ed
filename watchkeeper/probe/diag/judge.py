"""From what a test measured to a verdict: against what this model reaches, and against the other GPUs of the node.

`diag_run` calls `judge` once, with everything. Each sentence has both numbers, so that a person can disagree.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.probe import expectations

# With two GPUs nobody can say which of them is slow; a median needs a third.
LEAST_PEERS = 3
MOST_PROBLEMS = 8
# The memory test without Triton: as thorough, and some ten times slower.
SLOW_ENGINE = "torch"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a working child answered to one test. Exactly one of `measured`, `skipped` and `failed` is set."""

    test: str
    gpu: str
    model: str
    unit: str
    measured: float | None = None
    skipped: str | None = None
    failed: str | None = None
    problems: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    # What the test itself adds to the sentence.
    note: str = ""


def judge_measurements(measurements: Sequence[Measurement]) -> tuple[TestResult, ...]:
    """One result for each test and GPU, in the order in which they came first."""
    worst = _worst(measurements)
    by_test: dict[tuple[str, str], list[float]] = {}
    for one in worst:
        if one.measured is not None:
            by_test.setdefault((one.test, one.model), []).append(one.measured)
    return tuple(_judge(one, by_test.get((one.test, one.model), ())) for one in worst)


def _worst(measurements: Iterable[Measurement]) -> list[Measurement]:
    """A test that ran several times counts with its slowest run and with all its problems."""
    found: dict[tuple[str, str], Measurement] = {}
    for one in measurements:
        known = found.get((one.test, one.gpu))
        if known is None:
            found[one.test, one.gpu] = one
            continue
        slower = min(known, one, key=lambda each: float("inf") if each.measured is None else each.measured)
        failed = known.failed or one.failed
        found[one.test, one.gpu] = replace(
            slower,
            problems=(*known.problems, *one.problems),
            failed=failed,
            measured=None if failed else slower.measured,
        )
    return list(found.values())


def _judge(one: Measurement, on_node: Sequence[float]) -> TestResult:
    facts = {name: value for name, value in one.facts.items() if isinstance(value, (int, float, str))}
    base = TestResult(one.test, one.gpu, DiagVerdict.PASS, "", one.measured, unit=one.unit, facts=facts)
    if one.failed is not None:
        return replace(base, verdict=DiagVerdict.FAIL, why=one.failed, measured=None)
    if one.problems:
        more = len(one.problems) - MOST_PROBLEMS
        said = "; ".join(one.problems[:MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        return replace(base, verdict=DiagVerdict.FAIL, why=f"silent data corruption: {said}")
    if one.measured is None:
        return replace(base, verdict=DiagVerdict.SKIP, why=one.skipped or "it was not run")
    peers = statistics.median(on_node) if len(on_node) >= LEAST_PEERS else None
    if "median" in facts:
        # A test of pairs has its peers in itself: a slow link is slow beside the other links.
        peers = float(facts["median"])
    row = None if facts.get("engine") == SLOW_ENGINE else expectations.of_model(one.model).get(one.test)
    verdict, why = compare(one, row, peers)
    return replace(base, verdict=verdict, why=why, expected=None if row is None else row.expected, peers=peers)


def compare(one: Measurement, row: expectations.Expectation | None, peers: float | None) -> tuple[DiagVerdict, str]:
    """The worse of both comparisons, and a sentence with all numbers."""
    assert one.measured is not None
    words, verdict = [f"{one.measured:.4g} {one.unit}"], DiagVerdict.PASS
    if one.facts.get("engine") == SLOW_ENGINE:
        words.append("torch's own operations did it, without Triton, so its speed is not judged")
    elif row is None:
        words.append(f"nobody has said what {one.model} reaches")
    else:
        how = "reaches" if row.basis is expectations.Basis.MEASURED else "should reach about"
        words.append(f"this model {how} {row.expected:.4g} ({one.measured / row.expected:.0%})")
        verdict = _below(one.measured / row.expected, expectations.SHARES[row.basis])
    if peers is not None:
        words.append(f"the median of this node is {peers:.4g} ({one.measured / peers:.0%})")
        verdict = max(verdict, _below(one.measured / peers, expectations.PEER_SHARES), key=list(DiagVerdict).index)
    return verdict, "; ".join([*words, *([one.note] if one.note else [])])


def _below(share: float, shares: expectations.Shares) -> DiagVerdict:
    return DiagVerdict.FAIL if share < shares.fail else DiagVerdict.WARN if share < shares.warn else DiagVerdict.PASS
