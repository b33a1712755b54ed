"""A filter for the standard `logging` that adds the state of the program's GPUs to each record.

    handler.addFilter(GpuContext())

Each record gets `gpu_states`, a list for JSON, and `gpu_context`, a text for format strings. A separate process reads
the GPUs every few seconds into shared memory (`gpu_reader`), so that a log record never waits. Forked workers read the
same memory.
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
from dataclasses import dataclass
from itertools import takewhile

from watchkeeper.instrument import gpu_reader

EVERY_SECONDS = 5.0
MIN_SECONDS = 0.1
# A reader that exited is restarted after this time: a broken driver costs one process per minute.
RESTART_SECONDS = 60.0
# Three missed readings, and the time that a driver without persistence mode needs to initialise a GPU.
MISSED_READINGS, FIRST_READING_SECONDS = 3, 15.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """The last reading of one GPU, in the format that the agent's logs share; None: not reported."""

    index: int
    uuid: str
    temperature_celsius: float | None = None
    utilisation_percent: float | None = None
    power_watts: float | None = None
    memory_used_mib: float | None = None
    sm_clock_mhz: float | None = None
    # From the start of the reader.
    xid_count: int | None = None

    def plain(self) -> dict[str, float | str]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        parts = (
            (self.temperature_celsius, "°C"),
            (self.utilisation_percent, "%"),
            (self.power_watts, "W"),
            (self.memory_used_mib, "MiB"),
            (self.xid_count or None, "Xid"),
        )
        return " ".join([f"gpu{self.index}", *(f"{value:.0f} {unit}" for value, unit in parts if value is not None)])


class GpuContext(logging.Filter):
    """Adds `gpu_states` and `gpu_context` to each record; `gpus` None: those of CUDA_VISIBLE_DEVICES, or all."""

    def __init__(
        self,
        *,
        every_seconds: float = EVERY_SECONDS,
        gpus: Sequence[int | str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._every_seconds = max(MIN_SECONDS, every_seconds)
        visible_devices = parse_visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._devices = visible_devices if gpus is None else [str(gpu) for gpu in gpus]
        self._environment = environment
        self._memory: mmap.mmap | None = None
        self._child: subprocess.Popen[bytes] | None = None
        # The process that started the reader; forked workers only read.
        self._owner: int | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._started_at = float("-inf")
        self._refreshed_at = float("-inf")
        self._states: list[GpuState] = []
        self._text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if self._pid != os.getpid():
            # If another thread held the lock during the fork, it would stay locked here forever.
            self._pid, self._lock = os.getpid(), threading.Lock()
        if now - self._refreshed_at >= min(1.0, self._every_seconds / 2) and self._lock.acquire(blocking=False):
            self._refreshed_at = now
            try:
                # An error here must not cost the program its log line.
                with contextlib.suppress(Exception):
                    self._refresh(now)
            finally:
                self._lock.release()
        record.gpu_states = [state.plain() for state in self._states]
        record.gpu_context = self._text
        return True

    def close(self) -> None:
        """Stop the reader; later records have no GPU states."""
        atexit.unregister(self.close)
        child, self._child = self._child, None
        if child is not None and os.getpid() == self._owner:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
        self._states, self._text, self._started_at = [], "GPUs unknown: no longer read", float("inf")

    def _refresh(self, now: float) -> None:
        may_start = self._owner in (None, self._pid) and now - self._started_at >= RESTART_SECONDS
        if may_start and (self._child is None or self._child.poll() is not None):
            self._start(now)
        reading = None if self._memory is None else gpu_reader.read(self._memory)
        if reading is None:
            self._set_unknown("not read yet")
        elif now - reading["at"] > MISSED_READINGS * self._every_seconds + FIRST_READING_SECONDS:
            self._set_unknown(f"the driver has not answered for {now - reading['at']:.0f} s")
        elif reading["problem"]:
            self._set_unknown(reading["problem"])
        else:
            states = [GpuState(**state) for state in reading["gpus"]]
            self._states = [state for state in states if is_selected(state, self._devices)]
            # gpu0 61 °C 88 % 560 W 98000 MiB, gpu1 …
            self._text = ", ".join(map(str, self._states))

    def _set_unknown(self, reason: str) -> None:
        self._states, self._text = [], f"GPUs unknown: {reason}"

    def _start(self, now: float) -> None:
        self._started_at, self._owner = now, self._pid
        fd = os.memfd_create("watchkeeper-gpus")
        try:
            os.ftruncate(fd, gpu_reader.MEMORY_BYTES)
            self._memory = mmap.mmap(fd, gpu_reader.MEMORY_BYTES)
            self._child = subprocess.Popen(
                [sys.executable, gpu_reader.__file__, str(fd), str(self._every_seconds), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(fd,),
                env=None if self._environment is None else dict(self._environment),
                # Ctrl-C stops the program, and the reader exits by itself.
                start_new_session=True,
            )
            atexit.register(self.close)
        finally:
            os.close(fd)


def parse_visible_devices(text: str | None) -> list[str] | None:
    """The devices up to the first one that CUDA would refuse; None: all GPUs."""
    if text is None:
        return None
    devices = [device.strip() for device in text.split(",")]
    # The UUID of a MIG instance does not show its GPU.
    if any(device.startswith("MIG-") for device in devices):
        return None
    return list(takewhile(lambda device: device.isdigit() or device.startswith("GPU-"), devices))


def is_selected(state: GpuState, devices: list[str] | None) -> bool:
    """Whether the GPU is in `devices`, by index or by the start of its UUID, as in CUDA."""
    if devices is None:
        return True
    return any(
        device == str(state.index) or (device.startswith("GPU-") and state.uuid.startswith(device))
        for device in devices
    )
