"""All checks over one node's facts.

`watchkeeper scan` calls `examine` and turns the report into words and an exit code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from watchkeeper.diagnose.scan import gpu_checks, node_checks
from watchkeeper.diagnose.scan.verdicts import ScanFacts, ScanResult, ScanVerdict


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The results, worst first, and the verdict of all: the worst of them, unknown if nothing was seen."""

    results: tuple[ScanResult, ...]

    @property
    def verdict(self) -> ScanVerdict:
        return max((result.verdict for result in self.results), key=lambda one: one.rank, default=ScanVerdict.UNKNOWN)

    @property
    def problems(self) -> tuple[ScanResult, ...]:
        return tuple(result for result in self.results if result.verdict is not ScanVerdict.HEALTHY)


def check_names() -> list[str]:
    return [check.__name__ for check in (*node_checks.CHECKS, *gpu_checks.CHECKS)]


def examine(facts: ScanFacts, *, disabled: Collection[str] = ()) -> ScanReport:
    """Every enabled check once; switches live here, not in the checks."""
    found = [result for check in node_checks.CHECKS if check.__name__ not in disabled for result in check(facts)]
    for gpu in facts.gpus:
        for gpu_check in gpu_checks.CHECKS:
            if gpu_check.__name__ not in disabled:
                result = gpu_check(gpu, facts.watched_seconds)
                found += [] if result is None else [replace(result, gpu=gpu.uuid)]
    return ScanReport(tuple(sorted(found, key=lambda result: -result.verdict.rank)))
