"""Replica advice, and what following it would have done."""

from __future__ import annotations

import itertools

import pytest

from watchkeeper.workloads.replicas import CALM_SECONDS, LARGEST, SHRINK_EVERY_SECONDS, Load, follow, wanted


@pytest.mark.parametrize(
    ("load", "have", "want"),
    [
        (Load(0, 2, waiting=0.0, requests_per_second=10.0, shown=8.0), 2, 2),
        (Load(0, 2, waiting=60.0), 2, 6),
        (Load(0, 2, waiting=21.0), 2, 2),
        (Load(0, 4, waiting=0.0, requests_per_second=3.0, shown=8.0), 4, 1),
        (Load(0, 4, waiting=0.0, burn=3.0), 4, 6),
        (Load(0, 4, waiting=1000.0), 4, LARGEST),
        (Load(0, 1, waiting=0.0), 1, 1),
    ],
)
def test_the_most_that_any_number_asks_for_is_wanted(load: Load, have: int, want: int) -> None:
    assert wanted(load, have)[0] == want


def test_without_a_queue_or_an_objective_nothing_is_advised() -> None:
    assert wanted(Load(0, 3), 3)[0] is None


def test_a_rush_would_have_been_met_and_replicas_given_back_slowly() -> None:
    loads = [
        Load(60.0 * at, 2, waiting=80.0 if 10 <= at < 30 else 0.0, requests_per_second=4.0, shown=4.0)
        for at in range(120)
    ]
    past = follow(loads, cluster="c", model="chat")
    assert past is not None
    assert past.crowded_seconds == 20 * 60
    assert past.would_crowded_seconds == 0
    assert past.steps[0].wanted == 2
    assert max(step.wanted for step in past.steps) == LARGEST
    down = [later.at for earlier, later in itertools.pairwise(past.steps) if later.wanted < earlier.wanted]
    assert down[0] >= 10 * 60 + CALM_SECONDS
    assert all(later - earlier >= SHRINK_EVERY_SECONDS for earlier, later in itertools.pairwise(down))


def test_one_point_is_no_past() -> None:
    assert follow([Load(0, 1)], cluster="c", model="chat") is None
