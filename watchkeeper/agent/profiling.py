"""Pauses the profiling counters of this node's GPUs, so that nsys and ncu can use them.

A pause is a small file in the agent's state directory, written by `watchkeeper agent profiling pause` on the node or by
a work order. While it lasts, the DCGM_FI_PROF_* series are absent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import durations, files, logs, own_metrics, wire

log = logging.getLogger(__name__)

FILE = "profiling_pause.json"
DEFAULT_PAUSE = timedelta(hours=1)
MAX_PAUSE = timedelta(hours=24)
MAX_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pause:
    since: datetime
    until: datetime
    by: str

    def __post_init__(self) -> None:
        if not timedelta(0) < self.until - self.since <= MAX_PAUSE:
            raise ValueError(f"a pause must be longer than 0 and at most {MAX_PAUSE}, not {self.until - self.since}")


@dataclass(frozen=True, slots=True)
class PauseFile:
    """The pause file; the permissions of the agent's directory decide who may write it."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / FILE

    def read(self) -> Pause | None:
        """The pause in the file, even if it is over; None without a file, CollectError if the file is invalid."""
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES)
            return wire.loads(Pause, content)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
        except WireError as error:
            raise CollectError(f"is not a valid pause: {error}", where=str(self.path)) from error

    def write(self, pause: Pause) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            files.write_atomically(self.path, wire.dumps(pause).encode())
            # Root's umask must not hide the pause from an agent that runs as another user.
            self.path.chmod(0o644)
        except OSError as error:
            remedy = "Run as root or as the agent's user, and set --spool to the agent's directory"
            raise CollectError(f"cannot be written: {error.strerror}", where=str(self.path), remedy=remedy) from error

    def clear(self) -> bool:
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CollectError(f"cannot be removed: {error.strerror}", where=str(self.path)) from error
        return True


class PauseWatch:
    """Decides whether profiling is paused. A pause never lasts longer than requested, even if the clock jumps."""

    def __init__(self, file: PauseFile, registry: own_metrics.Registry) -> None:
        self._file = file
        self._pause: Pause | None = None
        self._ends_at = 0.0
        self._logged_problem = ""
        self._is_paused = registry.gauge(
            "watchkeeper_agent_profiling_paused", "1 while the profiling counters are released to other tools"
        )
        self._paused_seconds = registry.gauge(
            "watchkeeper_agent_profiling_paused_seconds",
            "Time since the profiling counters were released to other tools",
        )

    def update(self, now: datetime, monotonic: float) -> Pause | None:
        """The active pause; its start and its end are logged."""
        pause = self._read()
        if pause is not None and pause != self._pause:
            seconds_left = min(pause.until - now, pause.until - pause.since).total_seconds()
            self._ends_at = monotonic + seconds_left
            if seconds_left > 0:
                log.info("profiling paused", extra=logs.fields(by=pause.by, seconds=round(seconds_left)))
        elif pause is None and self._pause is not None and monotonic < self._ends_at:
            log.info("profiling resumed", extra=logs.fields(reason="requested"))
        self._pause = pause
        if pause is not None and monotonic >= self._ends_at:
            self._end_pause(pause)
            pause = None
        self._is_paused.set(float(pause is not None))
        self._paused_seconds.set(0.0 if pause is None else max(0.0, (now - pause.since).total_seconds()))
        return pause

    def _end_pause(self, pause: Pause) -> None:
        duration = durations.format_seconds(round((pause.until - pause.since).total_seconds()))
        try:
            self._file.clear()
            log.info("profiling resumed", extra=logs.fields(reason=f"the pause of {duration} is over"))
            self._pause = None
        except CollectError as error:
            self._log_problem(str(error))

    def _read(self) -> Pause | None:
        try:
            return self._file.read()
        except CollectError as error:
            self._log_problem(str(error))
            return None

    def _log_problem(self, problem: str) -> None:
        if problem != self._logged_problem:
            self._logged_problem = problem
            log.warning("profiling pause unreadable", extra=logs.fields(error=problem))
