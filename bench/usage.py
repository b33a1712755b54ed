"""Usage: seconds to report a year of hourly usage of 10,000 GPUs and 200 teams from a ledger, with cost.

`reference` is the time of NumPy to sum as many numbers, in the same run. Statements are those of all teams in a month
of jobs; their reference is the statement of one team.
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
        usage_ledger = ledger.UsageLedger(Path(folder))
        started_at = time.perf_counter()
        row_count = _fill(usage_ledger, options)
        numbers: dict[str, float] = {"rows": row_count, "build_seconds": time.perf_counter() - started_at}
        numbers["bytes"] = sum(path.stat().st_size for path in Path(folder).iterdir())
        engine, until = embedded.EmbeddedEngine(head.Head()), BEGIN + options.days * DAY
        # Shifted by half an hour, so that the edges are read by hour and the rest by day.
        for name, shift in (("year", 0.0), ("year_off_days", HOUR / 2)):
            seconds = []
            for _ in range(options.rounds):
                started_at = time.perf_counter()
                window = (BEGIN + shift, until - shift)
                [table] = usage_reader.read_usage_periods(engine, usage_ledger, [window], by_job=False)
                report = cost.create_report(table, prices.shipped_book(), ["team"], policy=cost.Policy.ALLOCATION)
                seconds.append(time.perf_counter() - started_at)
            numbers[f"{name}_seconds"] = min(seconds)
            total_usage = usage.total(summary.total(table))
            numbers[f"{name}_sum_error"] = abs(total_usage / (options.gpus * (table.until - table.since) / HOUR) - 1)
            numbers[f"{name}_money"] = report.money
        numbers["reference_seconds"] = _reference(row_count * len(usage.PARTS))
        numbers["ratio"] = numbers["year_seconds"] / numbers["reference_seconds"]
        numbers |= _statements(usage_ledger, engine, options)
    return numbers


def _statements(
    usage_ledger: ledger.UsageLedger, engine: embedded.EmbeddedEngine, options: argparse.Namespace
) -> dict[str, float]:
    """Seconds for all statements of a month, and for one statement."""
    _fill_jobs(usage_ledger, options)
    numbers: dict[str, float] = {}
    teams_by_run: dict[str, tuple[str, ...]] = {"one_statement": ("team-000",), "statements": ()}
    for name, teams in teams_by_run.items():
        started_at = time.perf_counter()
        month = (BEGIN, BEGIN + MONTH_DAYS * DAY)
        [table] = usage_reader.read_usage_periods(engine, usage_ledger, [month], by_job=True)
        bill = cost.price_usage([table], prices.shipped_book(), policy=cost.Policy.ALLOCATION)
        numbers[name] = sum(
            1 for _ in monthly.create_statements(bill, monthly.StatementRequest(MONTH, ZoneInfo("UTC"), teams))
        )
        numbers[f"{name}_seconds"] = time.perf_counter() - started_at
    numbers["statement_rows"] = len(table.keys)
    numbers["statements_ratio"] = numbers["statements_seconds"] / numbers["one_statement_seconds"]
    return numbers


def _fill_jobs(usage_ledger: ledger.UsageLedger, options: argparse.Namespace) -> None:
    job_count = options.gpus // GPUS_A_JOB
    hours = np.repeat(np.arange(24), job_count)
    job_indices = np.tile(np.arange(job_count), 24)
    for day in range(MONTH_DAYS):
        start = BEGIN + day * DAY
        keys = [_job(day, job_slot, at, options) for job_slot in range(24 // HOURS_A_JOB) for at in range(job_count)]
        amounts = np.zeros((len(hours), len(usage.PARTS)))
        amounts[:, usage.ALLOCATED] = GPUS_A_JOB
        owners = [keys[hour // HOURS_A_JOB * job_count + at] for hour, at in zip(hours, job_indices, strict=True)]
        coverage = {"main": {start + hour * HOUR: 1.0 for hour in range(24)}}
        jobs = recorded_hours.RecordedHours(start + hours * HOUR, owners, amounts, coverage)
        usage_ledger.write_day(start, jobs, jobs)


def _job(day: int, job_slot: int, at: int, options: argparse.Namespace) -> usage.Key:
    team = f"team-{at % options.teams:03}"
    return usage.make_key(
        cluster="main", model=MODELS[at % len(MODELS)], node=f"node-{at:05}", team=team, job=f"{day}-{job_slot}-{at}"
    )


def _fill(usage_ledger: ledger.UsageLedger, options: argparse.Namespace) -> int:
    """Write a year in which teams use more GPUs by day than by night; returns the number of rows."""
    random = np.random.default_rng(14)
    keys = [
        usage.make_key(
            cluster="main", pool=model[7:11], model=model, team=f"team-{team:03}", namespace=f"team-{team:03}"
        )
        for team in range(options.teams)
        for model in MODELS
    ]
    unassigned = usage.make_key(cluster="main", model=MODELS[0], team=usage.UNOWNED)
    weights = random.dirichlet(np.ones(len(keys)))
    for day in range(options.days):
        start = BEGIN + day * DAY
        amounts = np.zeros((24, len(keys) + 1, len(usage.PARTS)))
        allocated = options.gpus * (0.7 + 0.2 * np.sin(np.arange(24) / 24 * 2 * np.pi))[:, None] * weights
        amounts[:, :-1, usage.ALLOCATED] = allocated
        amounts[:, :-1, usage.USED] = allocated * random.uniform(0.2, 0.9, allocated.shape)
        amounts[:, :-1, usage.KWH] = allocated * random.uniform(0.3, 0.7, allocated.shape)
        amounts[:, -1, usage.IDLE] = options.gpus - allocated.sum(axis=1)
        starts = np.repeat(start + np.arange(24) * HOUR, len(keys) + 1)
        rows = amounts.reshape(-1, len(usage.PARTS))
        coverage = {"main": {start + hour * HOUR: 1.0 for hour in range(24)}}
        teams = recorded_hours.RecordedHours(starts, [*keys, unassigned] * 24, rows, coverage)
        usage_ledger.write_day(
            start, teams, recorded_hours.RecordedHours(np.zeros(0), [], np.zeros((0, len(usage.PARTS))), {})
        )
    rows_written: int = options.days * 24 * (len(keys) + 1)
    return rows_written


def _reference(count: int) -> float:
    numbers = np.ones(count, dtype=np.float32)
    started_at = time.perf_counter()
    float(numbers.sum(dtype=np.float64))
    return time.perf_counter() - started_at
