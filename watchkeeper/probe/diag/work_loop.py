"""The tests that use a GPU, step by step: who does what next, who is late, and when everything must end.

`diag_run` gives it the children, the steps and the GPUs. A step that is not answered before its deadline, and a child
that dies, is a failed test with a name; what was left to do for that GPU is skipped, and the others go on. The readings
of `diag_watch` are heard in the same loop: without them nothing runs.
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
from watchkeeper.probe.diag.plan import START_SECONDS, DiagStep

WATCH = "watch"
# NVML answers in milliseconds; a GPU under load may take one of its calls for a while.
WATCH_SILENT_SECONDS = 30.0
TICK_SECONDS = 0.25

# Who, which test, the share that is done, facts of the moment.
ReportProgress = Callable[[str, str, float, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """A child, the GPU its answers are about, and what it is to do; `name` is what people are told."""

    name: str
    gpu: str
    model: str
    steps: tuple[DiagStep, ...]
    program: child_processes.ChildProgram


@dataclass(slots=True)
class _Worker:
    job: WorkerJob
    left: deque[DiagStep]
    until: float
    step: DiagStep | None = None
    is_ready: bool = False


@dataclass(slots=True)
class WorkLoop:
    """One run of jobs; `stopped` says why it ended early."""

    children: child_processes.Children
    watched: GpuMonitor
    tell: ReportProgress
    found: list[Measurement] = field(default_factory=list)
    stopped: str = ""
    start_seconds: float = START_SECONDS
    silent_seconds: float = WATCH_SILENT_SECONDS
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _watch_until: float = float("inf")

    def run(self, jobs: Sequence[WorkerJob]) -> None:
        now = time.monotonic()
        self._watch_until = now + self.silent_seconds
        for job in jobs:
            self._workers[job.name] = _Worker(job, deque(job.steps), now + self.start_seconds)
            self.children.start(job.name, job.program)
        while self._workers and not self.stopped:
            line = self.children.hear(time.monotonic() + TICK_SECONDS)
            if line is not None:
                self._take(line)
            self._end_the_late(time.monotonic())
            self.stopped = self.stopped or self.watched.fatal or ""
        for worker in list(self._workers.values()):
            self._give_up(worker, None, f"stopped: {self.stopped}")

    def _take(self, line: child_processes.ChildMessage) -> None:
        if line.child == WATCH:
            self._take_reading(line)
            return
        worker = self._workers.get(line.child)
        if worker is None:
            return
        words = line.words
        if words is None:
            self._give_up(worker, f"the test program ended ({line.why})", "the test program had ended")
        elif words["say"] == "hello":
            worker.is_ready = True
        elif words["say"] == "absent":
            self._absent(worker, str(words["why"]))
        elif words["say"] == "broken":
            self._give_up(worker, str(words["why"]), "CUDA did not start")
        elif words["say"] == "progress":
            self.tell(worker.job.name, str(words["test"]), float(words.get("done", 0.0)), words)
        elif worker.step is not None and words.get("test") == worker.step.test:
            self.found.append(_measured(worker, words))
            worker.step = None
        self._hand_out()

    def _take_reading(self, line: child_processes.ChildMessage) -> None:
        words = line.words
        if words is None:
            self.stopped = f"the GPUs can no longer be watched: {line.why}"
        elif words["say"] == "reading":
            self._watch_until = time.monotonic() + self.silent_seconds
            self.watched.take_reading(*software_facts.read_gpus(words["gpus"]))
        elif words["say"] == "event":
            self.watched.take_event(words)

    def _hand_out(self) -> None:
        """Give each child that waits its next step; a step that must be alone waits for the one that is."""
        is_taken = any(worker.step is not None and worker.step.is_alone for worker in self._workers.values())
        for worker in list(self._workers.values()):
            if worker.step is not None or not worker.is_ready:
                continue
            step = next((step for step in worker.left if not (is_taken and step.is_alone)), None)
            if step is None:
                if not worker.left:
                    self._finish(worker)
                else:
                    # Others go first; their answers wake this one.
                    worker.until = time.monotonic() + self.start_seconds
                continue
            worker.left.remove(step)
            worker.step, worker.until = step, time.monotonic() + step.limit_seconds
            is_taken = is_taken or step.is_alone
            self.tell(worker.job.name, step.test, 0.0, {})
            self.children.tell(worker.job.name, {"test": step.test, "options": dict(step.options)})

    def _end_the_late(self, now: float) -> None:
        if now > self._watch_until:
            self.stopped = f"NVML has not answered for {self.silent_seconds:g} s: a driver call hangs"
            return
        for worker in list(self._workers.values()):
            if now <= worker.until:
                continue
            limit = self.start_seconds if worker.step is None else worker.step.limit_seconds
            self._give_up(worker, f"no answer within {limit:g} s: the GPU or CUDA hangs", "an earlier test hung")
            self._hand_out()

    def _give_up(self, worker: _Worker, failed: str | None, skipped: str) -> None:
        """End a child; the step it was at has failed, or is skipped like the rest."""
        if failed is not None:
            test = NO_WORK if worker.step is None else worker.step.test
            self.found.append(_row(worker, test, failed=failed))
        elif worker.step is not None:
            self.found.append(_row(worker, worker.step.test, skipped=skipped))
        done = {one.test for one in self.found if one.gpu == worker.job.gpu}
        for test in dict.fromkeys(step.test for step in worker.left):
            if test not in done:
                self.found.append(_row(worker, test, skipped=skipped))
        self._finish(worker)

    def _absent(self, worker: _Worker, why: str) -> None:
        remedy = "install torch there, or name another environment's interpreter with --python"
        self.found.append(_row(worker, NO_WORK, skipped=f"{why} in {worker.job.program.python}; {remedy}"))
        self._finish(worker)

    def _finish(self, worker: _Worker) -> None:
        self._workers.pop(worker.job.name, None)
        self.children.end(worker.job.name)


def _measured(worker: _Worker, words: Mapping[str, Any]) -> Measurement:
    test = str(words["test"])
    if words["say"] == "skipped":
        return _row(worker, test, skipped=str(words["why"]))
    if words["say"] == "failed":
        return _row(worker, test, failed=str(words["why"]))
    problems = tuple(map(str, words.get("problems", ())))
    told = {"facts": words.get("facts", {}), "note": str(words.get("note", ""))}
    return _row(worker, test, measured=float(words["measured"]), problems=problems, **told)


def _row(worker: _Worker, test: str, **rest: Any) -> Measurement:
    unit = next((step.unit for step in worker.job.steps if step.test == test), "")
    return Measurement(test, worker.job.gpu, worker.job.model, unit, **rest)
