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
    found = replay_advice(list(loads), cluster="c", model="chat", step_seconds=MINUTE)
    assert found is not None
    return found


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
def test_the_most_that_any_number_asks_for_is_wanted(load: ModelLoad, have: int, want: int) -> None:
    assert advise_replicas(load, have)[0] == want


def test_an_advice_that_is_cut_off_says_so() -> None:
    assert advise_replicas(ModelLoad(0, 4, waiting=1000.0), 4)[1].endswith("; the advice is limited to 8")


def test_without_a_queue_or_an_objective_nothing_is_advised() -> None:
    assert advise_replicas(ModelLoad(0, 3), 3)[0] is None


def test_a_rush_would_have_been_met_and_replicas_given_back_slowly() -> None:
    found = followed(
        ModelLoad(60.0 * at, 2, waiting=80.0 if 10 <= at < 30 else 0.0, requests_per_second=4.0, replica_capacity=4.0)
        for at in range(120)
    )
    assert found.crowded_seconds == 20 * 60
    # Nobody knows of a rush before it is there: the replicas of the first minute are those that there were.
    assert found.advised_crowded_seconds == 60
    assert found.steps[0].desired == 2
    assert max(step.desired for step in found.steps) == MAX_REPLICAS
    down = [later.at for earlier, later in itertools.pairwise(found.steps) if later.desired < earlier.desired]
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
    found = followed(a_day())
    assert (found.actual_replica_hours, found.actual_changes) == (pytest.approx(96.0), 0)
    # One at night, four at noon, between them one for each ten requests a second: a tenth more is put up with before
    # another is wanted, and each is kept for ten minutes.
    needed = sum(max(1, math.ceil((load.requests_per_second or 0.0) / 10.0)) for load in a_day()[:-1]) / 60
    assert found.advised_replica_hours == pytest.approx(needed, abs=2)
    assert {step.desired for step in found.steps} == {1, 2, 3, 4}
    # Down three times in the first night, up three times, and down three times in the evening.
    assert found.advised_changes == 9
    # On each way up a minute passes in which more comes in than those that are there have shown.
    assert (found.advised_crowded_seconds, found.advised_late_seconds) == (180.0, 180.0)


def test_the_minutes_until_a_sudden_load_is_noticed_count_as_late() -> None:
    quiet = [
        ModelLoad(at * MINUTE, 4, waiting=0.0, requests_per_second=1.0, burn=0.0, replica_capacity=10.0)
        for at in range(120)
    ]
    noon = [
        ModelLoad(at * MINUTE, 4, waiting=0.0, requests_per_second=40.0, burn=0.0, replica_capacity=10.0)
        for at in range(120, 180)
    ]
    found = followed([*quiet, *noon])
    assert (found.late_seconds, found.advised_late_seconds) == (0.0, 60.0)
    assert found.advised_crowded_seconds == 60.0


def test_late_requests_are_told_where_an_objective_is_measured_and_more_replicas_are_taken_to_help() -> None:
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
    found = followed(loads)
    # A third replica from minute 61 on, for as long as two are known to be too few and ten minutes more.
    assert (found.late_seconds, found.advised_late_seconds) == (30 * 60.0, 60.0)
    assert [(step.at / 60, step.desired) for step in found.steps] == [(0, 2), (60, 3), (99, 2)]
    without = followed([ModelLoad(at * MINUTE, 2, waiting=0.0) for at in range(10)])
    assert (without.late_seconds, without.advised_late_seconds) == (None, None)


def test_a_queue_that_two_replicas_never_got_rid_of_would_not_have_been_there_with_more() -> None:
    """Two that answer all they can, and a queue that is as long as it may become, for three hours of four."""
    found = followed(
        ModelLoad(at * MINUTE, 2, waiting=400.0 if at >= 60 else 0.0, requests_per_second=24.0, replica_capacity=12.0)
        for at in range(241)
    )
    assert (found.crowded_seconds, found.advised_crowded_seconds) == (180 * 60.0, 60.0)
    # All that may be at once, and one given up after another until a third is left, which is known to be needed.
    assert [step.desired for step in found.steps] == [2, 8, 7, 6, 5, 4, 3]


def test_of_hours_in_which_nothing_was_seen_nothing_is_claimed() -> None:
    seen = [ModelLoad(at * MINUTE, 2, waiting=100.0) for at in (*range(60), *range(300, 361))]
    found = followed(seen)
    assert found.observed_seconds == 59 * 60 + 60 * 60
    assert found.actual_replica_hours == pytest.approx(2 * found.observed_seconds / 3600)
    assert found.crowded_seconds == found.observed_seconds
    assert (found.since, found.until) == (0.0, 360 * 60.0)


def test_one_point_or_two_far_apart_are_no_past() -> None:
    assert replay_advice([], cluster="c", model="chat", step_seconds=60) is None
    assert replay_advice([ModelLoad(0, 1)], cluster="c", model="chat", step_seconds=60) is None
    assert replay_advice([ModelLoad(0, 1), ModelLoad(7200, 1)], cluster="c", model="chat", step_seconds=60) is None


@pytest.mark.slow
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_queue_that_is_not_a_number_is_not_known_and_costs_no_other_model_its_advice(odd: float) -> None:
    engine = embedded.EmbeddedEngine(head.Head(retention_ms=3_600_000))
    waiting = {"chat": 60.0, "broken": odd}
    for at_ms in (0, 60_000, 120_000):
        for model, value in waiting.items():
            own = {"cluster": "c", "model_name": model}
            told = {"watchkeeper:inference_replicas:count": 2.0, "inference_requests_waiting": value}
            engine.appender.append(
                Sample(Labels({"__name__": name, **own}), at_ms, number) for name, number in told.items()
            )
    advised, problems = advise_now(engine, 120_000, {})
    assert [(one.model, one.desired, problems) for one in advised] == [("broken", None, []), ("chat", 6, [])]
    found = replay_model(engine, QueryRange(0, 120_000, 60_000), {}, cluster="c", model="broken")
    assert found is not None
    assert (found.observed_seconds, found.advised_replica_hours) == (120.0, found.actual_replica_hours)
