"""Folding events into conditions: the laws that make a restart harmless."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.model.strategies import clear_rules, few_events
from watchkeeper.model.events import ClearRule, Condition, Event, EventKind, condition_key, fold_conditions
from watchkeeper.model.fleet import Place

NINE = datetime(2026, 1, 31, 9, tzinfo=UTC)
END = NINE + timedelta(hours=1)
NODE = Place("main", node="n1")
GPU = Place("main", node="n1", gpu="GPU-1")


def event(second: int, kind: EventKind = EventKind.XID, *, place: Place = GPU, id: str | None = None) -> Event:
    code = 79 if kind is EventKind.XID else None
    return Event(id or f"{kind}-{second}", kind, code, place, NINE + timedelta(seconds=second), "")


def only(events: list[Event], rule: ClearRule, second: int) -> Condition:
    (condition,) = fold_conditions(events, rule, NINE + timedelta(seconds=second)).values()
    return condition


@given(few_events, clear_rules, st.randoms())
def test_order_and_repetition_of_events_do_not_matter(events: list[Event], rule: ClearRule, random: object) -> None:
    again = events * 2
    random.shuffle(again)  # type: ignore[attr-defined]
    assert fold_conditions(again, rule, END) == fold_conditions(events, rule, END)


@given(few_events, clear_rules, st.integers(0, 700))
def test_future_events_change_nothing(events: list[Event], rule: ClearRule, second: int) -> None:
    now = NINE + timedelta(seconds=second)
    assert fold_conditions(events, rule, now) == fold_conditions(
        [event for event in events if event.at <= now], rule, now
    )


@given(few_events, clear_rules)
def test_a_condition_matches_its_events(events: list[Event], rule: ClearRule) -> None:
    for key, condition in fold_conditions(events, rule, END).items():
        own = [event.at for event in events if condition_key(event) == key]
        assert condition.since in own
        assert condition.last == max(own)
        assert 1 <= condition.count <= len(own)
        assert condition.since <= condition.last <= (condition.cleared_at or END)


def test_a_retried_push_counts_once() -> None:
    assert only([event(0, id="x"), event(0, id="x")], ClearRule(), 10).count == 1


def test_a_condition_repeats_while_it_is_open() -> None:
    condition = only([event(0), event(30)], ClearRule(quiet_seconds=60), 80)
    assert (condition.count, condition.since, condition.is_open) == (2, NINE, True)


def test_a_condition_clears_at_the_end_of_the_quiet_time_and_not_when_someone_looks() -> None:
    condition = only([event(0)], ClearRule(quiet_seconds=60), 3000)
    assert (condition.cleared_at, condition.cleared_why) == (NINE + timedelta(seconds=60), "quiet for 60 s")


def test_a_condition_that_returns_after_clearing_starts_again() -> None:
    condition = only([event(0), event(100)], ClearRule(quiet_seconds=60), 110)
    assert (condition.count, condition.since, condition.is_open) == (1, NINE + timedelta(seconds=100), True)


def test_a_boot_of_the_node_clears_conditions_of_its_gpus() -> None:
    rule = ClearRule(cleared_by=frozenset({EventKind.NODE_BOOT}))
    condition = only([event(0), event(20, EventKind.NODE_BOOT, place=NODE)], rule, 30)
    assert condition.cleared_why == "node_boot node_boot-20"


def test_a_reset_of_another_gpu_clears_nothing() -> None:
    rule = ClearRule(cleared_by=frozenset({EventKind.GPU_RESET}))
    other = Place("main", node="n1", gpu="GPU-2")
    assert only([event(0), event(20, EventKind.GPU_RESET, place=other)], rule, 30).is_open
