"""Run `recorder_child`, collect its rows, and continue without a GPU that stops answering.

A driver call that hangs blocks the child, so a new child records only the other GPUs. Rows are limited: at the limit,
every second row is dropped and the rate is halved, so that a recording of any length fits in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from watchkeeper.errors import CollectError
from watchkeeper.probe.profile import columns
from watchkeeper.probe.profile.recording import GpuTrack, Recording

# One GPU at ten rows a second for almost three hours, about 200 MiB.
MAX_ROWS = 100_000
# Opening NVML takes seconds, and longer without persistence mode.
OPEN_TIMEOUT_SECONDS = 30.0
# NVML calls of a healthy GPU take milliseconds.
READ_TIMEOUT_SECONDS = 10.0
PACKAGE_ROOT = Path(__file__).resolve().parents[3]


class NoGpuError(CollectError):
    """No GPU can be recorded; `reason` is the name of the NVML error, HUNG, NONE or ENDED."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(
            f"no GPU can be recorded on this node: {problem}",
            now="Nothing was recorded",
            remedy="Check the driver with `watchkeeper scan`. To classify a recording of another node, run "
            "`watchkeeper profile classify FILE`",
        )
        self.reason = reason


class Recorder:
    """A recorder with its child process; use it as a context manager, which stops the child."""

    def __init__(self, interval: float, gpus: Sequence[int] = ()) -> None:
        self._interval = interval
        self._gpus = gpus
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._rows: dict[int, list[tuple[float, dict[str, float]]]] = {}
        self._keep_every = 1
        self._row_count = 0
        self._used_gpus: set[int] = set()
        self._pid: int | None = None
        self._is_open = threading.Event()
        self._start_error: tuple[str, str] | None = None
        self._opening: tuple[int, tuple[int, ...]] | None = None
        self._unreadable: dict[int, str] = {}
        self._last_row: tuple[float, int | None] = (0.0, None)
        self.facts: dict[int, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        self._start(self._gpus)
        while not self._is_open.wait(OPEN_TIMEOUT_SECONDS):
            index, opened_with = self._opening or (None, ())
            remaining = [gpu for gpu in opened_with if gpu != index and gpu not in self._unreadable]
            self._stop_child()
            if index is None or not remaining:
                raise NoGpuError("HUNG", f"the driver did not answer within {OPEN_TIMEOUT_SECONDS:.0f} s")
            self._unreadable[index] = f"could not be opened: no answer within {OPEN_TIMEOUT_SECONDS:.0f} s"
            self._start(remaining)
        if self._start_error is not None or not self.facts:
            self._stop_child()
            raise NoGpuError(*(self._start_error or ("NONE", "the driver has no GPU with this index")))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_child()

    def _start(self, gpus: Sequence[int]) -> None:
        arguments = ["-m", "watchkeeper.probe.profile.recorder_child", f"{self._interval:g}", *map(str, gpus)]
        path = os.pathsep.join(filter(None, (str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", ""))))
        self._is_open.clear()
        self._last_row = (time.monotonic(), None)
        # A separate session: Ctrl-C is for the workload, and the recording continues until we stop it.
        self._child = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
        self._reader.start()

    def _stop_child(self, timeout_seconds: float = 2.0) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            # Closing flushes what a failed write left in the buffer.
            child.stdin.close()
        try:
            child.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            # The child is blocked in the driver and may not even react to SIGKILL: do not wait for it.
            child.kill()
        self._reader.join(2.0)
        if not self._reader.is_alive():
            child.stdout.close()
            child.wait()

    def record_processes(self, pid: int) -> None:
        self._pid = pid
        assert self._child is not None
        assert self._child.stdin is not None
        # If the child has exited, `check_health` reports it.
        with suppress(BrokenPipeError):
            self._child.stdin.write(f"{pid}\n".encode())
            self._child.stdin.flush()

    def check_health(self) -> str | None:
        """Replace the child if a GPU hangs; returns the reason if the recording has to end, else None."""
        if self._start_error is not None:
            return self._start_error[1]
        if self._child is not None and self._child.poll() is not None:
            return "the recorder exited early: the driver was unloaded, or it ran out of memory"
        at, gpu = self._last_row
        silent_seconds = time.monotonic() - at
        # A new child first opens NVML.
        limit = READ_TIMEOUT_SECONDS if gpu is not None else max(READ_TIMEOUT_SECONDS, OPEN_TIMEOUT_SECONDS)
        if silent_seconds <= limit:
            return None
        problem = f"gave no answer for {silent_seconds:.0f} s, the limit is {limit:.0f} s: a call hangs"
        readable = [index for index in self.facts if index not in self._unreadable]
        if len(readable) < 2:
            return f"the driver {problem}"
        # GPUs are read in order, so the GPU after the last row hangs.
        hung = readable[0] if gpu is None else readable[(readable.index(gpu) + 1) % len(readable)]
        self._unreadable[hung] = problem
        self._stop_child(0.0)
        self._start([index for index in readable if index != hung])
        if self._pid is not None:
            self.record_processes(self._pid)
        return None

    def recent(self, seconds: float) -> Recording:
        """The last seconds of the recording, for a progress display."""
        with self._lock:
            since = max((rows[-1][0] for rows in self._rows.values() if rows), default=0.0) - seconds
            recent = {gpu: [row for row in rows[-2000:] if row[0] > since] for gpu, rows in self._rows.items()}
        return self._recording(recent)

    def finish(self) -> Recording:
        with self._lock:
            all_rows = {gpu: list(rows) for gpu, rows in self._rows.items()}
        return self._recording(all_rows)

    @property
    def used_gpus(self) -> frozenset[int]:
        """GPUs on which the workload had a context; empty if the driver does not report this, as in containers."""
        return frozenset(self._used_gpus)

    @property
    def notes(self) -> tuple[str, ...]:
        notes = [f"GPU {gpu} {why}; recording of the others continued" for gpu, why in self._unreadable.items()]
        if self._keep_every > 1:
            notes.append(f"more than {MAX_ROWS:,} rows: only every {self._keep_every}th row was kept")
        return tuple(notes)

    def _recording(self, rows_by_gpu: Mapping[int, list[tuple[float, dict[str, float]]]]) -> Recording:
        tracks = []
        for gpu, rows in sorted(rows_by_gpu.items()):
            names = [name for name in columns.NUMBER_COLUMNS if any(name in values for _, values in rows)]
            if rows:
                numbers = {name: [values.get(name) for _, values in rows] for name in names}
                tracks.append(GpuTrack(str(gpu), [at for at, _ in rows], numbers))
        unreadable = [track.gpu for track in tracks if not track.has_activity()]
        reason = "reports neither gpu_util nor GPM counters, as with MIG: not classified"
        notes = [f"GPU {gpu} {reason}" for gpu in unreadable]
        tracks = [track for track in tracks if track.gpu not in unreadable]
        model = next((str(facts["model"]) for facts in self.facts.values()), None)
        facts = {str(gpu): facts for gpu, facts in self.facts.items()}
        return Recording(tuple(tracks), (*self.notes, *notes), model, facts)

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            message = json.loads(line)
            if "row" in message:
                self._add_row(message["row"])
            elif "opening" in message:
                self._opening = (message["opening"], tuple(message["of"]))
            elif "gpus" in message:
                self.facts |= {int(gpu["index"]): gpu for gpu in message["gpus"]}
                self._unreadable |= {int(gpu): f"cannot be read: {why}" for gpu, why in message["lost"].items()}
                self._is_open.set()
            elif "error" in message:
                self._start_error = (message["error"], message["text"])
                self._is_open.set()
        if child is self._child and not self._is_open.is_set():
            self._start_error = ("ENDED", "the recorder exited before it could open NVML")
            self._is_open.set()

    def _add_row(self, row: dict[str, Any]) -> None:
        gpu = int(row["gpu"])
        with self._lock:
            self._last_row = (time.monotonic(), gpu)
            if row.get("is_used"):
                self._used_gpus.add(gpu)
            rows = self._rows.setdefault(gpu, [])
            self._row_count += 1
            if (self._row_count // max(1, len(self.facts))) % self._keep_every == 0:
                rows.append((row["t"], row["values"]))
            if sum(map(len, self._rows.values())) > MAX_ROWS:
                self._keep_every *= 2
                for gpu_rows in self._rows.values():
                    del gpu_rows[1::2]
