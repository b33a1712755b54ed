"""The other end of `recorder_child`: starts it, gathers its rows, and notices when the driver no longer answers.

`profile_run` opens one around a workload. Rows are bounded: when there are too many, every second one is dropped and
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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from watchkeeper.errors import CollectError
from watchkeeper.probe import columns
from watchkeeper.probe.recording import Recording, Track

# One GPU at ten rows a second for almost three hours; about 200 MiB.
MOST_ROWS = 100_000
# Loading the driver's library on a node whose GPUs are asleep takes seconds, without persistence mode more.
HELLO_SECONDS = 30.0
# NVML calls of a healthy GPU take milliseconds; after this long the driver hangs.
SILENT_SECONDS = 10.0
PACKAGES = Path(__file__).resolve().parents[2]


class NoGpu(CollectError):
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
        self._hello = threading.Event()
        self._broken: tuple[str, str] | None = None
        self._last_row = time.monotonic()
        self.facts: dict[int, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        command = [
            sys.executable,
            "-m",
            "watchkeeper.probe.recorder_child",
            f"{self._interval:g}",
            *map(str, self._gpus),
        ]
        path = os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH", ""))))
        # A session of its own: Ctrl-C is for the workload, and the recording goes on until we say so.
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._hello.wait(HELLO_SECONDS):
            self.__exit__(None, None, None)
            raise NoGpu("HUNG", f"the driver did not answer within {HELLO_SECONDS:.0f} s")
        if self._broken is not None or not self.facts:
            self.__exit__(None, None, None)
            raise NoGpu(*(self._broken or ("NONE", "the driver knows no GPU of that number")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child = self._child
        if child is None:
            return
        self._child = None
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        try:
            child.wait(2.0)
        except subprocess.TimeoutExpired:
            # Stuck in the driver: a signal may not reach it, and nobody waits for it.
            child.kill()
        self._reader.join(2.0)
        if not self._reader.is_alive():
            child.stdout.close()
            child.wait()

    def watch(self, pid: int) -> None:
        """From now on the programs under this pid are recorded too."""
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(f"{pid}\n".encode())
            self._child.stdin.flush()
        except BrokenPipeError:
            # It has ended: `problem` says so.
            return

    def problem(self) -> str | None:
        """What is wrong with the recorder now, in words; None while rows come."""
        silent = time.monotonic() - self._last_row
        if self._child is not None and self._child.poll() is not None:
            return "the recorder ended early: the driver was unloaded, or it ran out of memory"
        if silent > SILENT_SECONDS:
            return f"the driver has not answered for {silent:.0f} s, the limit is {SILENT_SECONDS:.0f} s: a call hangs"
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
        if self._stride == 1:
            return ()
        return (f"more than {MOST_ROWS:,} rows: only each {self._stride}th was kept",)

    def _recording(self, kept: Mapping[int, list[tuple[float, dict[str, float]]]]) -> Recording:
        tracks = []
        for gpu, rows in sorted(kept.items()):
            names = [name for name in columns.NUMBERS if any(name in values for _, values in rows)]
            if rows:
                numbers = {name: [values.get(name) for _, values in rows] for name in names}
                tracks.append(Track(str(gpu), [at for at, _ in rows], numbers))
        model = next((str(facts["model"]) for facts in self.facts.values()), None)
        facts = {str(gpu): facts for gpu, facts in self.facts.items()}
        return Recording(tuple(tracks), self.notes, model, facts)

    def _read(self) -> None:
        child = self._child
        assert child is not None
        assert child.stdout is not None
        for line in child.stdout:
            message = json.loads(line)
            if "row" in message:
                self._take(message["row"])
            elif "hello" in message:
                self.facts = {int(gpu["index"]): gpu for gpu in message["hello"]}
                self._hello.set()
            elif "broken" in message:
                self._broken = (message["broken"], message["text"])
                self._hello.set()
        if not self._hello.is_set():
            self._broken = ("ENDED", "the recorder ended before it could open the driver")
            self._hello.set()

    def _take(self, row: dict[str, Any]) -> None:
        gpu = int(row["gpu"])
        with self._lock:
            self._last_row = time.monotonic()
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
