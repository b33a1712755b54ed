"""Mirrors to experiment trackers: own threads, limited queues, and no effect on the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.instrument import pages
from tests.support import torch_python
from tests.support.waiting import until
from watchkeeper.instrument import mirrors
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.mirrors import MirrorSet, Run
from watchkeeper.instrument.optional import PackageMissing
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.training import TrainingMonitor


class Tracker:
    """Stores the metrics; waits at its gate, and raises if it is broken."""

    def __init__(self, *, is_broken: bool = False, gate: threading.Event | None = None) -> None:
        self.run = Run("fake", "run-7", "http://tracker.example/run-7")
        self.got: list[tuple[int, Mapping[str, float]]] = []
        self.calls, self._is_broken, self._gate = 0, is_broken, gate

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.calls += 1
        if self._gate is not None:
            self._gate.wait()
        if self._is_broken:
            raise RuntimeError("the tracker is down")
        self.got.append((step, numbers))


def monitor(tracker: Tracker, rank: int = 0) -> TrainingMonitor:
    return TrainingMonitor("llama", Exports(), mirrors=[tracker], place=Placement(rank, 2))


def test_a_tracker_gets_the_metrics_and_its_run_is_linked() -> None:
    tracker = Tracker()
    with monitor(tracker) as made:
        made.step(loss=0.5)
        made.step(loss=0.25)
        link = "http://tracker.example/run-7"
        assert pages.value(made, "training_run_info", tracker="fake", run_id="run-7", run_url=link) == 1
    # The first step at once, the last one at the end; between them at most one in ten seconds.
    assert [step for step, _ in tracker.got] == [1, 2]
    assert tracker.got[-1][1]["training_loss"] == 0.25


def test_only_the_rank_that_exports_everything_feeds_its_tracker() -> None:
    tracker = Tracker()
    with monitor(tracker, rank=1) as made:
        made.step(loss=0.5)
    assert tracker.calls == 0


def test_a_tracker_that_is_down_is_disabled_and_the_training_continues(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(is_broken=True)
    mirroring = MirrorSet([tracker], every_seconds=0.0)

    def is_said() -> bool:
        mirroring.enqueue({"training_loss": 1.0}, 1, now=0.0)
        return "experiment tracker disabled" in caplog.text

    until(is_said)
    mirroring.enqueue({"training_loss": 1.0}, 2, now=0.0)
    mirroring.close()
    assert tracker.calls == mirrors.MAX_FAILURES
    assert mirroring.count_failures() == {"fake": mirrors.MAX_FAILURES}


def test_a_tracker_that_hangs_blocks_neither_the_steps_nor_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "CLOSE_TIMEOUT_SECONDS", 0.1)
    gate = threading.Event()
    mirroring = MirrorSet([Tracker(gate=gate)], every_seconds=0.0)
    began = time.monotonic()
    for step in range(10 * mirrors.MAX_QUEUED):
        mirroring.enqueue({"training_loss": 1.0}, step, now=0.0)
    mirroring.close()
    assert time.monotonic() - began < 30
    assert len(mirroring._queues[0]._queued) <= mirrors.MAX_QUEUED
    gate.set()


@pytest.mark.parametrize("ask", [mirrors.mlflow_run, mirrors.wandb_run])
def test_a_missing_tracker_is_an_error_with_the_install_command(ask: object) -> None:
    with pytest.raises(PackageMissing, match=r"pip install (mlflow-skinny|wandb)"):
        ask()  # type: ignore[operator]


TRAINED = """
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.training import TrainingMonitor
with TrainingMonitor("llama", Exports(), mirrors=[mirror]) as monitor:
    for step in range(3):
        monitor.step(loss=1.0 / (step + 1))
"""


@pytest.mark.servers
def test_mlflow_stores_the_metrics(tmp_path: Path) -> None:
    program = f"""
import os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
from watchkeeper.instrument import mirrors
mlflow.set_tracking_uri("file:./runs")
run = mlflow.start_run()
mirror = mirrors.mlflow_run()
{TRAINED}
history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "training_loss")
print([(one.step, round(one.value, 3)) for one in history])
mlflow.end_run()
"""
    assert torch_python.run(program, folder=tmp_path, needs=("mlflow",)) == "[(1, 1.0), (3, 0.333)]\n"


@pytest.mark.servers
def test_weights_and_biases_stores_the_metrics(tmp_path: Path) -> None:
    program = f"""
import wandb
from watchkeeper.instrument import mirrors
run = wandb.init(mode="offline", project="test", dir=".", settings=wandb.Settings(silent=True, console="off"))
mirror = mirrors.wandb_run()
{TRAINED}
print(run.summary["watchkeeper/step"], round(run.summary["watchkeeper/training_loss"], 3))
wandb.finish()
"""
    assert torch_python.run(program, folder=tmp_path, needs=("wandb",)) == "3 0.333\n"
