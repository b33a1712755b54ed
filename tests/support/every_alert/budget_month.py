"""The budget series of a hub in the middle of a month, from a usage ledger of the days before.

A live hub may run on the first days of a month, on which there is no forecast: so the clock is given here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from watchkeeper.accounting import budget_watch, ledger, recorded_hours, usage
from watchkeeper.accounting.price_file import PriceFile
from watchkeeper.kit import own_metrics
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query import embedded
from watchkeeper.store.head import head

NOW = datetime(2026, 11, 15, 6, 0, tzinfo=UTC)
FIRST_DAY = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
HOUR, DAY = 3600.0, 86_400.0
# Each team has one GPU all the time: 48 dollars a day, 672 so far.
TEAMS = ("over", "soon")
PRICES = """currency = "USD"
[[price]]
model = "H200"
kind = "on_demand"
per_gpu_hour = 2.0
[budgets]
over = 500
soon = 1000
"""


def series(folder: Path) -> Iterator[tuple[Mapping[str, str], str]]:
    """What the page of such a hub has, in promtool's notation: the same at all times."""
    (folder / "prices.toml").write_text(PRICES)
    usage_ledger = ledger.UsageLedger(folder / "usage")
    for day in np.arange(FIRST_DAY, NOW.timestamp() - DAY, DAY).tolist():
        hours = _hours_of_a_day(day)
        usage_ledger.write_day(day, hours, hours)
    metrics = own_metrics.Registry()
    price_file = PriceFile(str(folder / "prices.toml"), fallback=1.0)
    watch = budget_watch.BudgetWatch(price_file, folder / "usage", metrics=metrics)
    watch.update(embedded.EmbeddedEngine(head.Head(retention_ms=int(DAY) * 1000)), NOW)
    for metric in metrics.metrics.values():
        for labels, value in metric.samples():
            yield {METRIC_NAME: metric.name, "job": "watchkeeper-hub", "cluster": "sim", **dict(labels)}, f"{value}x999"


def _hours_of_a_day(day: float) -> recorded_hours.RecordedHours:
    keys = [usage.make_key(cluster="sim", team=team, model="NVIDIA H200") for team in TEAMS]
    amounts = np.zeros((24 * len(keys), len(usage.PARTS)))
    amounts[:, usage.ALLOCATED] = 1.0
    starts = np.repeat(day + np.arange(24) * HOUR, len(keys))
    shares = {"sim": {day + at * HOUR: 1.0 for at in range(24)}}
    return recorded_hours.RecordedHours(starts, keys * 24, amounts, shares)
