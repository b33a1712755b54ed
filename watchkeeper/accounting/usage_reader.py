"""Read the usage of a window: from the ledger, then from recorded hours, then from the minutes of the newest hour.

`web/accounting/usage_api` calls it. The hub calls `update_ledger`, so that the ledger has every hour before the store
deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from watchkeeper.accounting import recorded_hours, time_ranges, usage
from watchkeeper.accounting.ledger import DAY, UsageLedger
from watchkeeper.accounting.tally import HOUR, UsageTally
from watchkeeper.query.engine import Engine

NO_USAGE = (
    "no usage is recorded in this period; usage starts when the rules of usage-hours.yaml have run for a minute on a "
    "monitored fleet"
)
# A recorded hour exists at the latest this long after its end.
SETTLE_SECONDS = 300.0
# After a downtime the hub writes at most so many days at once, as far as the store still has them.
MAX_DAYS = 31
# After a longer downtime a cluster counts as new.
MAX_DOWNTIME_SECONDS = 7 * DAY


def needs_jobs(dimensions: frozenset[str]) -> bool:
    """Whether these dimensions need the hours by job; the hours by team are far fewer."""
    return bool(dimensions & recorded_hours.JOB_DIMENSIONS)


def read_usage_periods(
    engine: Engine, ledger: UsageLedger | None, periods: Sequence[tuple[float, float]], *, by_job: bool
) -> list[usage.UsageTable]:
    """Read the usage table of each of consecutive periods; together they add up to the usage of the whole time."""
    period_start, tables = periods[0][0], []
    # Clusters that are down at the start of a window count as unknown, not as new or removed.
    before = UsageTally(period_start - MAX_DOWNTIME_SECONDS, period_start)
    previous = _fill_tally(engine, ledger, before, by_job=False, with_minutes=False)
    for since, until in periods:
        tally = _fill_tally(engine, ledger, UsageTally(since, until, period_start), by_job=by_job)
        tally.continue_from(previous)
        table = tally.build_table()
        tables.append(table if len(table.keys) else replace(table, notes=(*table.notes, NO_USAGE)))
        previous = tally
    return tables


def _fill_tally(
    engine: Engine, ledger: UsageLedger | None, tally: UsageTally, *, by_job: bool, with_minutes: bool = True
) -> UsageTally:
    since, until = tally.since, tally.until
    covered = [] if ledger is None else ledger.add_to_tally(tally, by_job=by_job)
    for start, end in _find_query_ranges(covered, since, until):
        part = UsageTally(start, end)
        covered += recorded_hours.add_hours(part, recorded_hours.read_hours(engine, start, end, by_job=by_job))
        tally.merge(part)
    for start, end in _find_query_ranges(covered, since, until) if with_minutes else ():
        recorded_hours.add_minutes(tally, engine, max(start, end - recorded_hours.MAX_MINUTES_SECONDS), end)
    return tally


def update_ledger(engine: Engine, ledger: UsageLedger, *, now: float) -> int:
    """Write the days with recorded hours that the ledger does not have yet; return the number of files written."""
    today = now // DAY * DAY
    # A day in the future comes from a clock that was set back since; ignore it.
    kept_days = [day for day in ledger.days() if day <= today]
    day = max(kept_days[-1] if kept_days else today - DAY, today - MAX_DAYS * DAY)
    written = 0
    while day <= today:
        until = min(day + DAY, now - SETTLE_SECONDS)
        if until - day >= HOUR:
            teams = _hours(engine, day, until, by_job=False)
            if ledger.is_missing_hours(day, teams):
                ledger.write_day(day, teams, _hours(engine, day, until, by_job=True))
                written += 1
        day += DAY
    return written


def _hours(engine: Engine, since: float, until: float, *, by_job: bool) -> recorded_hours.RecordedHours:
    """Read the full hours of a window: as recorded, or summed from minutes after a missed evaluation."""
    recorded = recorded_hours.read_hours(engine, since, until, by_job=by_job)
    recorded_starts = set(recorded.starts.tolist())
    missed = [start for start in np.arange(since, until - HOUR + 1, HOUR).tolist() if start not in recorded_starts]
    return recorded_hours.join_hours(recorded, recorded_hours.sum_hours_from_minutes(engine, missed, by_job=by_job))


def _find_query_ranges(covered: list[tuple[float, float]], since: float, until: float) -> list[tuple[float, float]]:
    gaps = time_ranges.find_gaps(covered, since=since, until=until)
    return [(start, end) for start, end in gaps if end - start >= recorded_hours.MINUTE]
