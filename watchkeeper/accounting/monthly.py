"""The statements of a month: a page for each team, all of them views of one bill that is read and priced once.

`GET /api/cost/statements` makes them from the hub's records, `watchkeeper cost statement --jobs` from a table of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from watchkeeper.accounting import cost, statement, summary, usage, waste
from watchkeeper.errors import CollectError

PARTS_BY, JOBS_BY = ("project", "user", "model"), ("job", "model")


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """Which statements; no `teams` are all, and `of` keeps a part of each."""

    month: str
    zone: ZoneInfo
    teams: tuple[str, ...] = ()
    of: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statement:
    """One team's month: what it pays, None where no GPU of it has a price, and the page that says why."""

    month: str
    team: str
    money: float | None
    currency: str
    page: str


def statements(whole: cost.UsageBill, wanted: StatementRequest) -> Iterator[Statement]:
    """At least one; CollectError where nobody held anything, or a team that was named did not."""
    rows: dict[str, list[int]] = {}
    for at in summary.matching_rows(whole.table, wanted.of):
        rows.setdefault(usage.shown(whole.table.keys[at][cost.TEAM]), []).append(at)
    rows.pop(usage.NOBODY, None)
    _check(wanted, rows)
    for team in wanted.teams or sorted(rows):
        yield _statement(whole, wanted, team, rows.get(team, []))


def _check(wanted: StatementRequest, rows: Mapping[str, list[int]]) -> None:
    strangers = [team for team in wanted.teams if team not in rows and team not in wanted.budgets]
    if strangers or not rows:
        whom = f"no team `{strangers[0][:60]}`" if strangers else "no team"
        now = f"Those who did: {', '.join(sorted(rows))[:200]}" if rows else None
        remedy = "Look at `watchkeeper usage --from … --to …`"
        raise CollectError(f"{whom} held a GPU in {wanted.month}", now=now, remedy=remedy)


def _statement(whole: cost.UsageBill, wanted: StatementRequest, team: str, chosen: list[int]) -> Statement:
    of = {**wanted.of, "team": team}
    parts, jobs = (cost.report_bill(whole, by, of=of, chosen=chosen) for by in (PARTS_BY, JOBS_BY))
    page = statement.StatementPage(
        f"GPU statement of {team}, {wanted.month}",
        cost.report_as_json(parts),
        wanted.zone,
        cost.report_as_json(jobs),
        [asdict(one) for one in waste.wasted_by_owner(whole, chosen)],
        wanted.budgets.get(team),
    )
    return Statement(wanted.month, team, parts.known_money, parts.currency, statement.render_statement(page))
