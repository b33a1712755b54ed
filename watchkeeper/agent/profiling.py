"""Pausing the profiling counters of this node's GPUs, so that nsys and ncu can have them.

A pause is a small file in the agent's state directory, written by `watchkeeper agent profiling pause` on the node or by
a work order; the agent looks for it each second and takes no command over its port. A pause ends by itself. While it
lasts the DCGM_FI_PROF_* series are absent.
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
MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pause:
    """Since when, until when at most, and who asked."""

    since: datetime
    until: datetime
    by: str

    def __post_init__(self) -> None:
        if not timedelta(0) < self.until - self.since <= MAX_PAUSE:
            raise ValueError(f"a pause of {self.until - self.since} is not between 0 and {MAX_PAUSE}")


@dataclass(frozen=True, slots=True)
class PauseFile:
    """The file both sides know; the agent's directory decides who may write it."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / FILE

    def read(self) -> Pause | None:
        """The pause that is written there, over or not; CollectError if something else is."""
        try:
            with self.path.open("rb") as file:
                content = file.read(MOST_BYTES)
            return wire.loads(Pause, content)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
        except WireError as error:
            raise CollectError(f"is not a pause: {error}", where=str(self.path)) from error

    def write(self, pause: Pause) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            files.write_atomically(self.path, wire.dumps(pause).encode())
            # Root's umask must not hide the pause from an agent that is another user.
            self.path.chmod(0o644)
        except OSError as error:
            raise CollectError(
                f"cannot be written: {error.strerror}",
                where=str(self.path),
                remedy="Run as root or as the agent's user, and name the agent's directory with --spool",
            ) from error

    def clear(self) -> bool:
        """End the pause; False if there was none."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CollectError(f"cannot be removed: {error.strerror}", where=str(self.path)) from error
        return True


class PauseWatch:
    """Says whether profiling is paused now. A pause never lasts longer than it was asked for, even if clocks jump."""

    def __init__(self, file: PauseFile, registry: own_metrics.Registry) -> None:
        self._file = file
        self._pause: Pause | None = None
        self._ends = 0.0
        self._said = ""
        self._is_paused = registry.gauge(
            "watchkeeper_agent_profiling_paused", "1 while the profiling counters are left to other tools"
        )
        self._paused_seconds = registry.gauge(
            "watchkeeper_agent_profiling_paused_seconds", "For how long the counters have been left to other tools"
        )

    def update(self, now: datetime, monotonic: float) -> Pause | None:
        """The pause that holds; what begins and ends is said once."""
        pause = self._read()
        if pause is not None and pause != self._pause:
            left = min(pause.until - now, pause.until - pause.since).total_seconds()
            self._ends = monotonic + left
            if left > 0:
                log.info("Profiling is paused", extra=logs.fields(by=pause.by, seconds=round(left)))
        elif pause is None and self._pause is not None and monotonic < self._ends:
            log.info("Profiling is resumed", extra=logs.fields(why="it was asked for"))
        self._pause = pause
        if pause is not None and monotonic >= self._ends:
            self._end(pause)
            pause = None
        self._is_paused.set(float(pause is not None))
        self._paused_seconds.set(0.0 if pause is None else max(0.0, (now - pause.since).total_seconds()))
        return pause

    def _end(self, pause: Pause) -> None:
        lasted = durations.format_seconds(round((pause.until - pause.since).total_seconds()))
        try:
            self._file.clear()
            log.info("Profiling is resumed", extra=logs.fields(why=f"the pause of {lasted} is over"))
            self._pause = None
        except CollectError as error:
            self._complain(str(error))

    def _read(self) -> Pause | None:
        try:
            return self._file.read()
        except CollectError as error:
            self._complain(str(error))
            return None

    def _complain(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            log.warning("The pause of profiling is not understood", extra=logs.fields(error=problem))
