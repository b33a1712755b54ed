"""Lemon nodes: fault history compared with the fleet, corrected for chance and for little time."""

from __future__ import annotations

import csv
from datetime import timedelta

import pytest

from tests.diagnose.stories import NOON, an_incident, gpu
from tests.support.paths import SHARED
from watchkeeper.diagnose.lemons import (
    CounterTrend,
    FaultHistory,
    chance_of_faults,
    fault_histories,
    rank_lemons,
    trend_queries,
)
from watchkeeper.model import fleet
from watchkeeper.query.promql import parser

TITAN = SHARED / "corpus" / "traces" / "titan_monthly_failures.csv"


def unit(name: str, faults: int, months: float = 3.0) -> FaultHistory:
    return FaultHistory(name, months, faults, {"ecc_uncorrectable": faults} if faults else {})


def test_a_node_that_fails_repeatedly_is_a_lemon_and_one_fault_is_chance() -> None:
    fleet_of = [unit(f"n{at}", 1 if at < 20 else 0) for at in range(200)]
    first, second, *_ = rank_lemons([*fleet_of, unit("bad", 6)])
    assert (first.name, first.is_lemon, first.reasons[0]) == ("bad", True, "6× ecc_uncorrectable")
    assert first.times_fleet > 10
    assert not second.is_lemon


def test_a_node_with_little_time_is_shifted_towards_the_fleet_rate() -> None:
    lemons = rank_lemons([*(unit(f"n{at}", 1) for at in range(50)), unit("new", 1, months=0.05), unit("old", 9)])
    assert [lemon.name for lemon in lemons][:2] == ["old", "new"]
    assert not lemons[1].is_lemon


def test_a_counter_that_grows_raises_the_hazard_and_is_a_reason() -> None:
    trend = CounterTrend("n1", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "4 rows remapped")
    lemons = rank_lemons([unit("n1", 1), unit("n2", 1)], [trend])
    assert lemons[0].name == "n1"
    assert lemons[0].hazard == pytest.approx(3 * lemons[1].hazard)
    assert "4 rows remapped" in lemons[0].reasons


def test_faults_of_applications_do_not_count_and_a_return_does() -> None:
    app = an_incident("app_illegal_access", gpu(1), family="application")
    lost = an_incident("gpu_fell_off_bus", gpu(1), family="gpu_lost")
    places = [fleet.Place("main", node="n1"), fleet.Place("main", node="n2")]
    histories = fault_histories([app, lost], places, since=NOON - timedelta(days=30), now=NOON)
    assert [(history.name, history.faults) for history in histories] == [("n1", 0 + 1), ("n2", 0)]


def test_no_faults_at_all_rank_nothing() -> None:
    assert rank_lemons([unit("n1", 0)]) == []
    assert rank_lemons([]) == []
    assert chance_of_faults(0, 3.0) == 1.0


def test_the_trend_queries_are_valid_promql() -> None:
    for expr in trend_queries().values():
        parser.parse(expr)


@pytest.mark.skipif(not TITAN.exists(), reason="the shared traces are not here")
def test_real_months_rank_by_rate_and_not_by_a_lucky_small_start() -> None:
    """18,000 locations a month for years, and a first month of 448: its two errors must not make it the worst."""
    with TITAN.open() as file:
        rows = list(csv.DictReader(file))
    units = [
        unit(row["month"], int(row["double_bit_events"]), int(row["locations_with_gpu_mid_month"]) / 1000)
        for row in rows
    ]
    lemons = rank_lemons(units)
    by_rate = {unit.name: unit.faults / unit.months for unit in units if unit.months > 10}
    assert [lemon.name for lemon in lemons if lemon.name in by_rate][:3] == sorted(
        by_rate, key=lambda name: -by_rate[name]
    )[:3]
    lemons = {lemon.name for lemon in lemons if lemon.is_lemon}
    assert max(by_rate, key=lambda name: by_rate[name]) in lemons
    # Two errors of 448 locations, and a month that counts errors of no location at all.
    assert not {"2014-01", *(unit.name for unit in units if not unit.months)} & lemons
