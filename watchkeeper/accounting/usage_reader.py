"""Usage of a window from whatever knows it: the ledger first, then recorded hours, then the minutes of the newest hour.

`web/usage_api` asks for tables, the hub calls `keep_up` so that the ledger has every hour before the store forgets it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watchkeeper.accounting import recorded_hours, time_ranges, usage
from watchkeeper.accounting.ledger import DAY, UsageLedger
from watchkeeper.accounting.tally import HOUR, LEAST_GAP_SECONDS, UsageTally
from watchkeeper.query.engine import Engine

# A recorded hour is there this long after its end at the latest; until then its day is not closed.
SETTLE_SECONDS = 300.0
# A hub that was away catches up with so many days at once: what the store still has of them.
MOST_DAYS = 31
# Who was away for longer begins anew.
MOST_AWAY_SECONDS = 7 * DAY
BY_JOB = frozenset({"node", "user", "kind", "job"})


def needs_jobs(dimensions: frozenset[str]) -> bool:
    """Whether a question needs the table of jobs; the one of teams is smaller by far."""
    return bool(dimensions & BY_JOB)


def read_usage(
    engine: Engine, ledger: UsageLedger | None, *, since: float, until: float, by_job: bool
) -> usage.UsageTable:
    """Who had what in a window."""
    return read_usage_periods(engine, ledger, [(since, until)], by_job=by_job)[0]


def read_usage_periods(
    engine: Engine, ledger: UsageLedger | None, stretches: Sequence[tuple[float, float]], *, by_job: bool
) -> list[usage.UsageTable]:
    """Who had what in each stretch of a time, one after the other; together they have what the whole time has."""
    opens, found = stretches[0][0], []
    before = _before(engine, ledger, opens)
    for since, until in stretches:
        tally = _known(engine, ledger, UsageTally(since, until, opens), by_job=by_job)
        tally.follow(before)
        told = tally.table()
        found.append(told if len(told.keys) else _empty(told))
        before = tally
    return found


def _known(engine: Engine, ledger: UsageLedger | None, tally: UsageTally, *, by_job: bool) -> UsageTally:
    since, until = tally.since, tally.until
    covered = [] if ledger is None else ledger.add(tally, by_job=by_job)
    for start, end in _worth_asking(covered, since, until):
        piece = UsageTally(start, end)
        hours = recorded_hours.hours(engine, start, end, by_job=by_job)
        covered += recorded_hours.add_hours(piece, hours)
        tally.take(piece)
    for start, end in _worth_asking(covered, since, until):
        recorded_hours.add_minutes(tally, engine, (max(start, end - recorded_hours.MOST_MINUTES_SECONDS), end))
    return tally


def _before(engine: Engine, ledger: UsageLedger | None, until: float) -> UsageTally:
    """The time before a window: GPUs of whoever is away where it begins are unknown, neither new nor gone."""
    since = until - MOST_AWAY_SECONDS
    tally = UsageTally(since, until)
    covered = [] if ledger is None else ledger.add(tally, by_job=False)
    for start, end in _worth_asking(covered, since, until):
        recorded_hours.add_hours(tally, recorded_hours.hours(engine, start, end, by_job=False))
    return tally


def update_ledger(engine: Engine, ledger: UsageLedger, *, now: float) -> int:
    """Write the days whose hours are recorded and not all kept yet; returns how many files were written."""
    today = now // DAY * DAY
    # A day ahead was written by a clock that was put back since; the days up to it are still to come.
    kept = [day for day in ledger.days() if day <= today]
    day = max(kept[-1] if kept else today - DAY, today - MOST_DAYS * DAY)
    written = 0
    while day <= today:
        until = min(day + DAY, now - SETTLE_SECONDS)
        if until - day >= HOUR:
            teams = _hours(engine, day, until, by_job=False)
            if ledger.lacks(day, teams):
                ledger.keep(day, teams, _hours(engine, day, until, by_job=True))
                written += 1
        day += DAY
    return written


def _hours(engine: Engine, since: float, until: float, *, by_job: bool) -> recorded_hours.RecordedHours:
    """The whole hours of a window: as recorded, and summed from minutes where an evaluation was missed."""
    found = recorded_hours.hours(engine, since, until, by_job=by_job)
    known = set(found.starts.tolist())
    missed = [start for start in np.arange(since, until - HOUR + 1, HOUR).tolist() if start not in known]
    return recorded_hours.joined(found, recorded_hours.hours_of_minutes(engine, missed, by_job=by_job))


def _worth_asking(covered: list[tuple[float, float]], since: float, until: float) -> list[tuple[float, float]]:
    return [
        (start, end)
        for start, end in time_ranges.gaps(covered, since=since, until=until)
        if end - start > LEAST_GAP_SECONDS and end - start >= recorded_hours.MINUTE
    ]


def _empty(found: usage.UsageTable) -> usage.UsageTable:
    note = (
        "nothing is recorded in this time; usage begins when the rules of usage-hours.yaml have run for a minute on a "
        "fleet that is watched"
    )
    return usage.UsageTable(found.since, found.until, notes=(*found.notes, note))
