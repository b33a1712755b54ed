"""Record a workload: start a command, attach to a pid, or record the GPUs for a time.

The workload keeps its standard input and output and gets the signals that this process receives. It continues when a
recording ends, and its exit status becomes ours.
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
from watchkeeper.probe.profile.process_tree import read_stat
from watchkeeper.probe.profile.recorder import Recorder
from watchkeeper.probe.profile.recording import Recording

# Time to clean up after Ctrl-C, before SIGTERM and again before SIGKILL.
TERMINATE_SECONDS = 10.0
POLL_SECONDS = 0.2
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class WorkloadNotStarted(WatchkeeperError):
    """The workload could not be started or found."""


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """What to record; without `command` and `pid`, all GPUs of this node."""

    interval_seconds: float = 0.1
    command: Sequence[str] | None = None
    pid: int | None = None
    for_seconds: float | None = None
    gpus: Sequence[int] = ()
    keeps_stdout: bool = True


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """The result of a recording; `exit_code` is that of the workload, None if there was no command."""

    recording: Recording
    used_gpus: frozenset[int]
    exit_code: int | None
    problems: tuple[str, ...]
    child: subprocess.Popen[bytes] | None = None


ShowProgress = Callable[[float, Recorder], None]


class SignalForwarder:
    """Handles signals: Ctrl-C ends the recording, and signals are forwarded to the workload."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.child: subprocess.Popen[bytes] | None = None

    def interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.interrupts += 1
        # A terminal already sends Ctrl-C to the workload; a second one would interrupt its cleanup.
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
def handle_signals(forwarder: SignalForwarder) -> Iterator[None]:
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, forwarder.interrupt)}
    previous |= {number: signal.signal(number, forwarder.forward) for number in FORWARDED_SIGNALS}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def run(request: RecordingRequest, show_progress: ShowProgress) -> RecordedWorkload:
    """Record until the workload ends, the time is over, or the user presses Ctrl-C."""
    if request.pid is not None and not is_running(request.pid):
        raise WorkloadNotStarted(f"--pid {request.pid}: no such process", remedy="List processes with `ps`")
    forwarder, problems = SignalForwarder(), []
    with handle_signals(forwarder), Recorder(request.interval_seconds, request.gpus) as recorder:
        child = None if request.command is None else start_workload(request)
        forwarder.child = child
        pid = child.pid if child is not None else request.pid
        if pid is not None:
            recorder.record_processes(pid)
        started_at = time.monotonic()
        while not _is_finished(request, forwarder, child=child, seconds=time.monotonic() - started_at):
            time.sleep(POLL_SECONDS)
            problem = recorder.check_health()
            if problem is not None:
                problems.append(problem)
                break
            show_progress(time.monotonic() - started_at, recorder)
        if child is not None and forwarder.interrupts:
            _terminate(child, forwarder)
        recording, used = recorder.finish(), recorder.used_gpus
    code = None if child is None else child.poll()
    return RecordedWorkload(recording, used, exit_status(code), tuple(problems), child)


def start_workload(request: RecordingRequest) -> subprocess.Popen[bytes]:
    assert request.command
    try:
        # If JSON goes to standard output, the workload's output goes to standard error.
        return subprocess.Popen(request.command, stdout=None if request.keeps_stdout else sys.stderr.fileno())
    except OSError as error:
        problem = f"{request.command[0]} cannot be started: {error.strerror}"
        raise WorkloadNotStarted(problem, remedy="Write the command and its options after --") from error


def wait_for_exit(recorded: RecordedWorkload) -> int:
    """The exit status of the workload, after waiting for it if the recording ended first."""
    child = recorded.child
    if child is None:
        return 0
    forwarder = SignalForwarder()
    forwarder.child = child
    with handle_signals(forwarder):
        while child.poll() is None:
            time.sleep(POLL_SECONDS)
            if forwarder.interrupts:
                _terminate(child, forwarder)
    return exit_status(child.returncode) or 0


def _is_finished(
    request: RecordingRequest, forwarder: SignalForwarder, *, child: subprocess.Popen[bytes] | None, seconds: float
) -> bool:
    if forwarder.interrupts or (child is not None and child.poll() is not None):
        return True
    if request.for_seconds is not None and seconds >= request.for_seconds:
        return True
    return child is None and request.pid is not None and not is_running(request.pid)


def _terminate(child: subprocess.Popen[bytes], forwarder: SignalForwarder) -> None:
    """Wait for an interrupted workload, then send SIGTERM, then SIGKILL; another Ctrl-C skips the wait."""
    interrupts = forwarder.interrupts
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            child.send_signal(number)
        deadline = time.monotonic() + TERMINATE_SECONDS
        while child.poll() is None and time.monotonic() < deadline and forwarder.interrupts == interrupts:
            time.sleep(0.02)
        interrupts = forwarder.interrupts
        if child.poll() is not None:
            return
    child.wait()


def exit_status(code: int | None) -> int | None:
    """The exit status as in a shell: 128 plus the signal number if a signal ended the process."""
    return code if code is None or code >= 0 else 128 - code


def is_running(pid: int) -> bool:
    fields = read_stat(Path("/proc") / str(pid))
    return fields is not None and fields[0] != "Z" and os.getpid() != pid
