"""Which nodes are lemons: history against the fleet, without being fooled by chance or by little time."""

from __future__ import annotations

import csv
from datetime import timedelta

import pytest

from tests.diagnose.stories import NOON, an_incident, gpu
from tests.support.paths import SHARED
from watchkeeper.diagnose.lemons import History, Trend, chance_of, histories, rank_lemons, trend_queries
from watchkeeper.model import fleet
from watchkeeper.query.promql import parser

TITAN = SHARED / "corpus" / "traces" / "titan_monthly_failures.csv"


def unit(name: str, faults: int, months: float = 3.0) -> History:
    return History(name, months, faults, {"ecc_uncorrectable": faults} if faults else {})


def test_a_node_that_breaks_again_and_again_is_a_lemon_and_one_fault_is_luck() -> None:
    fleet_of = [unit(f"n{at}", 1 if at < 20 else 0) for at in range(200)]
    first, second, *_ = rank_lemons([*fleet_of, unit("bad", 6)])
    assert (first.name, first.is_lemon, first.reasons[0]) == ("bad", True, "6× ecc_uncorrectable")
    assert first.times_fleet > 10
    assert not second.is_lemon


def test_little_time_at_risk_is_drawn_towards_the_fleet() -> None:
    found = rank_lemons([*(unit(f"n{at}", 1) for at in range(50)), unit("new", 1, months=0.05), unit("old", 9)])
    assert [one.name for one in found][:2] == ["old", "new"]
    assert not found[1].is_lemon


def test_a_counter_that_grows_raises_the_hazard_and_is_a_reason() -> None:
    trend = Trend("n1", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "4 rows remapped")
    found = rank_lemons([unit("n1", 1), unit("n2", 1)], [trend])
    assert found[0].name == "n1"
    assert found[0].hazard == pytest.approx(3 * found[1].hazard)
    assert "4 rows remapped" in found[0].reasons


def test_faults_of_applications_do_not_count_and_a_return_does() -> None:
    app = an_incident("app_illegal_access", gpu(1), family="application")
    lost = an_incident("gpu_fell_off_bus", gpu(1), family="gpu_lost")
    places = [fleet.Place("main", node="n1"), fleet.Place("main", node="n2")]
    found = histories([app, lost], places, since=NOON - timedelta(days=30), now=NOON)
    assert [(one.name, one.faults) for one in found] == [("n1", 0 + 1), ("n2", 0)]


def test_no_faults_at_all_rank_nothing() -> None:
    assert rank_lemons([unit("n1", 0)]) == []
    assert rank_lemons([]) == []
    assert chance_of(0, 3.0) == 1.0


def test_the_questions_about_trends_are_promql() -> None:
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
    found = rank_lemons(units)
    by_rate = {one.name: one.faults / one.months for one in units if one.months > 10}
    assert [one.name for one in found if one.name in by_rate][:3] == sorted(by_rate, key=lambda name: -by_rate[name])[
        :3
    ]
    lemons = {one.name for one in found if one.is_lemon}
    assert max(by_rate, key=lambda name: by_rate[name]) in lemons
    # Two errors of 448 locations, and a month that counts errors of no location at all.
    assert not {"2014-01", *(one.name for one in units if not one.months)} & lemons
