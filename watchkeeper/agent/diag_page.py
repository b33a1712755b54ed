"""Renders the newest results of `watchkeeper diag` on this node for the agent's page.

`watchkeeper diag` writes the results to a small file. As series, they show how a GPU changes over months.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.agent import page_text
from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import files, logs, wire
from watchkeeper.model import diag

log = logging.getLogger(__name__)

FAMILIES = {
    "watchkeeper_diag_result": "Verdict of the newest run of a test: 0 passed, 1 warned, 2 failed",
    "watchkeeper_diag_measured": "Value that the newest run of a test measured, in the unit of its label",
    "watchkeeper_diag_expected": "Value that a healthy GPU of this model reaches in a test, in the unit of its label",
    "watchkeeper_diag_last_run_timestamp_seconds": "Start time of the newest run of a test",
}
VERDICT_VALUES = {diag.DiagVerdict.PASS: 0.0, diag.DiagVerdict.WARN: 1.0, diag.DiagVerdict.FAIL: 2.0}
MAX_AGE = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class ResultFile:
    """The results file in the agent's state directory: `watchkeeper diag` writes it, the agent reads it."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / diag.FILE

    def read(self) -> diag.LatestResults:
        """Read the results; empty without a file, CollectError if the file cannot be read or is invalid."""
        try:
            with self.path.open("rb") as file:
                return wire.loads(diag.LatestResults, file.read(diag.MAX_BYTES))
        except FileNotFoundError:
            return diag.LatestResults()
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
        except WireError as error:
            raise CollectError(f"is not a valid results file: {str(error)[:200]}", where=str(self.path)) from error

    def add(self, report: diag.DiagReport) -> None:
        """Add the results of a run; a file that cannot be read is replaced."""
        try:
            results = self.read()
        except CollectError as error:
            log.warning("earlier diagnostic results dropped", extra=logs.fields(error=str(error)))
            results = diag.LatestResults()
        try:
            files.write_atomically(self.path, wire.dumps(diag.merge_report(results, report)).encode())
        except OSError as error:
            remedy = "Run as root or as the agent's user, and set --spool to the agent's directory"
            raise CollectError(f"cannot be written: {error.strerror}", where=str(self.path), remedy=remedy) from error


def render(results: diag.LatestResults, hostname: str, now: datetime) -> str:
    return page_text.render_families(_build_rows(results, now), FAMILIES, hostname)


def _build_rows(results: diag.LatestResults, now: datetime) -> Iterator[page_text.Row]:
    for entry in results.results[: diag.MAX_RESULTS]:
        result = entry.result
        if now - entry.at > MAX_AGE or result.verdict not in VERDICT_VALUES:
            continue
        labels = {"test": result.test, **({} if result.gpu is None else {"UUID": result.gpu})}
        yield "watchkeeper_diag_result", labels, VERDICT_VALUES[result.verdict]
        if result.measured is not None:
            yield "watchkeeper_diag_measured", {**labels, "unit": result.unit}, float(result.measured)
        if result.expected is not None:
            yield "watchkeeper_diag_expected", {**labels, "unit": result.unit}, float(result.expected)
        yield "watchkeeper_diag_last_run_timestamp_seconds", labels, round(entry.at.timestamp(), 3)


class DiagPage:
    """The diagnostic results on the agent's page; the file is read when it changes, and a problem is logged once."""

    def __init__(self, directory: Path, hostname: str) -> None:
        self._file = ResultFile(directory)
        self._hostname = hostname
        self._stamp: files.FileStamp | None = None
        self._results = diag.LatestResults()
        self._text = b""

    def refresh(self, now: datetime) -> None:
        """Read the file if it has changed; results that cannot be read are not shown."""
        stamp = files.read_stamp(self._file.path)
        if stamp is None:
            self._stamp, self._results, self._text = None, diag.LatestResults(), b""
            return
        if stamp != self._stamp:
            self._stamp, self._results = stamp, diag.LatestResults()
            try:
                self._results = self._file.read()
            except CollectError as error:
                log.warning("diagnostic results unreadable", extra=logs.fields(error=str(error)))
        self._text = render(self._results, self._hostname, now).encode()

    def page(self) -> bytes:
        return self._text
