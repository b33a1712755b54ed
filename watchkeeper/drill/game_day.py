"""Run a game day: scenarios and healthy hours in parallel, one process for each core.

Scenarios share nothing: each has its own simulated fleet. Healthy hours take longest and start first.
`cli/doctor/drill.py` runs a GameDayPlan and prints the GameDayResult.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from watchkeeper.drill import score as scoring

PROGRESS_SECONDS = 1.0
# Smaller fleets spend their time on rule evaluation, not on samples.
MIN_FLEET_GPUS = 256
ReportProgress = Callable[[str], None]
# Simulated hours of all healthy fleets, added up by their processes.
_hours_done: Synchronized[float] | None = None


@dataclass(frozen=True, slots=True)
class GameDayPlan:
    """What to run; `workers` None means one process for each core."""

    scenarios: tuple[str, ...]
    healthy_hours: float = 0.0
    healthy_gpus: int = 256
    workers: int | None = None
    # Two faults at once on one node.
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class GameDayResult:
    verdicts: list[scoring.ScenarioVerdict] = field(default_factory=list)
    healthy: scoring.HealthyHours = field(default_factory=scoring.HealthyHours)

    @property
    def score(self) -> scoring.GameDayScore:
        return scoring.total_score(self.verdicts, self.healthy)


def run(plan: GameDayPlan, *, on_progress: ReportProgress) -> GameDayResult:
    context = multiprocessing.get_context("spawn")
    hours_done: Synchronized[float] = context.Value("d", 0.0)
    workers = plan.workers or os.cpu_count() or 1
    fleets = _fleet_sizes(plan, workers)
    with ExitStack() as stack:
        pool = ProcessPoolExecutor(workers, context, initializer=_init_worker, initargs=(hours_done,))
        # On a failure or Ctrl-C, the work that has not started is cancelled.
        stack.callback(pool.shutdown, cancel_futures=True)
        healthy = [
            pool.submit(_run_healthy, plan.healthy_hours, gpus, seed) for seed, gpus in enumerate(fleets, scoring.SEED)
        ]
        scenarios = [pool.submit(_run_scenario, name) for name in plan.scenarios]
        scenarios += [pool.submit(_run_pair, names) for names in plan.pairs]
        unfinished: set[Future[Any]] = {*scenarios, *healthy}
        while unfinished:
            done, unfinished = wait(unfinished, timeout=PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            finished = sum(future.done() for future in scenarios)
            hours_per_fleet = hours_done.value / max(1, len(fleets))
            hours = f", {hours_per_fleet:.1f} of {plan.healthy_hours:g} healthy hours" if healthy else ""
            on_progress(f"{finished} of {len(scenarios)} scenarios{hours}")
        verdicts = [verdict for future in scenarios for verdict in future.result()]
        parts = [future.result() for future in healthy]
        alarms = tuple(alarm for part in parts for alarm in part.alarms)
        return GameDayResult(verdicts, scoring.HealthyHours(sum(part.gpu_hours for part in parts), alarms))


def _fleet_sizes(plan: GameDayPlan, workers: int) -> list[int]:
    """Split the healthy GPUs into one fleet for each worker, at least MIN_FLEET_GPUS each; the first gets the rest."""
    if not plan.healthy_hours:
        return []
    count = max(1, min(workers, plan.healthy_gpus // MIN_FLEET_GPUS))
    gpus_each = plan.healthy_gpus // count
    return [plan.healthy_gpus - gpus_each * (count - 1), *[gpus_each] * (count - 1)]


def _init_worker(hours_done: Synchronized[float]) -> None:
    global _hours_done  # noqa: PLW0603 (the only way into a pool's process)
    _hours_done = hours_done
    exit_with_parent()


def exit_with_parent() -> None:
    """End this worker when the drill's process ends: a pool's processes would otherwise keep running."""

    def wait_for_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def _run_scenario(name: str) -> list[scoring.ScenarioVerdict]:
    return [asyncio.run(scoring.run_scenario(name))]


def _run_pair(names: tuple[str, str]) -> list[scoring.ScenarioVerdict]:
    return asyncio.run(scoring.run_pair(names))


def _run_healthy(hours: float, gpus: int, seed: int) -> scoring.HealthyHours:
    def add_hours_done(hours: float) -> None:
        if _hours_done is not None:
            with _hours_done.get_lock():
                _hours_done.value += hours

    return asyncio.run(scoring.run_healthy(hours=hours, gpus=gpus, seed=seed, on_progress=add_hours_done))
