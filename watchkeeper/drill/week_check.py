"""Check a learner's query on a simulated fleet: nothing while it is healthy, and the place of the fault after it.

`watchkeeper learn check` runs this. The expected place is the simulator's own, so any query that finds it passes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from watchkeeper.catalogue.quiz import Week
from watchkeeper.drill.monitored_fleet import HUB_INTERVALS, MonitoredFleet, temporary_fleet
from watchkeeper.kit import clock
from watchkeeper.query.promql import parser
from watchkeeper.sim.faults import SimFault
from watchkeeper.sim.simulation import SimSettings

FLEET_GPUS, SEED = 64, 7
# Rates of two minutes need this much history.
HISTORY_SECONDS = 180


@dataclass(frozen=True, slots=True)
class WeekResult:
    """`healthy` and `faulty` are the values of the week's label that the query returned before and after the fault."""

    week: int
    passed: bool
    why: str
    query: str
    label: str
    expected: tuple[str, ...]
    healthy: tuple[str, ...]
    faulty: tuple[str, ...]


def check_query(week: Week, query: str) -> WeekResult:
    """Run the query on the healthy fleet, and again after the fault of this week."""
    parser.parse(query)
    return asyncio.run(_check(week, query))


async def _check(week: Week, query: str) -> WeekResult:
    with temporary_fleet(SimSettings(gpus=FLEET_GPUS, seed=SEED), HUB_INTERVALS) as monitored:
        await monitored.advance(HISTORY_SECONDS)
        healthy = _label_values(monitored, query, week.label)
        fault = monitored.simulation.inject(week.drill)
        await monitored.advance(week.after_seconds)
        faulty, expected = _label_values(monitored, query, week.label), _expected(fault, week.label)
    why = judge(healthy, faulty, expected=expected, label=week.label)
    return WeekResult(week.week, not why, why, query, week.label, expected, healthy, faulty)


def judge(healthy: tuple[str, ...], faulty: tuple[str, ...], *, expected: tuple[str, ...], label: str) -> str:
    """Why the query does not pass; empty if it does."""
    if healthy:
        return f"on the healthy fleet it already returns {_list(healthy)}: as an alert it would fire without a fault"
    if not faulty:
        return f"after the fault it returns nothing; expected {label} {_list(expected)}"
    if "" in faulty:
        return f"its result has series without the label {label}; keep the label, for example with `by ({label})`"
    if faulty != expected:
        return f"after the fault it returns {_list(faulty)}; expected only {label} {_list(expected)}"
    return ""


def _label_values(monitored: MonitoredFleet, query: str, label: str) -> tuple[str, ...]:
    latest = monitored.engine.instant(query, clock.to_ms(monitored.simulation.now)).latest()
    return tuple(sorted({str(labels.get(label, "")) for labels in latest}))


def _expected(fault: SimFault, label: str) -> tuple[str, ...]:
    job = "" if fault.job is None else fault.job.name
    uuid = "" if fault.gpu is None else fault.gpu.uuid
    names = {
        "Hostname": fault.node.name,
        "instance": fault.node.name,
        "UUID": uuid,
        "pod": fault.pod,
        "job_name": job,
        "model_name": job,
    }
    return (names[label],)


def _list(values: tuple[str, ...], limit: int = 3) -> str:
    shown = ", ".join(value or "a series without the label" for value in values[:limit])
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"
