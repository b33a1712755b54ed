"""Run many stories in parallel, one process for each core; a progress file lets a long check continue after a stop.

`watchkeeper drill --consistency` runs a ConsistencyPlan and prints the ConsistencyReport.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.drill import game_day
from watchkeeper.drill.consistency import judging, stories
from watchkeeper.drill.consistency.looks import RunCommand
from watchkeeper.drill.score import PAIRS
from watchkeeper.kit import wire

RANDOM_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class ConsistencyPlan:
    """Which stories to run; `progress_file` has the results of those that ran before. `workers` None: one per core."""

    stories: tuple[str, ...]
    run_command: RunCommand
    workers: int | None = None
    progress_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ConsistencyReport:
    """The output of `watchkeeper drill --consistency --json`: numbers of invariants, stories and looks."""

    invariants: int
    stories: int
    looks: int
    violations: tuple[judging.Violation, ...]


def list_stories(scenarios: Iterable[str], *, is_long: bool, with_all: bool) -> tuple[str, ...]:
    """The given scenarios; with all of them also other stories, in a long check all pairs and random steps."""
    names = tuple(scenarios)
    if not with_all:
        return names
    pairs = itertools.combinations(names, 2) if is_long else PAIRS
    seeds = range(RANDOM_STEPS // stories.STEPS) if is_long else range(0)
    random = (f"{stories.RANDOM} {seed}" for seed in seeds)
    return (stories.BAD_INPUT, stories.HEALTHY, *names, *(stories.PAIR.join(pair) for pair in pairs), *random)


def run(plan: ConsistencyPlan, *, on_progress: Callable[[str], None]) -> ConsistencyReport:
    results = dict(read_progress(plan.progress_file))
    to_run = [story for story in plan.stories if story not in results]
    workers = min(plan.workers or os.cpu_count() or 1, max(1, len(to_run)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker) as pool:
        unfinished: set[Future[stories.StoryResult]] = {
            pool.submit(stories.run_story, story, plan.run_command) for story in to_run
        }
        try:
            while unfinished:
                done, unfinished = wait(unfinished, timeout=game_day.PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
                for result in (future.result() for future in done):
                    results[result.story] = result
                    _write_progress(plan.progress_file, result)
                on_progress(_describe(results, len(plan.stories)))
        finally:
            # On a failure or Ctrl-C, the stories that have not started are cancelled.
            pool.shutdown(wait=False, cancel_futures=True)
    return make_report([results[story] for story in plan.stories])


def make_report(results: Iterable[stories.StoryResult]) -> ConsistencyReport:
    all_results = list(results)
    violations = tuple(violation for result in all_results for violation in result.violations)
    looks = sum(result.looks for result in all_results)
    return ConsistencyReport(len(judging.INVARIANTS), len(all_results), looks, violations)


def read_progress(file: Path | None) -> Iterator[tuple[str, stories.StoryResult]]:
    """The results in a progress file, one on each line."""
    if file is not None and file.exists():
        for line in file.read_bytes().splitlines():
            result = wire.loads(stories.StoryResult, line)
            yield result.story, result


def _write_progress(file: Path | None, result: stories.StoryResult) -> None:
    if file is not None:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(wire.dumps(result) + "\n")


def _describe(results: Mapping[str, stories.StoryResult], total: int) -> str:
    report = make_report(results.values())
    return f"{report.stories} of {total} stories, {report.looks} looks, {len(report.violations)} violations"


def _start_worker() -> None:
    game_day.exit_with_parent()
    # The hubs of a drill report faults that are simulated; their failures are violations.
    logging.disable(logging.CRITICAL)
