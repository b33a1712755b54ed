"""The other end of `recorder_child`: starts it, gathers its rows, and goes on without a GPU that no longer answers.

`profile_run` opens one around a workload. A call that hangs takes the child with it, so the next child asks the other
GPUs only. Rows are bounded: when there are too many, every second one is dropped and
the rate halves, so a recording of any length fits in memory. `finish` gives the recording.
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
from types import TracebackType
from typing import Any, Self

from watchkeeper.errors import CollectError
from watchkeeper.probe.profile import columns
from watchkeeper.probe.profile.recording import GpuTrack, Recording

# One GPU at ten rows a second for almost three hours; about 200 MiB.
MOST_ROWS = 100_000
# Loading the driver's library on a node whose GPUs are asleep takes seconds, without persistence mode more.
HELLO_SECONDS = 30.0
# NVML calls of a healthy GPU take milliseconds; after this long the driver hangs.
SILENT_SECONDS = 10.0
PACKAGES = Path(__file__).resolve().parents[3]


class NoGpuToRecord(CollectError):
    """There is nothing to record here; `reason` is NVML's own code or word."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(
            f"no GPU can be recorded on this node: {problem}",
            now="The driver's library did not answer, or there is no GPU",
            remedy="`watchkeeper gpus` and `watchkeeper scan` say more; a recording of another node can be judged with "
            "`watchkeeper profile classify FILE`",
        )
        self.reason = reason


