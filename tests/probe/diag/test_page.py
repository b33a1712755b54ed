"""Results after a run: saved in a small file and exported by the agent with the time of the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.probe.diag.standins import NOON
from tests.support.fake_nvml import driver
from tests.support.running_agent import machine as prepared
from tests.support.running_agent import running
from watchkeeper.agent import diag_page
from watchkeeper.errors import CollectError
from watchkeeper.kit import wire
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.model import diag
from watchkeeper.model.diag import DiagReport, DiagVerdict, LatestResult, LatestResults, TestedGpu, TestResult

COPY = TestResult("memory_copy", "GPU-1", DiagVerdict.PASS, "4100 GB/s", 4100.5, 4200.0, unit="GB/s")
NVML = TestResult("nvml", None, DiagVerdict.FAIL, "it does not answer")


def report(*results: TestResult, at: datetime = NOON) -> DiagReport:
    return DiagReport(2, "n1", at, 20.0, (TestedGpu("GPU-1", 0, "NVIDIA H200"),), results)


def shown(kept: LatestResults, now: datetime = NOON) -> list[str]:
    return [line for line in diag_page.render(kept, "n1", now).splitlines() if not line.startswith("#")]


def test_a_result_is_exported_with_verdict_numbers_and_time() -> None:
    assert shown(diag.merge_report(LatestResults(), report(COPY, NVML))) == [
        'watchkeeper_diag_result{test="nvml",Hostname="n1"} 2',
        'watchkeeper_diag_result{test="memory_copy",UUID="GPU-1",Hostname="n1"} 0',
        'watchkeeper_diag_measured{test="memory_copy",UUID="GPU-1",unit="GB/s",Hostname="n1"} 4100.5',
        'watchkeeper_diag_expected{test="memory_copy",UUID="GPU-1",unit="GB/s",Hostname="n1"} 4200',
        'watchkeeper_diag_last_run_timestamp_seconds{test="nvml",Hostname="n1"} 1777896000',
        'watchkeeper_diag_last_run_timestamp_seconds{test="memory_copy",UUID="GPU-1",Hostname="n1"} 1777896000',
    ]


def test_a_newer_run_replaces_measured_results_and_keeps_those_it_skipped() -> None:
    later = NOON + timedelta(days=30)
    skipped = replace(NVML, verdict=DiagVerdict.SKIP)
    kept = diag.merge_report(
        diag.merge_report(LatestResults(), report(COPY, NVML)),
        report(replace(COPY, measured=3000.0), skipped, at=later),
    )
    assert {(entry.result.test, entry.at, entry.result.measured) for entry in kept.results} == {
        ("memory_copy", later, 3000.0),
        ("nvml", NOON, None),
    }


def test_a_result_older_than_a_year_is_not_exported() -> None:
    kept = diag.merge_report(LatestResults(), report(COPY))
    assert shown(kept, NOON + timedelta(days=364))
    assert not shown(kept, NOON + timedelta(days=366))


def test_the_file_keeps_its_limit_and_is_read_back_complete() -> None:
    kept = LatestResults()
    for number in range(3):
        results = [replace(COPY, gpu=f"GPU-{number}-{gpu}") for gpu in range(900)]
        kept = diag.merge_report(kept, report(*results, at=NOON + timedelta(minutes=number)))
    assert len(kept.results) == diag.MAX_RESULTS
    assert min(entry.at for entry in kept.results) == NOON
    assert sum(entry.at == NOON + timedelta(minutes=2) for entry in kept.results) == 900
    assert wire.loads(LatestResults, wire.dumps(kept)) == kept


def test_the_page_follows_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page, file = diag_page.DiagPage(tmp_path, "n1"), diag_page.ResultFile(tmp_path)
    page.refresh(NOON)
    assert page.page() == b""
    file.add(report(COPY))
    page.refresh(NOON)
    assert b'watchkeeper_diag_measured{test="memory_copy"' in page.page()
    file.path.write_text("{}x")
    for _ in range(3):
        page.refresh(NOON)
    assert page.page() == b""
    assert [record.message for record in caplog.records] == ["diagnostic results unreadable"]
    file.add(report(NVML))
    assert [entry.result for entry in file.read().results] == [NVML]


def test_the_agent_exports_the_saved_results_of_diag(fake: driver.FakeNvml, tmp_path: Path) -> None:
    async def scraped() -> str:
        async with running(prepared(tmp_path), fake) as node:
            return await node.until_page(lambda text: "watchkeeper_diag_measured{" in text)

    (tmp_path / "spool").mkdir()
    diag_page.ResultFile(tmp_path / "spool").add(report(COPY, at=ScaledClock().now()))
    page = asyncio.run(asyncio.wait_for(scraped(), 30))
    assert 'watchkeeper_diag_result{test="memory_copy",UUID="GPU-1",Hostname=' in page


def test_a_directory_without_write_access_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match=r"diag\.json: cannot be written.*--spool"):
        diag_page.ResultFile(tmp_path / "absent").add(report(COPY))


def test_the_outcome_is_failed_before_cannot_tell_before_passed() -> None:
    skipped = TestResult("gpu_work", "GPU-1", DiagVerdict.SKIP, "torch cannot be imported")
    assert report(COPY).exit is diag.DiagOutcome.PASSED
    assert report(COPY, skipped).exit is diag.DiagOutcome.CANNOT_TELL
    assert report(COPY, skipped, NVML).exit is diag.DiagOutcome.FAILED
    assert replace(report(COPY), gpus=()).exit is diag.DiagOutcome.CANNOT_TELL
    assert replace(report(COPY), stopped="heat").exit is diag.DiagOutcome.CANNOT_TELL
    assert LatestResult(NOON, COPY).result is COPY
