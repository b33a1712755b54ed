"""The phases of a step: every moment belongs to one phase, and waits are not compute time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from watchkeeper.instrument import step_clock
from watchkeeper.instrument.step_clock import Phase, StepClock


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(step_clock, "perf_counter", made)
    return made


def spend(clock: StepClock, hands: Hands, phase: Phase, seconds: float) -> None:
    clock.enter(phase)
    hands.now += seconds
    clock.leave()


def test_waits_and_pauses_are_not_compute_time(hands: Hands) -> None:
    clock = StepClock()
    for phase in Phase:
        spend(clock, hands, phase, 1.0)
    hands.now += 0.5
    clock.end_step(hands.now)
    assert clock.compute_seconds(hands.now) == pytest.approx(3.5)
    assert clock.wall_seconds == pytest.approx(7.5)
    assert clock.totals == [1.0] * len(Phase)


def test_the_histogram_has_steps_without_their_pauses_and_without_the_first(hands: Hands) -> None:
    clock = StepClock()
    for seconds in (50.0, 0.2, 3.0):
        spend(clock, hands, Phase.INPUT, seconds)
        spend(clock, hands, Phase.CHECKPOINT, 70.0)
        clock.end_step(hands.now)
    counts = dict(zip(clock.durations.bounds, clock.durations.counts, strict=False))
    assert {bound for bound, count in counts.items() if count} == {0.25, 5.0}
    assert clock.durations.total == pytest.approx(3.2)


def test_a_phase_inside_another_is_not_counted_twice(hands: Hands) -> None:
    clock = StepClock()
    clock.enter(Phase.BACKWARD)
    hands.now += 1.0
    spend(clock, hands, Phase.COMMUNICATION, 2.0)
    hands.now += 3.0
    clock.leave()
    clock.end_step(hands.now)
    assert (clock.totals[Phase.BACKWARD], clock.totals[Phase.COMMUNICATION]) == (4.0, 2.0)


def test_the_wait_of_a_backward_pass_for_other_ranks_is_measured(hands: Hands) -> None:
    clock = StepClock()
    clock.enter(Phase.BACKWARD)
    hands.now += 1.0
    clock.record_gradients_sent()
    hands.now += 5.0
    clock.leave()
    clock.end_step(hands.now)
    assert clock.compute_seconds(hands.now) == pytest.approx(1.0)
    assert clock.totals[Phase.COMMUNICATION] == pytest.approx(5.0)


def test_one_slow_step_of_many_does_not_move_the_compute_time(hands: Hands) -> None:
    clock = StepClock()
    for seconds in (1.0, 1.0, 9.0, 1.0, 1.0):
        hands.now += seconds
        clock.end_step(hands.now)
    assert clock.compute_seconds(hands.now) == 1.0


def test_steps_longer_than_a_minute_are_measured_by_the_last_one(hands: Hands) -> None:
    clock = StepClock()
    assert clock.compute_seconds(hands.now) is None
    for seconds in (200.0, 300.0):
        hands.now += seconds
        clock.end_step(hands.now)
    assert clock.compute_seconds(hands.now + 500) == 300.0


def test_a_pause_is_open_until_it_is_left(hands: Hands) -> None:
    clock = StepClock()
    clock.enter(Phase.VALIDATION)
    clock.enter(Phase.FORWARD)
    assert clock.current_pause() is Phase.VALIDATION
    clock.leave()
    clock.leave()
    assert clock.current_pause() is None
    clock.leave()


@given(some.lists(some.tuples(some.sampled_from(list(Phase)), some.integers(0, 50), some.booleans()), max_size=30))
def test_every_moment_is_counted_once(moves: list[tuple[Phase, int, bool]]) -> None:
    hands = Hands()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_clock, "perf_counter", hands)
        clock, outside = StepClock(), 0
        for phase, seconds, is_entered in moves:
            if is_entered:
                clock.enter(phase)
            outside += 0 if clock._open_phases else seconds
            hands.now += seconds
            if not is_entered:
                clock.leave()
        clock.move_to(None)
        while clock._open_phases:
            clock.leave()
        clock.end_step(hands.now)
    assert sum(clock.totals) + outside == pytest.approx(clock.wall_seconds)
