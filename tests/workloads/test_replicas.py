"""Replica advice, and what following it would have done."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest

from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.query.engine import QueryRange
from watchkeeper.store.head import head
from watchkeeper.workloads.replicas import (
    CALM_SECONDS,
    MAX_REPLICAS,
    SHRINK_EVERY_SECONDS,
    ModelLoad,
    ReplicasReplay,
    advise_now,
    advise_replicas,
    replay_advice,
    replay_model,
)  # fmt: skip

MINUTE, DAY_MINUTES = 60.0, 24 * 60


def followed(loads: Iterable[ModelLoad]) -> ReplicasReplay:
    replay = replay_advice(list(loads), cluster="c", model="chat", step_seconds=MINUTE)
    assert replay is not None
    return replay


@pytest.mark.parametrize(
    ("load", "have", "want"),
    [
        (ModelLoad(0, 2, waiting=0.0, requests_per_second=10.0, replica_capacity=8.0), 2, 2),
        (ModelLoad(0, 2, waiting=60.0), 2, 6),
        (ModelLoad(0, 2, waiting=21.0), 2, 2),
        (ModelLoad(0, 4, waiting=0.0, requests_per_second=3.0, replica_capacity=8.0), 4, 1),
        (ModelLoad(0, 4, waiting=0.0, burn=3.0), 4, 6),
        (ModelLoad(0, 4, waiting=1000.0), 4, MAX_REPLICAS),
        (ModelLoad(0, 1, waiting=0.0), 1, 1),
        # No request for a day: nothing is shown.
        (ModelLoad(0, 3, waiting=0.0, requests_per_second=0.0), 3, 1),
        # More than has been shown is no reason for more replicas, until requests wait or come late.
        (ModelLoad(0, 2, waiting=0.0, requests_per_second=30.0, replica_capacity=10.0), 2, 2),
        # But it is for as many as there have been.
        (ModelLoad(0, 3, waiting=0.0, requests_per_second=30.0, replica_capacity=10.0), 1, 3),
        # More than we would ever advise are there already: a queue is no reason to give some up.
        (ModelLoad(0, 12, waiting=1000.0), 12, 12),
    ],
)
def test_the_highest_demand_sets_the_desired_replicas(load: ModelLoad, have: int, want: int) -> None:
    assert advise_replicas(load, have)[0] == want


def test_an_advice_that_is_cut_off_says_so() -> None:
    assert advise_replicas(ModelLoad(0, 4, waiting=1000.0), 4)[1].endswith("; the advice is limited to 8")


def test_without_a_queue_or_an_objective_nothing_is_advised() -> None:
    assert advise_replicas(ModelLoad(0, 3), 3)[0] is None


def test_a_rush_would_have_been_met_and_replicas_given_back_slowly() -> None:
    replay = followed(
        ModelLoad(60.0 * at, 2, waiting=80.0 if 10 <= at < 30 else 0.0, requests_per_second=4.0, replica_capacity=4.0)
        for at in range(120)
    )
    assert replay.crowded_seconds == 20 * 60
    # A rush is unknown before it starts: the first minute has the replicas from before.
    assert replay.advised_crowded_seconds == 60
    assert replay.steps[0].desired == 2
    assert max(step.desired for step in replay.steps) == MAX_REPLICAS
    down = [later.at for earlier, later in itertools.pairwise(replay.steps) if later.desired < earlier.desired]
    assert down[0] >= 10 * 60 + CALM_SECONDS
    assert all(later - earlier >= SHRINK_EVERY_SECONDS for earlier, later in itertools.pairwise(down))


def a_day(replicas: int = 4, peak: float = 40.0) -> list[ModelLoad]:
    """Ten requests a second for each replica at noon, next to none at night, and never a queue."""
    return [
        ModelLoad(
            at * MINUTE,
            replicas,
            waiting=0.0,
            requests_per_second=peak * (0.51 - 0.49 * math.cos(2 * math.pi * at / DAY_MINUTES)),
            burn=0.0,
            replica_capacity=peak / replicas,
        )
        for at in range(DAY_MINUTES + 1)
    ]


def test_replicas_given_up_at_night_are_back_for_the_day_though_no_queue_was_ever_recorded() -> None:
    replay = followed(a_day())
    assert (replay.actual_replica_hours, replay.actual_changes) == (pytest.approx(96.0), 0)
    # One at night, four at noon, between them one for each ten requests a second: a tenth more is put up with before
    # another is wanted, and each is kept for ten minutes.
    needed = sum(max(1, math.ceil((load.requests_per_second or 0.0) / 10.0)) for load in a_day()[:-1]) / 60
    assert replay.advised_replica_hours == pytest.approx(needed, abs=2)
    assert {step.desired for step in replay.steps} == {1, 2, 3, 4}
    # Down three times in the first night, up three times, and down three times in the evening.
    assert replay.advised_changes == 9
    # On each way up a minute passes in which more comes in than those that are there have shown.
    assert (replay.advised_crowded_seconds, replay.advised_late_seconds) == (180.0, 180.0)


def test_the_minutes_until_a_sudden_load_is_noticed_count_as_late() -> None:
    quiet = [
        ModelLoad(at * MINUTE, 4, waiting=0.0, requests_per_second=1.0, burn=0.0, replica_capacity=10.0)
        for at in range(120)
    ]
    noon = [
        ModelLoad(at * MINUTE, 4, waiting=0.0, requests_per_second=40.0, burn=0.0, replica_capacity=10.0)
        for at in range(120, 180)
    ]
    replay = followed([*quiet, *noon])
    assert (replay.late_seconds, replay.advised_late_seconds) == (0.0, 60.0)
    assert replay.advised_crowded_seconds == 60.0


def test_late_requests_are_reported_if_an_objective_is_measured() -> None:
    loads = [
        ModelLoad(
            at * MINUTE,
            2,
            waiting=0.0,
            requests_per_second=20.0,
            burn=3.0 if 60 <= at < 90 else 0.2,
            replica_capacity=10.0,
        )
        for at in range(120)
    ]
    replay = followed(loads)
    # A third replica from minute 61 on, for as long as two are known to be too few and ten minutes more.
    assert (replay.late_seconds, replay.advised_late_seconds) == (30 * 60.0, 60.0)
    assert [(step.at / 60, step.desired) for step in replay.steps] == [(0, 2), (60, 3), (99, 2)]
    without = followed([ModelLoad(at * MINUTE, 2, waiting=0.0) for at in range(10)])
    assert (without.late_seconds, without.advised_late_seconds) == (None, None)


def test_a_queue_that_two_replicas_never_got_rid_of_would_not_have_been_there_with_more() -> None:
    """Two that answer all they can, and a queue that is as long as it may become, for three hours of four."""
    replay = followed(
        ModelLoad(at * MINUTE, 2, waiting=400.0 if at >= 60 else 0.0, requests_per_second=24.0, replica_capacity=12.0)
        for at in range(241)
    )
    assert (replay.crowded_seconds, replay.advised_crowded_seconds) == (180 * 60.0, 60.0)
    # All that may be at once, and one given up after another until a third is left, which is known to be needed.
    assert [step.desired for step in replay.steps] == [2, 8, 7, 6, 5, 4, 3]


def test_gaps_without_samples_are_skipped() -> None:
    loads = [ModelLoad(at * MINUTE, 2, waiting=100.0) for at in (*range(60), *range(300, 361))]
    replay = followed(loads)
    assert replay.observed_seconds == 59 * 60 + 60 * 60
    assert replay.actual_replica_hours == pytest.approx(2 * replay.observed_seconds / 3600)
    assert replay.crowded_seconds == replay.observed_seconds
    assert (replay.since, replay.until) == (0.0, 360 * 60.0)


def test_one_point_or_two_far_apart_are_no_past() -> None:
    assert replay_advice([], cluster="c", model="chat", step_seconds=60) is None
    assert replay_advice([ModelLoad(0, 1)], cluster="c", model="chat", step_seconds=60) is None
    assert replay_advice([ModelLoad(0, 1), ModelLoad(7200, 1)], cluster="c", model="chat", step_seconds=60) is None


@pytest.mark.slow
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_nan_queue_is_unknown_and_affects_no_other_model(odd: float) -> None:
    engine = embedded.EmbeddedEngine(head.Head(retention_ms=3_600_000))
    waiting = {"chat": 60.0, "broken": odd}
    for at_ms in (0, 60_000, 120_000):
        for model, value in waiting.items():
            own = {"cluster": "c", "model_name": model}
            series = {"watchkeeper:inference_replicas:count": 2.0, "inference_requests_waiting": value}
            engine.appender.append(
                Sample(Labels({"__name__": name, **own}), at_ms, number) for name, number in series.items()
            )
    advised, problems = advise_now(engine, 120_000, {})
    assert [(advice.model, advice.desired, problems) for advice in advised] == [("broken", None, []), ("chat", 6, [])]
    replay = replay_model(engine, QueryRange(0, 120_000, 60_000), {}, cluster="c", model="broken")
    assert replay is not None
    assert (replay.observed_seconds, replay.advised_replica_hours) == (120.0, replay.actual_replica_hours)
