"""What a diagnostic run found: one result for each test and GPU, in the shape that is printed, kept and served.

`probe.diag.diag_run` makes a report; `diag --json` prints it; the newest result of each test is kept in a small file
(`Kept`), which the agent's page shows as series. Keys are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

# The name of a result that stands for all tests which could not even begin on a GPU.
NO_WORK = "gpu_work"
# In the agent's state directory.
FILE = "diag.json"
# A node of 16 GPUs with every test has under 500 results.
MOST_KEPT = 2_000
MOST_BYTES = 4 << 20


class DiagVerdict(StrEnum):
    """From good to bad; `skip` is no verdict about the GPU: the test was not run, and `why` says why."""

    PASS = "pass"  # noqa: S105
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


class DiagOutcome(StrEnum):
    """What the whole run says; each has an exit code."""

    PASSED = "passed"
    FAILED = "failed"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of one GPU; `gpu` is its UUID, None is the node. `measured` and `expected` share `unit`.

    `expected` is what this model reaches when healthy, `peers` the median of the same test on this node; both None
    where nobody knows. `facts` are the test's own numbers.
    """

    # pytest must not take it for a class of tests.
    __test__ = False

    test: str
    gpu: str | None
    verdict: DiagVerdict
    why: str
    measured: float | None = None
    expected: float | None = None
    peers: float | None = None
    unit: str = ""
    facts: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TestedGpu:
    __test__ = False

    uuid: str
    index: int
    model: str


@dataclass(frozen=True, slots=True)
class DiagReport:
    """One run. `stopped` says why it ended early, empty if it did not."""

    level: int
    node: str
    started_at: datetime
    seconds: float
    gpus: tuple[TestedGpu, ...]
    results: tuple[TestResult, ...]
    stopped: str = ""

    @property
    def exit(self) -> DiagOutcome:
        """Failed if a test failed; else cannot tell if a test of a GPU that was asked for could not run."""
        found = {result.verdict for result in self.results}
        if DiagVerdict.FAIL in found:
            return DiagOutcome.FAILED
        if self.stopped or not self.gpus or not found & {DiagVerdict.PASS, DiagVerdict.WARN}:
            return DiagOutcome.CANNOT_TELL
        return DiagOutcome.CANNOT_TELL if any(result.test == NO_WORK for result in self.results) else DiagOutcome.PASSED


@dataclass(frozen=True, slots=True)
class LatestResult:
    """The newest result of one test of one GPU, with the time of its run."""

    at: datetime
    result: TestResult


@dataclass(frozen=True, slots=True)
class LatestResults:
    """The whole file."""

    results: tuple[LatestResult, ...] = ()


def merge_report(kept: LatestResults, report: DiagReport) -> LatestResults:
    """The newest result of each test and GPU; a test that was skipped leaves the older result with its older time."""
    newest = {(entry.result.test, entry.result.gpu): entry for entry in kept.results}
    for result in report.results:
        if result.verdict is not DiagVerdict.SKIP:
            newest[result.test, result.gpu] = LatestResult(report.started_at, result)
    return LatestResults(tuple(_newest(newest.values())[:MOST_KEPT]))


def _newest(entries: Iterable[LatestResult]) -> list[LatestResult]:
    return sorted(entries, key=lambda entry: (entry.at, entry.result.test, entry.result.gpu or ""), reverse=True)
