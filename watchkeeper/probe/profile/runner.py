"""A workload under the recorder: started here, or found by its pid, or simply whatever the GPUs do for a while.

`cli.node.profile` calls `run`. The workload keeps its standard input and output, gets the signals that are sent to
us, and is never ended because a recording is over; its exit status is ours. What was recorded goes to `report`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from watchkeeper.errors import WatchkeeperError
from watchkeeper.probe.profile.recorder import Recorder
from watchkeeper.probe.profile.recording import Recording

# How long a workload may take to clean up after Ctrl-C before it is asked, and then made, to end.
PATIENCE_SECONDS = 10.0
LOOK_SECONDS = 0.2
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class WorkloadNotStarted(WatchkeeperError):
    """The workload could not be started or found."""


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """What to record. `command` and `pid` None: the GPUs of this node, whoever uses them."""

    interval_seconds: float = 0.1
    command: Sequence[str] | None = None
    pid: int | None = None
    for_seconds: float | None = None
    gpus: Sequence[int] = ()
    keeps_stdout: bool = True


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """`exit_code` is the workload's own, None where there was none to wait for."""

    recording: Recording
    used: frozenset[int]
    exit_code: int | None
    problems: tuple[str, ...]
    child: subprocess.Popen[bytes] | None = None


Show = Callable[[float, Recorder], None]


class SignalForwarder:
    """Signals that came to us: what ends the recording, and what is handed on."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.child: subprocess.Popen[bytes] | None = None

    def interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.interrupts += 1
        # A terminal sends Ctrl-C to the workload by itself; a second copy would break its clean-up.
        if self.child is not None and not sys.stdin.isatty():
            self.send(number)

    def forward(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.child is not None:
            self.send(number)
        elif number != signal.SIGUSR1:
            self.interrupts += 1

    def send(self, number: int) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)


@contextmanager
def signals(stop: SignalForwarder) -> Iterator[None]:
    before = {signal.SIGINT: signal.signal(signal.SIGINT, stop.interrupt)}
    before |= {number: signal.signal(number, stop.forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def run(wish: RecordingRequest, show: Show) -> RecordedWorkload:
    """Record until the workload ends, its time is over, or somebody presses Ctrl-C."""
    if wish.pid is not None and not is_running(wish.pid):
        raise WorkloadNotStarted(f"--pid {wish.pid}: no such program runs here", remedy="`ps` lists programs")
    stop, problems = SignalForwarder(), []
    with signals(stop), Recorder(wish.interval_seconds, wish.gpus) as recorder:
        child = None if wish.command is None else start(wish)
        stop.child = child
        pid = child.pid if child is not None else wish.pid
        if pid is not None:
            recorder.watch(pid)
        since = time.monotonic()
        while not _is_over(wish, stop, child=child, seconds=time.monotonic() - since):
            time.sleep(LOOK_SECONDS)
            problem = recorder.look_after()
            if problem is not None:
                problems.append(problem)
                break
            show(time.monotonic() - since, recorder)
        if child is not None and stop.interrupts:
            _end(child, stop)
        recording, used = recorder.finish(), recorder.used
    code = None if child is None else child.poll()
    return RecordedWorkload(recording, used, exit_status(code), tuple(problems), child)


def start(wish: RecordingRequest) -> subprocess.Popen[bytes]:
    assert wish.command
    try:
        # With JSON on our standard output the workload's own goes to standard error.
        return subprocess.Popen(wish.command, stdout=None if wish.keeps_stdout else sys.stderr.fileno())
    except OSError as error:
        raise WorkloadNotStarted(
            f"{wish.command[0]} cannot be started: {error.strerror}",
            remedy="Write the program and its options after --",
        ) from error


def wait(recorded: RecordedWorkload) -> int:
    """The workload's exit status; where the recording was over before it, its end is awaited."""
    child = recorded.child
    if child is None:
        return 0
    stop = SignalForwarder()
    stop.child = child
    with signals(stop):
        while child.poll() is None:
            time.sleep(LOOK_SECONDS)
            if stop.interrupts:
                _end(child, stop)
    return exit_status(child.returncode) or 0


def _is_over(
    wish: RecordingRequest, stop: SignalForwarder, *, child: subprocess.Popen[bytes] | None, seconds: float
) -> bool:
    if stop.interrupts or (child is not None and child.poll() is not None):
        return True
    if wish.for_seconds is not None and seconds >= wish.for_seconds:
        return True
    return child is None and wish.pid is not None and not is_running(wish.pid)


def _end(child: subprocess.Popen[bytes], stop: SignalForwarder) -> None:
    """The workload has been interrupted: give it time, then ask, then make it end."""
    asked = stop.interrupts
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            child.send_signal(number)
        until = time.monotonic() + PATIENCE_SECONDS
        while child.poll() is None and time.monotonic() < until and stop.interrupts == asked:
            time.sleep(0.02)
        asked = stop.interrupts
        if child.poll() is not None:
            return
    child.wait()


def exit_status(code: int | None) -> int | None:
    """As a shell gives it: 128 and the number of the signal that ended a program."""
    return code if code is None or code >= 0 else 128 - code


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and os.getpid() != pid
