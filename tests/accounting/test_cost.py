"""Money: whatever the policy and however lines are cut, they sum to the bill; holes are listed and never guessed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.accounting import budgets, cost, report_files, summary, usage
from watchkeeper.accounting.tally import unowned_key
from watchkeeper.catalogue import prices
from watchkeeper.client import answers, reading
from watchkeeper.errors import PackError
from watchkeeper.kit import wire

DAY = 86_400.0
BOOK = prices.PriceBook(
    prices=(
        prices.Price("H200", prices.PriceKind.ON_DEMAND, 5.0),
        prices.Price("H200", prices.PriceKind.RESERVED, 3.0),
        prices.Price("H100 80GB", prices.PriceKind.ON_DEMAND, 4.0),
        prices.Price("A100", prices.PriceKind.OWN, 1.0),
    ),
    pools={
        "own": prices.PricePool("own", prices.PriceKind.OWN),
        "kept": prices.PricePool("kept", prices.PriceKind.RESERVED),
    },
    pue=1.5,
    power_per_kwh=0.2,
    overhead_per_month=cost.MONTH_HOURS,
)


def row(team: str, *, model: str = "NVIDIA H200", pool: str = "", **parts: float) -> tuple[usage.Key, list[float]]:
    owner = {"model": model, "pool": pool}
    key = (
        unowned_key(**owner)
        if team == usage.UNOWNED
        else usage.make_key(team=team, job=f"{team}-job", user="ana", **owner)
    )
    return key, [parts.get(name, 0.0) for name in usage.PARTS]


def table(*rows: tuple[usage.Key, list[float]]) -> usage.UsageTable:
    return usage.UsageTable(0.0, DAY, tuple(key for key, _ in rows), np.array([amounts for _, amounts in rows]))


FLEET = table(
    row("vision", allocated=10, used=6, wasted=2),
    row("speech", model="NVIDIA H100 80GB HBM3", allocated=30, used=6),
    row("speech", model="NVIDIA A100-SXM4-80GB", pool="own", allocated=4, used=1, kwh=2.0),
    row(usage.UNOWNED, idle=8, lost=2, unknown=1),
    row(usage.UNOWNED, pool="kept", idle=5),
)


def money(policy: cost.Policy, by: str = "team") -> dict[str, float]:
    return {line.names[0]: line.money for line in cost.create_report(FLEET, BOOK, [by], policy=policy).lines}


def test_showback_leaves_what_nobody_held_as_a_line_of_its_own() -> None:
    # 11 hours at 5, 5 reserved ones at 3, and 24 hours of overhead at 1.
    assert money(cost.Policy.NONE) == pytest.approx(
        {"vision": 50.0, "speech": 120 + 4 + 2 * 1.5 * 0.2, "(nobody)": 55 + 15 + 24}
    )
    shared = cost.create_report(FLEET, BOOK, ["team"]).shared
    assert shared == pytest.approx({"idle": 40, "lost": 10, "unknown": 5, "reserved, idle": 15, "overhead": 24})


@pytest.mark.parametrize(
    ("policy", "vision"),
    [(cost.Policy.ALLOCATION, 94 * 10 / 44), (cost.Policy.USE, 94 * 6 / 13), (cost.Policy.EVEN, 47)],
)
def test_chargeback_splits_it_by_the_named_policy(policy: cost.Policy, vision: float) -> None:
    assert money(policy)["vision"] == pytest.approx(50 + vision)
    assert money(policy)["(nobody)"] == 0


amounts = st.fixed_dictionaries({name: st.floats(0, 100) for name in usage.PARTS})
teams = st.sampled_from(["a", "b", "c", usage.UNOWNED])
models = st.sampled_from(["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "GeForce"])
drawn = st.lists(st.tuples(teams, models, st.sampled_from(["", "own", "kept"]), amounts), min_size=1, max_size=8)


@given(drawn, st.sampled_from(list(cost.Policy)), st.sampled_from(usage.DIMENSIONS))
def test_lines_sum_to_the_bill_however_they_are_cut(
    rows: list[tuple[str, str, str, dict[str, float]]], policy: cost.Policy, by: str
) -> None:
    usage_table = table(*(row(team, model=model, pool=pool, **parts) for team, model, pool, parts in rows))
    bill = cost.create_report(usage_table, BOOK, ["team"]).money
    whole = cost.create_report(usage_table, BOOK, [by], policy=policy)
    assert whole.money == pytest.approx(bill, rel=1e-9, abs=1e-9)
    hours = sum(usage.total(line.hours) for line in whole.lines)
    assert hours == pytest.approx(usage.total(summary.total(usage_table)))


def test_of_more_lines_than_an_answer_has_the_rest_is_one_and_the_sum_is_whole() -> None:
    whole = cost.create_report(FLEET, BOOK, ["team", "job"])
    assert cost.limit_lines(whole, max_lines=len(whole.lines)) is whole
    limited = cost.limit_lines(whole, max_lines=2)
    assert [line.names for line in limited.lines] == [whole.lines[0].names, (summary.REST, summary.REST)]
    assert limited.money == pytest.approx(whole.money)
    assert f"{len(whole.lines) - 1} of {len(whole.lines)} lines are combined" in limited.notes[-1]


@pytest.mark.parametrize("policy", list(cost.Policy))
def test_jobs_of_a_team_sum_to_what_the_team_pays(policy: cost.Policy) -> None:
    jobs = cost.create_report(FLEET, BOOK, ["job", "model"], policy=policy, filters={"team": "speech"})
    assert [line.names for line in jobs.lines] == [
        ("speech-job", "NVIDIA H100 80GB HBM3"),
        ("speech-job", "NVIDIA A100-SXM4-80GB"),
    ]
    assert jobs.money == pytest.approx(money(policy)["speech"])


def test_a_hole_in_the_book_is_listed_and_in_no_sum() -> None:
    report = cost.create_report(
        table(row("a", model="GeForce", allocated=7), row("b", model="", allocated=2)), BOOK, ["team"]
    )
    assert report.unpriced_by_model == {"GeForce": 7, "an unknown model": 2}
    assert [line.unpriced_hours for line in report.lines if line.names[0] in "ab"] == [7, 2]
    assert "7.0 GPU-hours of GeForce have no price and are not in any cost" in report.notes
    assert "2.0 GPU-hours of an unknown model have no price and are not in any cost" in report.notes


def test_idle_money_has_its_owner_named() -> None:
    assert cost.wasted_by_owner(cost.price_usage([FLEET], BOOK), range(len(FLEET.keys))) == [
        cost.WastedHours("vision", "ana", "vision-job", 2.0, 10.0)
    ]


def test_nobody_to_charge_is_said() -> None:
    report = cost.create_report(table(row(usage.UNOWNED, idle=1)), BOOK, ["team"], policy=cost.Policy.USE)
    assert report.money == pytest.approx(5 + 24)
    assert "policy use: no owner has hours to charge; the shared cost stays on a separate line" in report.notes


def test_the_shipped_book_has_sources_and_dates() -> None:
    book = prices.shipped_book()
    assert book.prices
    assert not book.problems
    assert all(price.source and price.checked for price in book.prices)
    assert book.rate("NVIDIA L40S", "") is None


def test_own_hardware_is_depreciated_over_its_years() -> None:
    bought = "purchase_per_gpu=40000\nresidual_per_gpu=4936\nyears=4\noverhead_per_gpu_hour=0.5"
    text = f'[[price]]\nmodel="H200"\nkind="own"\n{bought}'
    assert prices.read_book(f'kind="own"\n{text}', where="x").rate("NVIDIA H200", "") == prices.Price(
        "H200", prices.PriceKind.OWN, pytest.approx(35_064 / (4 * 8766) + 0.5)
    )


def test_the_only_region_of_a_book_prices_pools_that_name_none_and_two_price_neither() -> None:
    east, west = (
        prices.Price("H200", prices.PriceKind.ON_DEMAND, at, region=name) for name, at in (("e", 4.0), ("w", 5.0))
    )
    pools = {"south": prices.PricePool("south", region="s")}
    east_book, two = (
        prices.PriceBook("USD", prices=book_prices, pools=pools) for book_prices in ((east,), (east, west))
    )
    assert east_book.rate("NVIDIA H200", "") == east
    assert east_book.rate("NVIDIA H200", "south") is None
    assert two.rate("NVIDIA H200", "") is None


def test_a_region_has_its_price_before_any_and_names_match_by_whole_words() -> None:
    book = prices.PriceBook(
        prices=(
            prices.Price("H100", prices.PriceKind.ON_DEMAND, 4.0),
            prices.Price("H100", prices.PriceKind.ON_DEMAND, 6.0, region="eu"),
        ),
        pools={"north": prices.PricePool("north", region="eu")},
    )
    rates = {pool: book.rate("NVIDIA H100 80GB HBM3", pool) for pool in ("", "north")}
    assert {pool: rate and rate.per_gpu_hour for pool, rate in rates.items()} == {"": 4.0, "north": 6.0}
    assert book.rate("NVIDIA GH1000", "") is None


DATED = """
[[price]]
model = "H200"
per_gpu_hour = 1
[[price]]
model = "H200"
per_gpu_hour = 2
from = 1970-01-03
[[price]]
model = "L4"
per_gpu_hour = 5
from = 1970-01-03
"""


def test_hours_cost_what_the_book_said_at_their_time() -> None:
    book = prices.read_book(DATED, where="b")
    assert not book.problems
    assert book.price_periods(0.0, 3 * DAY) == [(0.0, 2 * DAY), (2 * DAY, 3 * DAY)]
    assert book.price_periods(2 * DAY, 3 * DAY) == [(2 * DAY, 3 * DAY)]
    pieces = [
        replace(table(row("a", allocated=48), row("b", model="L4", allocated=1)), until=2 * DAY),
        replace(table(row("a", allocated=24), row("b", model="L4", allocated=1)), since=2 * DAY, until=3 * DAY),
    ]
    report = cost.create_bill_report(cost.price_usage(pieces, book), ["team"])
    assert {line.names[0]: line.money for line in report.lines} == {"a": 48 * 1 + 24 * 2, "b": 5}
    assert [(name, price.per_gpu_hour) for name, price in report.rates] == [
        ("L4 from 1970-01-03", 5), ("NVIDIA H200", 1), ("NVIDIA H200 from 1970-01-03", 2),
    ]  # fmt: skip
    hole = "1.0 GPU-hours of L4 have no price and are not in any cost"
    assert report.notes == (f"{hole}; the book has on_demand from 1970-01-03, and these are on_demand",)


def test_a_price_begins_on_a_day_and_not_on_a_word() -> None:
    text = '[[price]]\nmodel="H200"\nper_gpu_hour=1\nfrom="soon"\n'
    assert prices.read_book(text, where="b").problems == (
        "b: price 1 ('H200'): from of 'soon' must be a day such as 2026-11-15, without quotation marks; ignored",
    )


def test_opencost_csv_is_read_and_its_bad_rows_are_named() -> None:
    text = (
        "EndTimestamp,InstanceID,Region,AssetClass,InstanceIDField,InstanceType,MarketPriceHourly,Version\n"
        "2026-01-01 00:00:00 UTC,Quadro_RTX_4000,,gpu,nvidia.com/gpu_type,,0.75,\n"
        ",A100,,gpu,gpu.nvidia.com/class,,dear,\n"
        ",worker-a,,node,metadata.name,,0.24,\n"
    )
    book = prices.read_book(text, where="opencost.csv")
    rate = book.rate("Quadro RTX 4000", "")
    assert rate is not None
    assert rate.per_gpu_hour == 0.75
    assert book.problems[0].startswith("opencost.csv:3: MarketPriceHourly of 'dear' must be a number of at least 0")
    assert "1 rows price nodes or volumes" in book.problems[1]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_opencost_csv_of_any_spreadsheet_is_read(separator: str, ending: str) -> None:
    rows = ("instanceid,region,assetclass,marketpricehourly", "H200,,gpu,3.5", "H200,,gpu,4", "A100,,gpu,1_0")
    text = "\ufeff" + ending.join(rows).replace(",", separator)
    book = prices.read_book(text, where="o.csv")
    assert [(price.model, price.per_gpu_hour) for price in book.prices] == [("H200", 3.5)]
    assert book.problems == (
        "o.csv:3: 'H200' has a price already (duplicate row); ignored",
        "o.csv:4: MarketPriceHourly of '1_0' must be a number of at least 0; ignored",
    )


def test_rows_of_a_book_that_cannot_be_used_are_named_one_by_one() -> None:
    text = (
        '[[price]]\nmodel="H200"\nper_gpu_hour=-1\n[[price]]\nmodel="A100"\n[[price]]\nmodel="L4"\nkind="rented"\n'
        '[budgets]\nvision="much"\n'
    )
    book = prices.read_book(text, where="book.toml")
    assert not book.prices
    for problem_start in (
        "price 1 ('H200'): per_gpu_hour of -1",
        "price 2 ('A100'): per_gpu_hour is missing",
        "budgets.vision",
    ):
        assert any(problem_start in problem for problem in book.problems)
    with pytest.raises(PackError, match="not a price book"):
        prices.read_book("not = [", where="book.toml")
    with pytest.raises(PackError, match=r"pue of 0\.2 must be a number of at least 1"):
        prices.read_book("pue = 0.2", where="book.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("budgets = 5", "`budgets` must be written as [budgets]"),
        ("[[budgets]]\nteam = 1", "`budgets` must be written as [budgets]"),
        ('kind = "rent"', "kind of 'rent' must be one of on_demand, reserved, own"),
        ("currency = 5", "currency of 5 must be text"),
    ],
)
def test_a_book_that_cannot_be_used_says_why(text: str, problem: str) -> None:
    with pytest.raises(PackError) as refused:
        prices.read_book(text, where="book.toml")
    assert problem in str(refused.value)


def test_words_of_a_row_that_mean_nothing_and_second_prices_are_named() -> None:
    row = '[[price]]\nmodel="H200"\nkind="own"\npurchase_per_gpu=1000\nyears=4\n'
    text = (
        f'{row}residual=900\n{row}[[pool]]\nregion="eu"\n[[pool]]\nname="p"\nkind="rent"\n[[pool]]\nname="q"\nzone=1\n'
    )
    assert prices.read_book(text, where="b").problems == (
        "b: price 1 ('H200'): unknown key residual, ignored",
        "b: price 2 ('H200'): duplicate price, ignored",
        "b: pool 1: name is missing; ignored",
        "b: pool 2: kind of 'rent' must be one of on_demand, reserved, own; ignored",
        "b: pool 3: unknown key zone, ignored",
    )


def test_of_many_bad_rows_the_first_are_named_and_the_rest_is_counted() -> None:
    header = "InstanceID,Region,AssetClass,MarketPriceHourly\n"
    problems = prices.read_book(header + "H200,,gpu,dear\n" * 50 + "n,,node,1\n", where="o.csv").problems
    assert problems[20:] == (
        "o.csv: and 30 more",
        "o.csv: 1 rows price nodes or volumes and were ignored",
    )


def test_a_hole_says_what_the_book_has_instead() -> None:
    reserved = prices.Price("H200", prices.PriceKind.RESERVED, 3.0)
    east, west = (prices.Price("H100", prices.PriceKind.ON_DEMAND, 4.0, region=name) for name in ("east", "west"))
    book = prices.PriceBook(prices=(reserved, east, west))
    report = cost.create_report(
        table(row("a", allocated=1), row("b", model="NVIDIA H100 PCIe", allocated=1)), book, ["team"]
    )
    assert [note.partition("; ")[2] for note in report.notes] == [
        "the book has on_demand in east, on_demand in west, and these are on_demand",
        "the book has reserved, and these are on_demand",
    ]


def test_the_run_rate_and_its_interval_judge_a_budget() -> None:
    rest, low, high = budgets.forecast_run_rate([10, 12, 8, 10], 10)
    assert rest == 100
    assert low is not None
    assert high is not None
    assert low < 100 < high
    assert budgets.forecast_run_rate([10], 10) == (100, None, None)
    team_budgets = budgets.evaluate_teams(
        {"a": [10, 10, 10], "b": [10, 10, 10], "c": [8, 12, 10], "d": [1, 1, 1]},
        {"a": 30, "b": 30, "c": 30, "d": 3},
        {"a": 29, "b": 100, "c": 135, "d": 100},
        days_left=10,
    )
    assert [(team_budget.team, team_budget.state.value) for team_budget in team_budgets] == [
        ("a", "over"), ("b", "will_be_over"), ("c", "may_be_over"), ("d", "within"),
    ]  # fmt: skip


def test_a_fleet_of_half_a_day_has_a_run_rate_too() -> None:
    day = usage.UsageTable(0.0, DAY / 2, FLEET.keys, FLEET.amounts)
    report = budgets.report_month_budgets(cost.price_usage([day], BOOK), [day], ends=DAY / 2 + 10 * DAY)
    by_team = {team_budget["team"]: team_budget for team_budget in report["budgets"]}
    assert by_team["vision"]["forecast"] == pytest.approx(50 + 10 * 100)
    assert by_team["vision"]["low"] is None


def month_of(*days: usage.UsageTable) -> usage.UsageTable:
    keys = [key for day in days for key in day.keys]
    return usage.UsageTable(
        0.0, len(days) * DAY, keys, np.concatenate([day.amounts for day in days]), ("of the month",)
    )


def later(day: usage.UsageTable, at: int) -> usage.UsageTable:
    return replace(day, since=at * DAY, until=(at + 1) * DAY, notes=(f"of day {at}",))


def test_what_has_no_price_costs_an_unknown_amount_and_its_budget_is_unknown() -> None:
    book = replace(BOOK, budgets={"a": 100.0}, overhead_per_month=0.0)
    day = table(row("a", model="GeForce", allocated=7, wasted=2), row("b", allocated=2))
    report = cost.report_as_json(cost.create_report(day, book, ["team"]))
    a, b = sorted(report["lines"], key=lambda line: line["team"])
    assert [a[name] for name in ("money", "direct", "energy", "wasted_money", "shared")] == [None, None, None, None, 0]
    assert b["money"] == report["money"] == report["total"]["money"] > 0
    assert (
        cost.report_as_json(cost.create_report(table(row("a", model="GeForce", allocated=7)), book, ["team"]))["money"]
        is None
    )
    assert report_files.to_csv(report).splitlines()[2].startswith("a,,,,0,,7,")
    assert reading.read_answer(answers.CostReport, wire.to_plain(report)).total.money == report["money"]
    judged = {
        team_budget["team"]: team_budget
        for team_budget in budgets.report_month_budgets(cost.price_usage([day], book), [day], ends=30 * DAY)["budgets"]
    }
    assert (judged["a"]["spent"], judged["a"]["forecast"], judged["a"]["state"]) == (None, None, "unknown")
    assert judged["b"]["spent"] > 0


def test_what_is_said_of_a_month_is_said_once_with_all_its_hours() -> None:
    days = [later(table(row("a", model="GeForce", allocated=7 * (at + 1))), at) for at in range(3)]
    notes = budgets.report_month_budgets(cost.price_usage([month_of(*days)], BOOK), days, ends=30 * DAY)["notes"]
    assert notes == ["of the month", "42.0 GPU-hours of GeForce have no price and are not in any cost"]


@pytest.mark.parametrize("policy", list(cost.Policy))
def test_a_budget_has_spent_what_the_report_of_the_month_says(policy: cost.Policy) -> None:
    days = [
        later(table(row("a", allocated=10, used=1), row("b", allocated=30, used=9), row(usage.UNOWNED, idle=90)), 0),
        later(table(row("a", allocated=30, used=6), row("b", allocated=10, used=3), row(usage.UNOWNED, idle=10)), 1),
    ]
    report = cost.create_report(month_of(*days), BOOK, ["team"], policy=policy)
    team_budgets = budgets.report_month_budgets(
        cost.price_usage([month_of(*days)], BOOK, policy=policy), days, ends=2 * DAY
    )["budgets"]
    expected = {line.names[0]: line.money for line in report.lines if usage.UNOWNED not in line.names}
    assert {team_budget["team"]: team_budget["spent"] for team_budget in team_budgets} == pytest.approx(expected)
    assert {team_budget["team"]: team_budget["forecast"] for team_budget in team_budgets} == pytest.approx(expected)


def test_a_day_that_nobody_saw_tells_nothing_about_others() -> None:
    recorded_day = table(row("a", allocated=24), row(usage.UNOWNED, idle=24))
    days = [
        later(day, at)
        for at, day in enumerate((recorded_day, table(row(usage.UNOWNED, unknown=48)), recorded_day, recorded_day))
    ]
    team_budgets = budgets.report_month_budgets(cost.price_usage([month_of(*days)], BOOK), days, ends=14 * DAY)[
        "budgets"
    ]
    assert team_budgets[0]["forecast"] == pytest.approx((3 + 10) * 24 * 5)


def test_where_no_day_is_whole_a_silent_one_tells_nothing_either() -> None:
    half = table(row("a", allocated=12), row(usage.UNOWNED, idle=12, unknown=24))
    days = [later(day, at) for at, day in enumerate((half, table(row(usage.UNOWNED, unknown=48))))]
    team_budgets = budgets.report_month_budgets(cost.price_usage([month_of(*days)], BOOK), days, ends=3 * DAY)[
        "budgets"
    ]
    assert team_budgets[0]["forecast"] == pytest.approx((12 + 12) * 5)


def test_no_overhead_is_claimed_before_records_begin() -> None:
    report = cost.create_report(replace(FLEET, first=DAY / 2), BOOK, ["team"])
    assert report.shared["overhead"] == pytest.approx(12)


def test_who_is_not_measured_bears_nothing_by_use_and_that_is_said() -> None:
    rows = (row("a", allocated=4, used=2), row("b", allocated=4, unmeasured=4), row(usage.UNOWNED, idle=8))
    report = cost.create_report(table(*rows), BOOK, ["team"], policy=cost.Policy.USE)
    assert {line.names[0]: line.shared for line in report.lines} == pytest.approx({"a": 64, "b": 0, "(nobody)": 0})
    assert "4.0 allocated GPU-hours are unmeasured and get no share of the shared cost" in report.notes


def test_the_bill_of_a_fleet_that_is_new_says_for_how_long_it_is() -> None:
    begun = replace(FLEET, first=DAY - 1800)
    bills = [cost.report_as_json(cost.create_report(usage_table, BOOK, ["team"])) for usage_table in (FLEET, begun)]
    assert [bill["recorded_hours"] for bill in bills] == [24.0, 0.5]
