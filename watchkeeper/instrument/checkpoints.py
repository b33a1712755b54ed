"""Records the checkpoints of a training program: starts, writes, failures, size and duration.

`TrainingMonitor.checkpoint` creates one `Checkpoint` for each; `training_page` renders the totals.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter, time

from watchkeeper.instrument.step_clock import Phase, StepClock

# Each file of a directory is one call to a file system that may be remote.
MAX_FILES = 1_000


class Checkpoints:
    """The totals of all checkpoints; None: not recorded yet."""

    def __init__(self) -> None:
        self.started, self.written, self.failed = 0, 0, 0
        self.last_started_at: float | None = None
        self.last_written_at: float | None = None
        self.last_bytes: float | None = None
        self.last_seconds: float | None = None

    def measure(self, clock: StepClock, path: str | os.PathLike[str] | None) -> Checkpoint:
        return Checkpoint(self, clock, path)

    def record_start(self) -> None:
        self.started += 1
        self.last_started_at = time()

    def record_success(self, *, bytes: float | None = None, path: Path | None = None) -> None:
        self.written += 1
        self.last_written_at = time()
        size_bytes = bytes if bytes is not None or path is None else _measure_bytes(path)
        if size_bytes is not None:
            self.last_bytes = size_bytes

    def record_failure(self) -> None:
        self.failed += 1


class Checkpoint:
    """One checkpoint as a `with` block; an exception inside counts as a failure and is raised again."""

    def __init__(self, checkpoints: Checkpoints, clock: StepClock, path: str | os.PathLike[str] | None) -> None:
        self._checkpoints, self._clock, self._path = checkpoints, clock, path
        self._started_at = 0.0
        self.bytes: float | None = None

    def __enter__(self) -> Checkpoint:
        self._clock.enter(Phase.CHECKPOINT)
        self._started_at = perf_counter()
        self._checkpoints.record_start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._clock.leave()
        self._checkpoints.last_seconds = perf_counter() - self._started_at
        if kind is not None:
            self._checkpoints.record_failure()
            return
        self._checkpoints.record_success(bytes=self.bytes, path=None if self._path is None else Path(self._path))


def _measure_bytes(path: Path) -> float | None:
    """The size of a file or of all files below a directory; None if it is unknown."""
    with suppress(OSError):
        if path.is_file():
            return path.stat().st_size
        total, file_count = 0, 0
        for folder, _, names in os.walk(path):
            for name in names:
                file_count += 1
                if file_count > MAX_FILES:
                    return None
                total += os.stat(os.path.join(folder, name)).st_size
        return total if file_count else None
    return None