class Recorder:
    """A running recorder; use it as a context, so that its child ends with it."""

    def __init__(self, interval: float, gpus: Sequence[int] = ()) -> None:
        self._interval = interval
        self._gpus = gpus
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._rows: dict[int, list[tuple[float, dict[str, float]]]] = {}
        self._stride = 1
        self._seen = 0
        self._used: set[int] = set()
        self._pid: int | None = None
        self._hello = threading.Event()
        self._broken: tuple[str, str] | None = None
        self._opening: tuple[int, tuple[int, ...]] | None = None
        self._silent: dict[int, str] = {}
        self._last: tuple[float, int | None] = (0.0, None)
        self.facts: dict[int, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        self._start(self._gpus)
        while not self._hello.wait(HELLO_SECONDS):
            index, others = self._opening or (None, ())
            rest = [gpu for gpu in others if gpu != index and gpu not in self._silent]
            self._leave()
            if index is None or not rest:
                raise NoGpuToRecord("HUNG", f"the driver did not answer within {HELLO_SECONDS:.0f} s")
            self._silent[index] = f"did not answer within {HELLO_SECONDS:.0f} s when it was opened"
            self._start(rest)
        if self._broken is not None or not self.facts:
            self._leave()
            raise NoGpuToRecord(*(self._broken or ("NONE", "the driver knows no GPU of that number")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _start(self, gpus: Sequence[int]) -> None:
        words = ["-m", "watchkeeper.probe.profile.recorder_child", f"{self._interval:g}", *map(str, gpus)]
        path = os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH", ""))))
        self._hello.clear()
        self._last = (time.monotonic(), None)
        # A session of its own: Ctrl-C is for the workload, and the recording goes on until we say so.
        self._child = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
        self._reader.start()

    def _leave(self, patience_seconds: float = 2.0) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            # What `watch` could not say is said once more when it is closed.
            child.stdin.close()
        try:
            child.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            # Stuck in the driver: a signal may not reach it, and nobody waits for it.
            child.kill()
        self._reader.join(2.0)
        if not self._reader.is_alive():
            child.stdout.close()
            child.wait()

    def watch(self, pid: int) -> None:
        """From now on the programs under this pid are recorded too."""
        self._pid = pid
        assert self._child is not None
        assert self._child.stdin is not None
        # One that has ended does not hear it: `look_after` says so.
        with suppress(BrokenPipeError):
            self._child.stdin.write(f"{pid}\n".encode())
            self._child.stdin.flush()

    def look_after(self) -> str | None:
        """Go on without a GPU that hangs; what ends the recording, in words, or None while it goes on."""
        if self._broken is not None:
            return self._broken[1]
        if self._child is not None and self._child.poll() is not None:
            return "the recorder ended early: the driver was unloaded, or it ran out of memory"
        at, gpu = self._last
        silent = time.monotonic() - at
        # A new child opens the driver first.
        limit = SILENT_SECONDS if gpu is not None else max(SILENT_SECONDS, HELLO_SECONDS)
        if silent <= limit:
            return None
        words = f"has not answered for {silent:.0f} s, the limit is {limit:.0f} s: a call hangs"
        order = [index for index in self.facts if index not in self._silent]
        if len(order) < 2:
            return f"the driver {words}"
        # A row of each GPU in turn: the next one is it.
        hung = order[0] if gpu is None else order[(order.index(gpu) + 1) % len(order)]
        self._silent[hung] = words
        self._leave(0.0)
        self._start([index for index in order if index != hung])
        if self._pid is not None:
            self.watch(self._pid)
        return None

    def recent(self, seconds: float) -> Recording:
        """The last seconds, for whoever shows how it goes."""
        with self._lock:
            newest = max((rows[-1][0] for rows in self._rows.values() if rows), default=0.0)
            kept = {gpu: [row for row in rows[-2000:] if row[0] > newest - seconds] for gpu, rows in self._rows.items()}
        return self._recording(kept)

    def finish(self) -> Recording:
        """Everything that was recorded."""
        with self._lock:
            kept = {gpu: list(rows) for gpu, rows in self._rows.items()}
        return self._recording(kept)

    @property
    def used(self) -> frozenset[int]:
        """GPUs on which the workload had a context; empty where the driver does not tell, as inside containers."""
        return frozenset(self._used)

    @property
    def notes(self) -> tuple[str, ...]:
        hung = [f"GPU {gpu} {why}; the others were recorded on" for gpu, why in self._silent.items()]
        if self._stride > 1:
            hung.append(f"more than {MOST_ROWS:,} rows: only each {self._stride}th was kept")
        return tuple(hung)

    def _recording(self, kept: Mapping[int, list[tuple[float, dict[str, float]]]]) -> Recording:
        tracks = []
        for gpu, rows in sorted(kept.items()):
            names = [name for name in columns.NUMBERS if any(name in values for _, values in rows)]
            if rows:
                numbers = {name: [values.get(name) for _, values in rows] for name in names}
                tracks.append(GpuTrack(str(gpu), [at for at, _ in rows], numbers))
        silent = [track.gpu for track in tracks if not track.tells_work()]
        notes = [f"GPU {gpu} tells neither gpu_util nor GPM's counters, as with MIG: not judged" for gpu in silent]
        tracks = [track for track in tracks if track.gpu not in silent]
        model = next((str(facts["model"]) for facts in self.facts.values()), None)
        facts = {str(gpu): facts for gpu, facts in self.facts.items()}
        return Recording(tuple(tracks), (*self.notes, *notes), model, facts)

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            message = json.loads(line)
            if "row" in message:
                self._take(message["row"])
            elif "opening" in message:
                self._opening = (message["opening"], tuple(message["of"]))
            elif "hello" in message:
                self.facts |= {int(gpu["index"]): gpu for gpu in message["hello"]}
                self._silent |= {int(gpu): f"cannot be read: {why}" for gpu, why in message["lost"].items()}
                self._hello.set()
            elif "broken" in message:
                self._broken = (message["broken"], message["text"])
                self._hello.set()
        if child is self._child and not self._hello.is_set():
            self._broken = ("ENDED", "the recorder ended before it could open the driver")
            self._hello.set()

    def _take(self, row: dict[str, Any]) -> None:
        gpu = int(row["gpu"])
        with self._lock:
            self._last = (time.monotonic(), gpu)
            if row.get("is_used"):
                self._used.add(gpu)
            rows = self._rows.setdefault(gpu, [])
            self._seen += 1
            if (self._seen // max(1, len(self.facts))) % self._stride == 0:
                rows.append((row["t"], row["values"]))
            if sum(map(len, self._rows.values())) > MOST_ROWS:
                self._stride *= 2
                for kept in self._rows.values():
                    del kept[1::2]
