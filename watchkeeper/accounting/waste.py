"""List waste by owner: hours allocated and idle, and their cost, the most expensive first.

It reads a `cost.UsageBill`; `statement`, `GET /api/cost/waste` and `watchkeeper cost report` show the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.accounting import cost, summary, usage

# People do not read a longer list.
MAX_OWNERS = 20


@dataclass(frozen=True, slots=True)
class WastedHours:
    """GPU-hours that an owner's job wasted; `money` is None if the GPU has no price."""

    team: str
    user: str
    job: str
    gpu_hours: float
    money: float | None


def wasted_by_owner(bill: cost.UsageBill, row_indexes: Sequence[int]) -> list[WastedHours]:
    """Return the waste in some rows of a bill by owner, the most expensive first."""
    table, rows = bill.table, bill.rows
    team, user, job, namespace = (summary.dimension_index(name) for name in ("team", "user", "job", "namespace"))
    hours: dict[tuple[str, str, str], float] = defaultdict(float)
    money: dict[tuple[str, str, str], float] = defaultdict(float)
    for index in row_indexes:
        gpu_hours, key = float(table.amounts[index, usage.WASTED]), table.keys[index]
        if gpu_hours <= 0:
            continue
        job_name = f"{key[namespace]}/{key[job]}" if key[namespace] and key[job] else key[job]
        owner = (usage.display_value(key[team]), usage.display_value(key[user]), usage.display_value(job_name))
        hours[owner] += gpu_hours
        if rows.gpu_prices[rows.price_index[index]].price is not None:
            money[owner] += float(rows.wasted[index])
    wasted = [WastedHours(*owner, gpu_hours, money.get(owner)) for owner, gpu_hours in hours.items()]
    wasted.sort(key=lambda by_owner: (-(by_owner.money or 0.0), -by_owner.gpu_hours, by_owner.job))
    return wasted[:MAX_OWNERS]
