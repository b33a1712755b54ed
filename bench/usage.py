"""Usage: seconds to report a year of hourly usage of 10,000 GPUs and 200 teams, with its cost, out of a ledger.

`reference` is the time that NumPy alone takes to sum as many numbers as the year has, in the same run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from watchkeeper.accounting import books, cost, ledger, recorded, summary, usage
from watchkeeper.catalogue import prices
from watchkeeper.query import embedded
from watchkeeper.store import head

DAY, HOUR = 86_400.0, 3600.0
# 2025-01-01T00:00Z
BEGIN = 1_735_689_600.0
MODELS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--teams", type=int, default=200)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rounds", type=int, default=3)


def measure(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        kept = ledger.Ledger(Path(folder))
        begun = time.perf_counter()
        hours = _fill(kept, options)
        found: dict[str, float] = {"rows": hours, "build_seconds": time.perf_counter() - begun}
        found["bytes"] = sum(path.stat().st_size for path in Path(folder).iterdir())
        engine, until = embedded.EmbeddedEngine(head.Head()), BEGIN + options.days * DAY
        # Half an hour off, so that both edges are read hour by hour and the rest of the year day by day.
        for name, shift in (("year", 0.0), ("year_off_days", HOUR / 2)):
            seconds = []
            for _ in range(options.rounds):
                begun = time.perf_counter()
                table = books.table(engine, kept, since=BEGIN + shift, until=until - shift, by_job=False)
                report = cost.report(table, prices.shipped(), ["team"], policy=cost.Policy.ALLOCATION)
                seconds.append(time.perf_counter() - begun)
            found[f"{name}_seconds"] = min(seconds)
            whole = usage.total(summary.total(table))
            found[f"{name}_sum_error"] = abs(whole / (options.gpus * table.hours) - 1)
            found[f"{name}_money"] = report.money
        found["reference_seconds"] = _reference(hours * len(usage.PARTS))
        found["ratio"] = found["year_seconds"] / found["reference_seconds"]
    return found


def _fill(kept: ledger.Ledger, options: argparse.Namespace) -> int:
    """A year in which teams hold more by day than by night; returns the rows written."""
    random = np.random.default_rng(14)
    keys = [
        usage.key(cluster="main", pool=model[7:11], model=model, team=f"team-{team:03}", namespace=f"team-{team:03}")
        for team in range(options.teams)
        for model in MODELS
    ]
    nobody = usage.key(cluster="main", model=MODELS[0], team=usage.NOBODY)
    weights = random.dirichlet(np.ones(len(keys)))
    for day in range(options.days):
        start = BEGIN + day * DAY
        amounts = np.zeros((24, len(keys) + 1, len(usage.PARTS)))
        held = options.gpus * (0.7 + 0.2 * np.sin(np.arange(24) / 24 * 2 * np.pi))[:, None] * weights
        amounts[:, :-1, usage.ALLOCATED] = held
        amounts[:, :-1, usage.USED] = held * random.uniform(0.2, 0.9, held.shape)
        amounts[:, :-1, usage.KWH] = held * random.uniform(0.3, 0.7, held.shape)
        amounts[:, -1, usage.IDLE] = options.gpus - held.sum(axis=1)
        starts = np.repeat(start + np.arange(24) * HOUR, len(keys) + 1)
        rows = amounts.reshape(-1, len(usage.PARTS))
        seen = {"main": {start + hour * HOUR: 1.0 for hour in range(24)}}
        teams = recorded.Hours(starts, [*keys, nobody] * 24, rows, seen)
        kept.keep(start, teams, recorded.Hours(np.zeros(0), [], np.zeros((0, len(usage.PARTS))), {}))
    rows_written: int = options.days * 24 * (len(keys) + 1)
    return rows_written


def _reference(count: int) -> float:
    numbers = np.ones(count, dtype=np.float32)
    begun = time.perf_counter()
    float(numbers.sum(dtype=np.float64))
    return time.perf_counter() - begun
