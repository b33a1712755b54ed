"""Run all checks of a scan on the facts of a node.

`watchkeeper scan` calls `examine`, prints the report and sets the exit code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from watchkeeper.diagnose.scan import gpu_checks, node_checks
from watchkeeper.diagnose.scan.verdicts import ScanFacts, ScanResult, ScanVerdict


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The results, the worst first; the overall verdict is the worst one, or unknown without results."""

    results: tuple[ScanResult, ...]

    @property
    def verdict(self) -> ScanVerdict:
        return max(
            (result.verdict for result in self.results), key=lambda verdict: verdict.rank, default=ScanVerdict.UNKNOWN
        )

    @property
    def problems(self) -> tuple[ScanResult, ...]:
        return tuple(result for result in self.results if result.verdict is not ScanVerdict.HEALTHY)


def check_names() -> list[str]:
    return [check.__name__ for check in (*node_checks.CHECKS, *gpu_checks.CHECKS)]


def examine(facts: ScanFacts, *, disabled: Collection[str] = ()) -> ScanReport:
    """Run every enabled check once; the checks themselves do not know which are disabled."""
    results = [result for check in node_checks.CHECKS if check.__name__ not in disabled for result in check(facts)]
    for gpu in facts.gpus:
        for gpu_check in gpu_checks.CHECKS:
            if gpu_check.__name__ not in disabled:
                result = gpu_check(gpu, facts.watched_seconds)
                results += [] if result is None else [replace(result, gpu=gpu.uuid)]
    return ScanReport(tuple(sorted(results, key=lambda result: -result.verdict.rank)))
