"""Sends the training metrics to an experiment tracker, MLflow or Weights & Biases, each from its own thread.

    TrainingMonitor(mirrors=[mlflow_run()])

A slow or failed tracker blocks only its thread: metrics that it does not accept in time are dropped from a short queue,
and after several consecutive failures it is disabled. The run's URL is exported, so that a job links to its run.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Protocol

from watchkeeper.instrument import optional

log = logging.getLogger("watchkeeper.instrument")
EVERY_SECONDS = 10.0
MAX_QUEUED = 100
# A tracker is disabled after this many consecutive failures, which is logged once.
MAX_FAILURES = 5
CLOSE_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    tracker: str
    id: str
    url: str = ""


class Mirror(Protocol):
    """A destination for metrics by step; `log` may block and may raise."""

    @property
    def run(self) -> Run: ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...


class RunMissing(RuntimeError):
    """The tracker has no active run."""


class _Mlflow:
    def __init__(self, run_id: str | None) -> None:
        mlflow = optional.require("mlflow", package="mlflow-skinny")
        # The active run belongs to the thread that started it, so its id is read now.
        active_run = mlflow.active_run()
        if run_id is None and active_run is None:
            raise RunMissing("no MLflow run is active: call mlflow.start_run() first, or use mlflow_run(run_id=…)")
        self._client, self._metric = mlflow.MlflowClient(), mlflow.entities.Metric
        mlflow_run = self._client.get_run(run_id) if run_id is not None else active_run
        server = mlflow.get_tracking_uri().rstrip("/")
        url = f"{server}/#/experiments/{mlflow_run.info.experiment_id}/runs/{mlflow_run.info.run_id}"
        self.run = Run("mlflow", mlflow_run.info.run_id, url if server.startswith("http") else "")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self.run.id, metrics=metrics)


class _Wandb:
    def __init__(self, *, commits: bool) -> None:
        wandb = optional.require("wandb", package="wandb")
        if wandb.run is None:
            raise RunMissing("no W&B run is active: call wandb.init() first")
        self._run, self._commits = wandb.run, commits
        # Offline runs have no URL.
        self.run = Run("wandb", str(wandb.run.id), str(wandb.run.url or ""))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        metrics = {f"watchkeeper/{name}": value for name, value in numbers.items()}
        self._run.log({**metrics, "watchkeeper/step": step}, commit=self._commits)


def mlflow_run(run_id: str | None = None) -> Mirror:
    """The active MLflow run of this thread, or the one with this id."""
    return _Mlflow(run_id)


def wandb_run(*, commits: bool = True) -> Mirror:
    """The active W&B run; `commits=False` if the program logs its own steps, to which the metrics are added."""
    return _Wandb(commits=commits)


class MirrorSet:
    """The mirrors of one monitor; `due_at` is when the next metrics are due."""

    def __init__(self, mirrors: Sequence[Mirror], every_seconds: float = EVERY_SECONDS) -> None:
        self._every_seconds = every_seconds
        self._queues = [_MirrorQueue(mirror) for mirror in mirrors]
        self.due_at = float("-inf") if self._queues else float("inf")

    def enqueue(self, numbers: Mapping[str, float], step: int, *, now: float) -> None:
        if self._queues:
            self.due_at = now + self._every_seconds
        for queue in self._queues:
            queue.enqueue(numbers, step)

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    def list_runs(self) -> list[Run]:
        return [queue.mirror.run for queue in self._queues]

    def count_failures(self) -> dict[str, int]:
        return {queue.mirror.run.tracker: queue.failures for queue in self._queues if queue.failures}


class _MirrorQueue:
    def __init__(self, mirror: Mirror) -> None:
        self.mirror, self.failures = mirror, 0
        self._queued: deque[tuple[Mapping[str, float], int]] = deque(maxlen=MAX_QUEUED)
        self._has_work, self._is_closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="watchkeeper-mirror", daemon=True)
        self._thread.start()

    def enqueue(self, numbers: Mapping[str, float], step: int) -> None:
        self._queued.append((numbers, step))
        self._has_work.set()

    def close(self) -> None:
        self._is_closing = True
        self._has_work.set()
        self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        consecutive_failures = 0
        while consecutive_failures < MAX_FAILURES:
            self._has_work.wait()
            self._has_work.clear()
            while self._queued and consecutive_failures < MAX_FAILURES:
                consecutive_failures = 0 if self._send(*self._queued.popleft()) else consecutive_failures + 1
            if self._is_closing:
                return
        tracker = self.mirror.run.tracker
        log.warning("experiment tracker disabled, %s failed %d times in a row", tracker, consecutive_failures)

    def _send(self, numbers: Mapping[str, float], step: int) -> bool:
        """Send the metrics of one step. Deliberately any error is caught: it must not affect the training."""
        try:
            self.mirror.log(numbers, step)
        except Exception as error:
            self.failures += 1
            log.debug("metrics not sent to %s, step %d: %s", self.mirror.run.tracker, step, error)
            return False
        return True
