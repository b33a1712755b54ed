"""Idle money with its owner named: GPUs that somebody held and did not use, the most expensive first.

Rows of a `cost.Bill` in; `statement`, `GET /api/cost/waste` and `watchkeeper cost report` show what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.accounting import cost, summary, usage

# Named owner by owner; a list longer than this nobody reads.
MOST_WASTE = 20


@dataclass(frozen=True, slots=True)
class WastedHours:
    """GPUs that somebody holds and does not use, with who that is and what it costs; None where there is no price."""

    team: str
    user: str
    job: str
    gpu_hours: float
    money: float | None


def wasted_by_owner(whole: cost.UsageBill, chosen: Sequence[int], *, most: int = MOST_WASTE) -> list[WastedHours]:
    """Idle money of some rows with its owner named, the most expensive first."""
    table, rows = whole.table, whole.rows
    team, user, job, space = (summary.dimension_index(name) for name in ("team", "user", "job", "namespace"))
    hours: dict[tuple[str, str, str], float] = {}
    money: dict[tuple[str, str, str], float] = {}
    for at in chosen:
        gpu_hours, key = float(table.amounts[at, usage.WASTED]), table.keys[at]
        if gpu_hours <= 0:
            continue
        called = f"{key[space]}/{key[job]}" if key[space] and key[job] else key[job]
        owner = (usage.shown(key[team]), usage.shown(key[user]), usage.shown(called))
        hours[owner] = hours.get(owner, 0.0) + gpu_hours
        if rows.offers[rows.offer[at]].price is not None:
            money[owner] = money.get(owner, 0.0) + float(rows.wasted[at])
    found = [WastedHours(*owner, gpu_hours, money.get(owner)) for owner, gpu_hours in hours.items()]
    return sorted(found, key=lambda one: (-(one.money or 0.0), -one.gpu_hours, one.job))[:most]
