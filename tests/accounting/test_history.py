"""Two hours of a node, told to the shipped rules minute by minute: what is reported is what counting by hand finds."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.accounting.histories import EXPECTED, START, Minute, engine_of_history, minute_of, read_usage
from watchkeeper.accounting import ledger, summary, usage, usage_reader
from watchkeeper.catalogue import mig
from watchkeeper.kit import clock
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.query import embedded

SINCE = START.timestamp()
MINUTES = 124


def history() -> list[Minute]:
    """Holders change at any minute, a GPU falls off the bus, one is not measured, and the hub is away for a while."""
    dice, made = random.Random(14), []
    holders: list[str | None] = ["a1", "b1", None]
    for at in range(MINUTES):
        if dice.random() < 0.1:
            holders[dice.randrange(3)] = dice.choice(["a1", "a2", "b1", None])
        there = 2 if 30 <= at < 50 else 3
        active = [None if index == 1 and at < 20 else dice.choice([0.2, 0.9]) for index in range(there)]
        made.append(Minute(tuple(zip(holders[:there], active, strict=True)), is_watched=not 70 <= at < 90))
    return made


@pytest.fixture(scope="module")
def engine() -> embedded.EmbeddedEngine:
    return engine_of_history(history())


def by_hand(minutes: list[Minute]) -> dict[str, float]:
    amounts = dict.fromkeys(("allocated", "used", "unmeasured", "idle", "lost", "unknown"), 0.0)
    for minute in minutes:
        if not minute.is_watched:
            amounts["unknown"] += EXPECTED / 60
            continue
        amounts["lost"] += (EXPECTED - len(minute.gpus)) / 60
        for holder, active in minute.gpus:
            amounts["idle" if holder is None else "allocated"] += 1 / 60
            if holder is not None:
                amounts["unmeasured" if active is None else "used"] += (active if active is not None else 1.0) / 60
    return amounts


@pytest.mark.slow
def test_recorded_hours_are_what_counting_finds(engine: embedded.EmbeddedEngine) -> None:
    table = read_usage(engine, None, since=SINCE, until=SINCE + 7200, by_job=True)
    amounts, expected = summary.plain_amounts(summary.total(table)), by_hand(history()[:120])
    assert {name: amounts[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert amounts["total"] == pytest.approx(2 * EXPECTED, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", usage.DIMENSIONS)
def test_lines_of_every_dimension_sum_to_the_total(engine: embedded.EmbeddedEngine, name: str) -> None:
    table = read_usage(engine, None, since=SINCE, until=SINCE + 7200, by_job=True)
    summed = sum(line.amounts for line in summary.usage_lines(table, [name]))
    assert summed == pytest.approx(summary.total(table), rel=1e-9)


@pytest.mark.slow
def test_jobs_sum_to_teams_and_the_ledger_says_the_same_as_the_engine(
    engine: embedded.EmbeddedEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    kept = ledger.UsageLedger(folder)
    # A clock that ran ahead and was put back has left a day that is still to come.
    (folder / "2999-01-01.npz").touch()
    # From 22:00 to midnight; the day is closed five minutes into the next one.
    assert usage_reader.update_ledger(engine, kept, now=SINCE + 7200 + 600) == 1
    assert usage_reader.update_ledger(engine, kept, now=SINCE + 7200 + 600) == 0
    window = {"since": SINCE, "until": SINCE + 7200}
    teams = read_usage(engine, None, **window, by_job=False)
    for by_job in (True, False):
        again = read_usage(engine, kept, **window, by_job=by_job)
        assert summary.total(again) == pytest.approx(summary.total(teams), rel=1e-6)


@pytest.mark.slow
def test_minutes_stand_in_for_an_hour_that_is_not_recorded_yet(engine: embedded.EmbeddedEngine) -> None:
    table = read_usage(engine, None, since=SINCE + 7200, until=SINCE + 7200 + 180, by_job=True)
    amounts, expected = summary.plain_amounts(summary.total(table)), by_hand(history()[120:123])
    assert {name: amounts[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("by_job", [True, False])
def test_a_hub_that_is_killed_between_two_rules_makes_no_hour_longer_or_shorter(by_job: bool) -> None:
    steady = [Minute((("a1", 0.5), ("b1", 0.5), (None, 0.0)))] * MINUTES
    # After the holders, after what is allocated, in the middle of what is idle, before the last rule; then in the hour.
    minutes = {(at, "usage-minutes"): rules for at, rules in ((7, 4), (20, 9), (33, 16), (51, 22), (122, 10))}
    engine = engine_of_history(steady, cut={**minutes, (120, "usage-hours"): 3})
    for since, until in ((0, 60), (60, 120), (0, 120), (120, 124)):
        table = read_usage(engine, None, since=SINCE + since * 60, until=SINCE + until * 60, by_job=by_job)
        amounts = summary.plain_amounts(summary.total(table))
        assert amounts["total"] == pytest.approx(EXPECTED * (until - since) / 60, rel=1e-4)
        # What is written of a minute that nobody finished moves the parts by that minute at most.
        unfinished = sum(since <= at < until for at, _ in minutes)
        assert amounts["allocated"] == pytest.approx(amounts["total"] / 2, rel=1e-4, abs=unfinished * 2 / 60)


@pytest.mark.parametrize(
    ("profile", "share"),
    [
        ("", 1), ("1g.18gb", 1 / 7), ("3g.71gb", 3 / 7), ("7g.141gb", 1),
        ("1g.6gb+me", 1 / 4), ("2g.12gb", 1 / 2), ("4g.24gb", 1),
    ],
)  # fmt: skip
def test_a_slice_of_a_gpu_that_nobody_knows_counts_by_its_profile(profile: str, share: float) -> None:
    gpu = {"cluster": "sim", "Hostname": "n1", "UUID": "GPU-0", "modelName": "NVIDIA"}
    held = {**gpu, "GPU_I_ID": "1", "GPU_I_PROFILE": profile, "workload": "a", "workload_kind": "pod", "team": "a"}
    engine = minute_of(
        {
            Labels({METRIC_NAME: "DCGM_FI_DEV_GPU_TEMP", **gpu}): 40.0,
            Labels({METRIC_NAME: "watchkeeper_gpu_workload_info", **held}): 1.0,
        }
    )
    for name, expected in (("workload_gpus:sum{part='allocated'}", share), ("fleet_gpus:sum{part='idle'}", 1 - share)):
        answer = engine.instant(f"sum(watchkeeper:{name})", clock.to_ms(START))
        assert list(answer.latest().values()) == pytest.approx([expected])


def test_every_slice_of_the_catalogue_counts_as_its_part_of_the_gpu_it_is_cut_from() -> None:
    samples: dict[Labels, float] = {}
    expected: dict[str, float] = {}
    for gpu in mig.gpus().values():
        for model, profile in itertools.product(gpu.models, mig.profiles(gpu.name).values()):
            uuid = f"{model} {profile.name}"
            place = {"cluster": "sim", "Hostname": "n1", "UUID": uuid}
            held = {**place, "GPU_I_ID": "1", "GPU_I_PROFILE": profile.name, "workload": uuid, "workload_kind": "pod"}
            samples[Labels({METRIC_NAME: "DCGM_FI_DEV_GPU_TEMP", **place, "modelName": f"NVIDIA {model}"})] = 40.0
            samples[Labels({METRIC_NAME: "watchkeeper_gpu_workload_info", **held})] = 1.0
            expected[uuid] = profile.compute / gpu.compute
    answer = minute_of(samples).instant("sum by (UUID) (watchkeeper:gpu_held:share)", clock.to_ms(START)).latest()
    assert {labels.get("UUID"): share for labels, share in answer.items()} == pytest.approx(expected)
