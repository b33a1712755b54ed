"""Usage: seconds to report a year of hourly usage of 10,000 GPUs and 200 teams, with its cost, out of a ledger.

`reference` is the time that NumPy alone takes to sum as many numbers as the year has, in the same run. Statements are
those of every team in a month of jobs; their reference is the statement of one team.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from watchkeeper.accounting import cost, ledger, monthly, recorded_hours, summary, usage, usage_reader
from watchkeeper.catalogue import prices
from watchkeeper.query import embedded
from watchkeeper.store.head import head

DAY, HOUR = 86_400.0, 3600.0
# 2025-01-01T00:00Z
BEGIN = 1_735_689_600.0
MONTH, MONTH_DAYS = "2025-01", 31
# A job holds four GPUs for six hours, and no GPU is idle.
GPUS_A_JOB, HOURS_A_JOB = 4, 6
MODELS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--teams", type=int, default=200)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rounds", type=int, default=3)


def measure(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        kept = ledger.UsageLedger(Path(folder))
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
                table = usage_reader.read_usage(engine, kept, since=BEGIN + shift, until=until - shift, by_job=False)
                report = cost.report(table, prices.shipped_book(), ["team"], policy=cost.Policy.ALLOCATION)
                seconds.append(time.perf_counter() - begun)
            found[f"{name}_seconds"] = min(seconds)
            whole = usage.total(summary.total(table))
            found[f"{name}_sum_error"] = abs(whole / (options.gpus * table.hours) - 1)
            found[f"{name}_money"] = report.money
        found["reference_seconds"] = _reference(hours * len(usage.PARTS))
        found["ratio"] = found["year_seconds"] / found["reference_seconds"]
        found |= _statements(kept, engine, options)
    return found


def _statements(
    kept: ledger.UsageLedger, engine: embedded.EmbeddedEngine, options: argparse.Namespace
) -> dict[str, float]:
    """What all statements of the month take from the first read to the last page, and what one does."""
    _fill_jobs(kept, options)
    found: dict[str, float] = {}
    wanted: dict[str, tuple[str, ...]] = {"one_statement": ("team-000",), "statements": ()}
    for name, teams in wanted.items():
        begun = time.perf_counter()
        table = usage_reader.read_usage(engine, kept, since=BEGIN, until=BEGIN + MONTH_DAYS * DAY, by_job=True)
        bill = cost.price_usage([table], prices.shipped_book(), policy=cost.Policy.ALLOCATION)
        found[name] = sum(1 for _ in monthly.statements(bill, monthly.StatementRequest(MONTH, ZoneInfo("UTC"), teams)))
        found[f"{name}_seconds"] = time.perf_counter() - begun
    found["statement_rows"] = len(table.keys)
    found["statements_ratio"] = found["statements_seconds"] / found["one_statement_seconds"]
    return found


def _fill_jobs(kept: ledger.UsageLedger, options: argparse.Namespace) -> None:
    at_once = options.gpus // GPUS_A_JOB
    hours = np.repeat(np.arange(24), at_once)
    of_hour = np.tile(np.arange(at_once), 24)
    for day in range(MONTH_DAYS):
        start = BEGIN + day * DAY
        keys = [_job(day, turn, at, options) for turn in range(24 // HOURS_A_JOB) for at in range(at_once)]
        amounts = np.zeros((len(hours), len(usage.PARTS)))
        amounts[:, usage.ALLOCATED] = GPUS_A_JOB
        owners = [keys[hour // HOURS_A_JOB * at_once + at] for hour, at in zip(hours, of_hour, strict=True)]
        seen = {"main": {start + hour * HOUR: 1.0 for hour in range(24)}}
        jobs = recorded_hours.RecordedHours(start + hours * HOUR, owners, amounts, seen)
        kept.keep(start, jobs, jobs)


def _job(day: int, turn: int, at: int, options: argparse.Namespace) -> usage.Key:
    team = f"team-{at % options.teams:03}"
    return usage.key(
        cluster="main", model=MODELS[at % len(MODELS)], node=f"node-{at:05}", team=team, job=f"{day}-{turn}-{at}"
    )


def _fill(kept: ledger.UsageLedger, options: argparse.Namespace) -> int:
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
        teams = recorded_hours.RecordedHours(starts, [*keys, nobody] * 24, rows, seen)
        kept.keep(start, teams, recorded_hours.RecordedHours(np.zeros(0), [], np.zeros((0, len(usage.PARTS))), {}))
    rows_written: int = options.days * 24 * (len(keys) + 1)
    return rows_written


def _reference(count: int) -> float:
    numbers = np.ones(count, dtype=np.float32)
    begun = time.perf_counter()
    float(numbers.sum(dtype=np.float64))
    return time.perf_counter() - begun
