"""Checkpoints of a training program: begun, written, failed, how large and how long.

`TrainingMonitor.checkpoint` makes one `Checkpoint` for each; `training_page` shows the sums.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter, time

from watchkeeper.instrument.step_clock import Phase, StepClock

# Each file of a folder is one question to a file system that may be far away.
MOST_FILES = 1_000


class Checkpoints:
    """None is what has not happened yet."""

    def __init__(self) -> None:
        self.begun, self.written, self.failed = 0, 0, 0
        self.last_begun_at: float | None = None
        self.last_written_at: float | None = None
        self.last_bytes: float | None = None
        self.last_seconds: float | None = None

    def writing(self, clock: StepClock, path: str | os.PathLike[str] | None) -> Checkpoint:
        return Checkpoint(self, clock, path)

    def begin(self) -> None:
        self.begun += 1
        self.last_begun_at = time()

    def succeed(self, *, bytes: float | None = None, path: Path | None = None) -> None:
        self.written += 1
        self.last_written_at = time()
        found = bytes if bytes is not None or path is None else _weigh(path)
        if found is not None:
            self.last_bytes = found

    def fail(self) -> None:
        self.failed += 1


class Checkpoint:
    """One checkpoint as a `with` block; an error inside counts as a failure and goes on to the program."""

    def __init__(self, sums: Checkpoints, clock: StepClock, path: str | os.PathLike[str] | None) -> None:
        self._sums, self._clock, self._path = sums, clock, path
        self._began = 0.0
        self.bytes: float | None = None

    def __enter__(self) -> Checkpoint:
        self._clock.enter(Phase.CHECKPOINT)
        self._began = perf_counter()
        self._sums.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._clock.leave()
        self._sums.last_seconds = perf_counter() - self._began
        if kind is not None:
            self._sums.fail()
            return
        self._sums.succeed(bytes=self.bytes, path=None if self._path is None else Path(self._path))


def _weigh(path: Path) -> float | None:
    """Bytes of a file or of all files below a folder; None where it cannot be said."""
    with suppress(OSError):
        if path.is_file():
            return path.stat().st_size
        total, files = 0, 0
        for folder, _, names in os.walk(path):
            for name in names:
                files += 1
                if files > MOST_FILES:
                    return None
                total += os.stat(os.path.join(folder, name)).st_size
        return total if files else None
    return None
