"""Create the monthly statements: one page for each team, all from the same bill.

`GET /api/cost/statements` uses the hub's records, `watchkeeper cost statement --jobs` a table of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from watchkeeper.accounting import cost, statement, summary, usage
from watchkeeper.errors import CollectError

SUMMARY_DIMENSIONS, JOB_DIMENSIONS = ("project", "user", "model"), ("job", "model")


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """Which statements to create; empty `teams` means all teams, `filters` select a part of each."""

    month: str
    zone: ZoneInfo
    teams: tuple[str, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement of one team for a month; `money` is None if none of its GPUs has a price."""

    month: str
    team: str
    money: float | None
    currency: str
    page: str


def create_statements(bill: cost.UsageBill, request: StatementRequest) -> Iterator[Statement]:
    """Create at least one statement; raise CollectError if no team, or not a requested team, used a GPU."""
    rows: dict[str, list[int]] = {}
    for index in summary.matching_rows(bill.table, request.filters):
        rows.setdefault(usage.display_value(bill.table.keys[index][cost.TEAM]), []).append(index)
    rows.pop(usage.UNOWNED, None)
    unknown_teams = [team for team in request.teams if team not in rows and team not in request.budgets]
    if unknown_teams or not rows:
        subject = f"no team `{unknown_teams[0][:60]}`" if unknown_teams else "no team"
        now = f"Teams that used GPUs: {', '.join(sorted(rows))[:200]}" if rows else None
        remedy = "Run `watchkeeper usage --from … --to …` to list usage"
        raise CollectError(f"{subject} used a GPU in {request.month}", now=now, remedy=remedy)
    for team in request.teams or sorted(rows):
        yield _create_statement(bill, request, team, rows.get(team, []))


def _create_statement(bill: cost.UsageBill, request: StatementRequest, team: str, row_indexes: list[int]) -> Statement:
    filters = {**request.filters, "team": team}
    parts, jobs = (
        cost.create_bill_report(bill, by, filters=filters, row_indexes=row_indexes)
        for by in (SUMMARY_DIMENSIONS, JOB_DIMENSIONS)
    )
    page = statement.StatementPage(
        f"GPU statement of {team}, {request.month}",
        cost.report_as_json(parts),
        request.zone,
        cost.report_as_json(jobs),
        [asdict(wasted_hours) for wasted_hours in cost.wasted_by_owner(bill, row_indexes)],
        request.budgets.get(team),
    )
    return Statement(request.month, team, parts.known_money, parts.currency, statement.render_statement(page))
