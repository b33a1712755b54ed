"""A filter for the standard `logging` that puts onto each record what the program's GPUs did when it was written.

    handler.addFilter(GpuContext())

Each record gets `gpu_states`, a list for JSON, and `gpu_context`, a text for a format string. A process beside the
program reads the GPUs every few seconds into shared memory (`gpu_reader`); a record only looks there, so it costs
microseconds and waits for nobody. Workers that the program forks look at the same memory. Nothing here raises.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from watchkeeper.instrument import gpu_reader
from watchkeeper.instrument.gpu_states import GpuState, as_text

EVERY_SECONDS = 5.0
SHORTEST_SECONDS = 0.1
# A reader that ended is started again after this, so that a broken driver costs a process a minute and not more.
RESTART_SECONDS = 60.0
# Three missed readings, and the time that a driver without persistence mode takes to wake up a GPU.
MISSED_READINGS, FIRST_SECONDS = 3, 15.0


class GpuContext(logging.Filter):
    """Adds `gpu_states` and `gpu_context` to each record; `gpus` None: those of CUDA_VISIBLE_DEVICES, or every one."""

    def __init__(
        self,
        *,
        every_seconds: float = EVERY_SECONDS,
        gpus: Sequence[int | str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._every = max(SHORTEST_SECONDS, every_seconds)
        self._wanted = visible(os.environ.get("CUDA_VISIBLE_DEVICES")) if gpus is None else [str(gpu) for gpu in gpus]
        self._environment = environment
        self._memory: mmap.mmap | None = None
        self._child: subprocess.Popen[bytes] | None = None
        # Who started the reader: a forked worker only looks.
        self._owner: int | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._started_at = float("-inf")
        self._looked_at = float("-inf")
        self._states: list[GpuState] = []
        self._text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if self._pid != os.getpid():
            # Forked while another thread was looking: its lock would stay closed here for ever.
            self._pid, self._lock = os.getpid(), threading.Lock()
        if now - self._looked_at >= min(1.0, self._every / 2) and self._lock.acquire(blocking=False):
            self._looked_at = now
            try:
                # Whatever is wrong here must not cost the program its log line.
                with contextlib.suppress(Exception):
                    self._look(now)
            finally:
                self._lock.release()
        record.gpu_states = [state.plain() for state in self._states]
        record.gpu_context = self._text
        return True

    def close(self) -> None:
        """End the reader; the filter goes on without it."""
        atexit.unregister(self.close)
        child, self._child = self._child, None
        if child is not None and os.getpid() == self._owner:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
        self._states, self._text, self._started_at = [], "GPUs unknown: no longer read", float("inf")

    def _look(self, now: float) -> None:
        may_start = self._owner in (None, self._pid) and now - self._started_at >= RESTART_SECONDS
        if may_start and (self._child is None or self._child.poll() is not None):
            self._start(now)
        found = None if self._memory is None else gpu_reader.read(self._memory)
        if found is None:
            self._unknown("they have not been read yet")
        elif now - found["at"] > MISSED_READINGS * self._every + FIRST_SECONDS:
            self._unknown(f"the driver has not answered for {now - found['at']:.0f} s")
        elif found["problem"]:
            self._unknown(found["problem"])
        else:
            states = [GpuState(**state) for state in found["gpus"]]
            self._states = [state for state in states if is_wanted(state, self._wanted)]
            self._text = as_text(self._states)

    def _unknown(self, why: str) -> None:
        self._states, self._text = [], f"GPUs unknown: {why}"

    def _start(self, now: float) -> None:
        self._started_at, self._owner = now, self._pid
        fd = os.memfd_create("watchkeeper-gpus")
        try:
            os.ftruncate(fd, gpu_reader.MEMORY_BYTES)
            self._memory = mmap.mmap(fd, gpu_reader.MEMORY_BYTES)
            self._child = subprocess.Popen(
                [sys.executable, gpu_reader.__file__, str(fd), str(self._every), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(fd,),
                env=None if self._environment is None else dict(self._environment),
                # A Ctrl-C for the program is not one for its reader, which ends by itself.
                start_new_session=True,
            )
            atexit.register(self.close)
        finally:
            os.close(fd)


def visible(text: str | None) -> list[str] | None:
    """The words of CUDA_VISIBLE_DEVICES up to the first that CUDA would not take; None: every GPU.

    A MIG slice does not say on which GPU it lies, so with one of them every GPU is shown.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if any(word.startswith("MIG-") for word in words):
        return None
    taken = []
    for word in words:
        if not word.isdigit() and not word.startswith("GPU-"):
            break
        taken.append(word)
    return taken


def is_wanted(state: GpuState, wanted: list[str] | None) -> bool:
    """By index, or by the beginning of a UUID, as CUDA takes it."""
    if wanted is None:
        return True
    return any(word == str(state.index) or (word.startswith("GPU-") and state.uuid.startswith(word)) for word in wanted)
