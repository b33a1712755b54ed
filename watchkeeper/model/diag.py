"""The result of a diagnostic run: one result for each test and GPU, as it is printed, stored and served.

A small file (`LatestResults`) keeps the newest result of each test, and the agent's page exports it as series. Keys are
added, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

# The name of the result when no test could start on a GPU.
NO_WORK = "gpu_work"
# In the agent's state directory.
FILE = "diag.json"
# A node of 16 GPUs with every test has under 500 results.
MAX_RESULTS = 2_000
MAX_BYTES = 4 << 20


class DiagVerdict(StrEnum):
    """The verdict of a test, from good to bad. `skip` means that the test did not run, for the reason in `why`."""

    PASS = "pass"  # noqa: S105
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


class DiagOutcome(StrEnum):
    """The outcome of the whole run; each has an exit code."""

    PASSED = "passed"
    FAILED = "failed"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of one GPU; `gpu` is its UUID, None is the node. `measured` and `expected` share `unit`.

    `expected` is what a healthy GPU of this model reaches, `peers` the median of the same test on this node; None where
    unknown. `facts` are further numbers of the test.
    """

    # pytest must not collect it as a test class.
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
    """One run. `stopped` is the reason for an early end, else empty."""

    level: int
    node: str
    started_at: datetime
    seconds: float
    gpus: tuple[TestedGpu, ...]
    results: tuple[TestResult, ...]
    stopped: str = ""

    @property
    def exit(self) -> DiagOutcome:
        """Failed if a test failed, else cannot tell if a GPU that was selected could not be tested."""
        verdicts = {result.verdict for result in self.results}
        if DiagVerdict.FAIL in verdicts:
            return DiagOutcome.FAILED
        if self.stopped or not self.gpus or not verdicts & {DiagVerdict.PASS, DiagVerdict.WARN}:
            return DiagOutcome.CANNOT_TELL
        return DiagOutcome.CANNOT_TELL if any(result.test == NO_WORK for result in self.results) else DiagOutcome.PASSED


@dataclass(frozen=True, slots=True)
class LatestResult:
    at: datetime
    result: TestResult


@dataclass(frozen=True, slots=True)
class LatestResults:
    """The content of the file."""

    results: tuple[LatestResult, ...] = ()


def merge_report(previous: LatestResults, report: DiagReport) -> LatestResults:
    """The newest result of each test and GPU; a skipped test keeps the older result and its time."""
    newest = {(entry.result.test, entry.result.gpu): entry for entry in previous.results}
    for result in report.results:
        if result.verdict is not DiagVerdict.SKIP:
            newest[result.test, result.gpu] = LatestResult(report.started_at, result)
    ordered = sorted(
        newest.values(), key=lambda entry: (entry.at, entry.result.test, entry.result.gpu or ""), reverse=True
    )
    return LatestResults(tuple(ordered[:MAX_RESULTS]))
