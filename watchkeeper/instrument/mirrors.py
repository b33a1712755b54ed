"""The same numbers in an experiment tracker: MLflow or Weights & Biases, each from a thread of its own.

    TrainingMonitor(mirrors=[mlflow_run()])

A tracker that is slow, broken or gone holds up only its thread: what it does not take in time is dropped from a short
queue, and after some failures in a row it is left alone. The run's address goes onto the page, so that a job links to
it.
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
MOST_WAITING = 100
# A tracker that failed so often in a row is down for good; the log says so once.
MOST_FAILURES = 5
CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    tracker: str
    id: str
    url: str = ""


class Mirror(Protocol):
    """Somewhere that keeps numbers by step. `log` may wait, and may raise."""

    @property
    def run(self) -> Run: ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...


class RunMissing(RuntimeError):
    """A tracker was asked for in which no run is active."""


class _Mlflow:
    def __init__(self, run_id: str | None) -> None:
        mlflow = optional.need("mlflow", package="mlflow-skinny")
        # The active run belongs to the thread that began it, so its id is taken now.
        active = mlflow.active_run()
        if run_id is None and active is None:
            raise RunMissing("no MLflow run is active: call mlflow.start_run() first, or give mlflow_run(run_id=…)")
        self._client, self._metric = mlflow.MlflowClient(), mlflow.entities.Metric
        found = self._client.get_run(run_id) if run_id is not None else active
        server = mlflow.get_tracking_uri().rstrip("/")
        shown = f"{server}/#/experiments/{found.info.experiment_id}/runs/{found.info.run_id}"
        self.run = Run("mlflow", found.info.run_id, shown if server.startswith("http") else "")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self.run.id, metrics=metrics)


class _Wandb:
    def __init__(self, *, commits: bool) -> None:
        wandb = optional.need("wandb", package="wandb")
        if wandb.run is None:
            raise RunMissing("no W&B run is active: call wandb.init() first")
        self._run, self._commits = wandb.run, commits
        # Offline runs have no address.
        self.run = Run("wandb", str(wandb.run.id), str(wandb.run.url or ""))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        named = {f"watchkeeper/{name}": value for name, value in numbers.items()}
        self._run.log({**named, "watchkeeper/step": step}, commit=self._commits)


def mlflow_run(run_id: str | None = None) -> Mirror:
    """The active MLflow run of this thread, or the one with this id."""
    return _Mlflow(run_id)


def wandb_run(*, commits: bool = True) -> Mirror:
    """The active W&B run; `commits=False` for a program that logs with steps of its own, and our numbers ride along."""
    return _Wandb(commits=commits)


class MirrorSet:
    """The mirrors of one monitor; `due` is when they want the next numbers."""

    def __init__(self, mirrors: Sequence[Mirror], every_seconds: float = EVERY_SECONDS) -> None:
        self._every = every_seconds
        self._feeds = [_MirrorQueue(mirror) for mirror in mirrors]
        self.due = float("-inf") if self._feeds else float("inf")

    def offer(self, numbers: Mapping[str, float], step: int, *, now: float) -> None:
        if self._feeds:
            self.due = now + self._every
        for feed in self._feeds:
            feed.offer(numbers, step)

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()

    def runs(self) -> list[Run]:
        return [feed.mirror.run for feed in self._feeds]

    def failures(self) -> dict[str, int]:
        return {feed.mirror.run.tracker: feed.failures for feed in self._feeds if feed.failures}


class _MirrorQueue:
    """One mirror, its short queue and its thread."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror, self.failures = mirror, 0
        self._waiting: deque[tuple[Mapping[str, float], int]] = deque(maxlen=MOST_WAITING)
        self._more, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="watchkeeper-mirror", daemon=True)
        self._thread.start()

    def offer(self, numbers: Mapping[str, float], step: int) -> None:
        self._waiting.append((numbers, step))
        self._more.set()

    def close(self) -> None:
        self._is_over = True
        self._more.set()
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        in_a_row = 0
        while in_a_row < MOST_FAILURES:
            self._more.wait()
            self._more.clear()
            while self._waiting and in_a_row < MOST_FAILURES:
                in_a_row = 0 if self._send(*self._waiting.popleft()) else in_a_row + 1
            if self._is_over:
                return
        log.warning(
            "%s failed %d times in a row and gets no more numbers; the training goes on",
            self.mirror.run.tracker,
            in_a_row,
        )

    def _send(self, numbers: Mapping[str, float], step: int) -> bool:
        """Deliberately any error: a tracker's bad day is not the training's."""
        try:
            self.mirror.log(numbers, step)
        except Exception as error:
            self.failures += 1
            log.debug("%s did not take the numbers of step %d: %s", self.mirror.run.tracker, step, error)
            return False
        return True
