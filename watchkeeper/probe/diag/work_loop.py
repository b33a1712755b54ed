"""Run the tests on GPUs: assign steps to workers, enforce timeouts, and stop everything at a safety limit.

A timeout or the death of a worker fails the current test and skips the rest of that GPU; other GPUs continue. The same
loop reads the messages of `nvml_child`: tests stop without them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.model.diag import NO_WORK
from watchkeeper.probe.diag import child_processes, software_facts
from watchkeeper.probe.diag.gpu_monitor import GpuMonitor
from watchkeeper.probe.diag.judge import Measurement
from watchkeeper.probe.diag.plan import START_TIMEOUT_SECONDS, DiagStep

# NVML answers in milliseconds; under load a call can take seconds.
NVML_TIMEOUT_SECONDS = 30.0
TICK_SECONDS = 0.25

# Name of the worker, test, share done, current facts.
ReportProgress = Callable[[str, str, float, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """A worker, the GPU that its results are about, and its steps; `name` is shown to users."""

    name: str
    gpu: str
    model: str
    steps: tuple[DiagStep, ...]
    program: child_processes.ChildProgram


@dataclass(slots=True)
class _Worker:
    job: WorkerJob
    remaining: deque[DiagStep]
    deadline: float
    step: DiagStep | None = None
    is_ready: bool = False


@dataclass(slots=True)
class WorkLoop:
    """Runs jobs; `stop_reason` is empty unless they ended early."""

    children: child_processes.Children
    monitor: GpuMonitor
    report_progress: ReportProgress
    measurements: list[Measurement] = field(default_factory=list)
    stop_reason: str = ""
    start_timeout_seconds: float = START_TIMEOUT_SECONDS
    nvml_timeout_seconds: float = NVML_TIMEOUT_SECONDS
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _nvml_deadline: float = float("inf")

    def run(self, jobs: Sequence[WorkerJob]) -> None:
        now = time.monotonic()
        self._nvml_deadline = now + self.nvml_timeout_seconds
        for job in jobs:
            self._workers[job.name] = _Worker(job, deque(job.steps), now + self.start_timeout_seconds)
            self.children.start(job.name, job.program)
        while self._workers and not self.stop_reason:
            message = self.children.next_message(time.monotonic() + TICK_SECONDS)
            if message is not None:
                self._on_message(message)
            self._enforce_deadlines(time.monotonic())
            self.stop_reason = self.stop_reason or self.monitor.stop_reason or ""
        for worker in list(self._workers.values()):
            self._end_worker(worker, None, f"stopped: {self.stop_reason}")

    def _on_message(self, message: child_processes.ChildMessage) -> None:
        if message.child == software_facts.NVML:
            self._on_nvml_message(message)
            return
        worker = self._workers.get(message.child)
        if worker is None:
            return
        body = message.body
        if body is None:
            self._end_worker(worker, f"the test process exited ({message.exit_reason})", "the test process had exited")
        elif body["type"] == "ready":
            worker.is_ready = True
        elif body["type"] == "no_torch":
            next_step = "install torch, or set --python to an interpreter with torch"
            skip_reason = f"{body['why']} in {worker.job.program.python}; {next_step}"
            self.measurements.append(_measurement(worker, NO_WORK, skip_reason=skip_reason))
            self._remove_worker(worker)
        elif body["type"] == "start_failed":
            self._end_worker(worker, str(body["why"]), "CUDA did not start")
        elif body["type"] == "progress":
            self.report_progress(worker.job.name, str(body["test"]), float(body.get("done", 0.0)), body)
        elif worker.step is not None and body.get("test") == worker.step.test:
            self.measurements.append(_parse_measurement(worker, body))
            worker.step = None
        self._assign_steps()

    def _on_nvml_message(self, message: child_processes.ChildMessage) -> None:
        body = message.body
        if body is None:
            self.stop_reason = f"GPU monitoring failed: {message.exit_reason}"
        elif body["type"] == "reading":
            self._nvml_deadline = time.monotonic() + self.nvml_timeout_seconds
            self.monitor.add_readings(*software_facts.read_gpus(body["gpus"]))
        elif body["type"] == "event":
            self.monitor.add_event(body)

    def _assign_steps(self) -> None:
        """Send each waiting worker its next step; an exclusive step waits until no other runs."""
        steps = [worker.step for worker in self._workers.values() if worker.step is not None]
        is_exclusive_running = any(step.is_exclusive for step in steps)
        for worker in list(self._workers.values()):
            if worker.step is not None or not worker.is_ready:
                continue
            step = next((step for step in worker.remaining if not (is_exclusive_running and step.is_exclusive)), None)
            if step is None:
                if not worker.remaining:
                    self._remove_worker(worker)
                else:
                    # Exclusive steps of other workers run first; their results call this method again.
                    worker.deadline = time.monotonic() + self.start_timeout_seconds
                continue
            worker.remaining.remove(step)
            worker.step, worker.deadline = step, time.monotonic() + step.timeout_seconds
            is_exclusive_running = is_exclusive_running or step.is_exclusive
            self.report_progress(worker.job.name, step.test, 0.0, {})
            self.children.send(worker.job.name, {"test": step.test, "options": dict(step.options)})

    def _enforce_deadlines(self, now: float) -> None:
        if now > self._nvml_deadline:
            self.stop_reason = f"no answer from NVML for {self.nvml_timeout_seconds:g} s: a driver call hangs"
            return
        for worker in list(self._workers.values()):
            if now <= worker.deadline:
                continue
            timeout_seconds = self.start_timeout_seconds if worker.step is None else worker.step.timeout_seconds
            failure = f"no answer within {timeout_seconds:g} s: the GPU or CUDA hangs"
            self._end_worker(worker, failure, "an earlier test hung")
            self._assign_steps()

    def _end_worker(self, worker: _Worker, failure: str | None, skip_reason: str) -> None:
        """Kill a worker; its current step failed, or is skipped like its remaining steps."""
        if failure is not None:
            test = NO_WORK if worker.step is None else worker.step.test
            self.measurements.append(_measurement(worker, test, failure=failure))
        elif worker.step is not None:
            self.measurements.append(_measurement(worker, worker.step.test, skip_reason=skip_reason))
        measured_tests = {measurement.test for measurement in self.measurements if measurement.gpu == worker.job.gpu}
        for test in dict.fromkeys(step.test for step in worker.remaining):
            if test not in measured_tests:
                self.measurements.append(_measurement(worker, test, skip_reason=skip_reason))
        self._remove_worker(worker)

    def _remove_worker(self, worker: _Worker) -> None:
        self._workers.pop(worker.job.name, None)
        self.children.kill(worker.job.name)


def _parse_measurement(worker: _Worker, body: Mapping[str, Any]) -> Measurement:
    test = str(body["test"])
    if body["type"] == "skipped":
        return _measurement(worker, test, skip_reason=str(body["why"]))
    if body["type"] == "failed":
        return _measurement(worker, test, failure=str(body["why"]))
    return _measurement(
        worker,
        test,
        measured=float(body["measured"]),
        problems=tuple(map(str, body.get("problems", ()))),
        facts=body.get("facts", {}),
        note=str(body.get("note", "")),
    )


def _measurement(worker: _Worker, test: str, **values: Any) -> Measurement:
    unit = next((step.unit for step in worker.job.steps if step.test == test), "")
    return Measurement(test, worker.job.gpu, worker.job.model, unit, **values)
