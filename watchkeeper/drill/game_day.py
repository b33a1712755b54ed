"""A whole game day: scenarios and healthy hours side by side, one process for each core.

Every scenario is a world of its own, so they share nothing; the healthy hours take longest and go first.
`cli/doctor/drill.py` asks for a GameDay and prints what comes back.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from watchkeeper.drill import pairs
from watchkeeper.drill import score as scoring

LOOK_SECONDS = 1.0
# Smaller fleets spend their time on asking rules, not on samples.
FLEET_GPUS = 256
Say = Callable[[str], None]
# Hours that the healthy fleets have lived through, all together, added to by the process of each.
_hours_done: Synchronized[float] | None = None


@dataclass(frozen=True, slots=True)
class GameDayPlan:
    """`workers` None means one for each core."""

    scenarios: tuple[str, ...]
    healthy_hours: float = 0.0
    healthy_gpus: int = 256
    workers: int | None = None
    # Two faults at once on one node.
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class GameDay:
    """What came of it, scenarios in the order of the plan."""

    verdicts: list[scoring.ScenarioVerdict] = field(default_factory=list)
    healthy: scoring.HealthyHours = field(default_factory=scoring.HealthyHours)

    @property
    def score(self) -> scoring.DrillScore:
        return scoring.total_score(self.verdicts, self.healthy)


def run(plan: GameDayPlan, *, on_progress: Say) -> GameDay:
    context = multiprocessing.get_context("spawn")
    hours_done: Synchronized[float] = context.Value("d", 0.0)
    workers = plan.workers or os.cpu_count() or 1
    fleets = _fleets(plan, workers)
    with _pool(ProcessPoolExecutor(workers, context, initializer=_share, initargs=(hours_done,))) as pool:
        healthy = [pool.submit(_live, plan.healthy_hours, gpus, seed) for seed, gpus in enumerate(fleets, scoring.SEED)]
        scenarios = [pool.submit(_strike, name) for name in plan.scenarios]
        scenarios += [pool.submit(_strike_both, names) for names in plan.pairs]
        waiting: set[Future[Any]] = {*scenarios, *healthy}
        while waiting:
            done, waiting = wait(waiting, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            ready = sum(future.done() for future in scenarios)
            done_hours = hours_done.value / max(1, len(fleets))
            hours = f", {done_hours:.1f} of {plan.healthy_hours:g} healthy hours" if healthy else ""
            on_progress(f"{ready} of {len(scenarios)} scenarios{hours}")
        lived = [future.result() for future in healthy]
        verdicts = [verdict for future in scenarios for verdict in future.result()]
        return GameDay(verdicts, scoring.merge_healthy(lived))


def _fleets(plan: GameDayPlan, workers: int) -> list[int]:
    """Healthy GPUs as one fleet for each worker, none smaller than FLEET_GPUS: the first takes what is left over."""
    if not plan.healthy_hours:
        return []
    count = max(1, min(workers, plan.healthy_gpus // FLEET_GPUS))
    each = plan.healthy_gpus // count
    return [plan.healthy_gpus - each * (count - 1), *[each] * (count - 1)]


@contextmanager
def _pool(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """A failure or Ctrl-C does not wait for what has not begun."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _share(hours_done: Synchronized[float]) -> None:
    global _hours_done  # noqa: PLW0603 (the one way into a pool's process)
    _hours_done = hours_done
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Whoever ends the drill by its process ends its hours of work too: a pool's processes would go on without it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _strike(name: str) -> list[scoring.ScenarioVerdict]:
    return [asyncio.run(scoring.run_scenario(name))]


def _strike_both(names: tuple[str, str]) -> list[scoring.ScenarioVerdict]:
    return asyncio.run(pairs.run_pair(names))


def _live(hours: float, gpus: int, seed: int) -> scoring.HealthyHours:
    return asyncio.run(scoring.run_healthy(hours=hours, gpus=gpus, seed=seed, on_progress=_add))


def _add(hours: float) -> None:
    if _hours_done is not None:
        with _hours_done.get_lock():
            _hours_done.value += hours
