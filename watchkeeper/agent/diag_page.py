"""The newest results of `watchkeeper diag` on this node: a small file that it writes, as series of the agent's page.

So a GPU's decline over months is in the store. Each result carries the time of its run: a number that is half a year
old says so, and one that is older than a year is no longer shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import files, logs, own_metrics, wire
from watchkeeper.model import diag

log = logging.getLogger(__name__)

FAMILIES = {
    "watchkeeper_diag_result": "Verdict of the newest run of a test: 0 passed, 1 warned, 2 failed",
    "watchkeeper_diag_measured": "What the newest run of a test measured, in the unit of its label",
    "watchkeeper_diag_expected": "What a healthy GPU of this model reaches in a test, in the unit of its label",
    "watchkeeper_diag_last_run_timestamp_seconds": "When the newest run of a test began",
}
NUMBERS = {diag.DiagVerdict.PASS: 0.0, diag.DiagVerdict.WARN: 1.0, diag.DiagVerdict.FAIL: 2.0}
LONGEST = timedelta(days=365)

Row = tuple[str, Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class ResultFile:
    """The file both sides know, in the agent's state directory."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / diag.FILE

    def read(self) -> diag.LatestResults:
        """Nothing where there is no file; CollectError if it cannot be read or is something else."""
        try:
            with self.path.open("rb") as file:
                return wire.loads(diag.LatestResults, file.read(diag.MOST_BYTES))
        except FileNotFoundError:
            return diag.LatestResults()
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
        except WireError as error:
            raise CollectError(f"is not a file of results: {str(error)[:200]}", where=str(self.path)) from error

    def add(self, report: diag.DiagReport) -> None:
        """Add a run; a file that is broken is replaced, since what it held is lost anyway."""
        try:
            known = self.read()
        except CollectError as error:
            log.warning("Earlier diagnostic results are given up", extra=logs.fields(error=str(error)))
            known = diag.LatestResults()
        try:
            files.write_atomically(self.path, wire.dumps(diag.merge_report(known, report)).encode())
        except OSError as error:
            raise CollectError(
                f"cannot be written: {error.strerror}",
                where=str(self.path),
                remedy="Run as root or as the agent's user, and name the agent's directory with --spool",
            ) from error


def render(kept: diag.LatestResults, hostname: str, now: datetime) -> str:
    lines: dict[str, list[str]] = {}
    for family, named, value in _rows(kept, now):
        pairs = {**named, "Hostname": hostname}
        inside = ",".join(f'{name}="{own_metrics.escape(text)}"' for name, text in pairs.items())
        lines.setdefault(family, []).append(f"{family}{{{inside}}} {repr(value).removesuffix('.0')}\n")
    heads = {family: f"# HELP {family} {help}.\n# TYPE {family} gauge\n" for family, help in FAMILIES.items()}
    return "".join(heads[family] + "".join(lines[family]) for family in FAMILIES if family in lines)


def _rows(kept: diag.LatestResults, now: datetime) -> Iterator[Row]:
    for entry in kept.results[: diag.MOST_KEPT]:
        result = entry.result
        if now - entry.at > LONGEST or result.verdict not in NUMBERS:
            continue
        named = {"test": result.test, **({} if result.gpu is None else {"UUID": result.gpu})}
        yield "watchkeeper_diag_result", named, NUMBERS[result.verdict]
        if result.measured is not None:
            yield "watchkeeper_diag_measured", {**named, "unit": result.unit}, float(result.measured)
        if result.expected is not None:
            yield "watchkeeper_diag_expected", {**named, "unit": result.unit}, float(result.expected)
        yield "watchkeeper_diag_last_run_timestamp_seconds", named, round(entry.at.timestamp(), 3)


class DiagPage:
    """The agent's part: reads the file when it has changed, and says once what is wrong with it."""

    def __init__(self, directory: Path, hostname: str) -> None:
        self._file = ResultFile(directory)
        self._hostname = hostname
        self._seen: files.FileStamp | None = None
        self._kept = diag.LatestResults()
        self._text = b""

    def refresh(self, now: datetime) -> None:
        """Look at the file; what cannot be read is not shown."""
        stamp = files.read_stamp(self._file.path)
        if stamp is None:
            self._seen, self._kept, self._text = None, diag.LatestResults(), b""
            return
        if stamp != self._seen:
            self._seen, self._kept = stamp, diag.LatestResults()
            try:
                self._kept = self._file.read()
            except CollectError as error:
                log.warning("Diagnostic results are not shown", extra=logs.fields(error=str(error)))
        self._text = render(self._kept, self._hostname, now).encode()

    def page(self) -> bytes:
        return self._text
