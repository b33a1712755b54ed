"""The life of an alert, told in minutes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.errors import QueryError
from watchkeeper.model.alerts import Alert, AlertState
from watchkeeper.model.labels import Labels
from watchkeeper.rules import alerting, rulefile, templates

START = datetime(2026, 1, 1, tzinfo=UTC)
GPU = Labels({"__name__": "celsius", "node": "n7", "gpu": "3"})
# Which state may follow which; None is inactive, which is not kept.
MOVES = {
    None: {AlertState.PENDING, AlertState.FIRING},
    AlertState.PENDING: {None, AlertState.FIRING},
    AlertState.FIRING: {AlertState.RESOLVED},
    AlertState.RESOLVED: {None, AlertState.PENDING, AlertState.FIRING},
}


def alert_rule(*, hold: float = 0, keep: float = 0, **labels: str) -> rulefile.AlertingRule:
    """Times in minutes."""
    return rulefile.AlertingRule(
        name="GpuHot",
        expr="celsius > 90",
        hold_seconds=hold * 60,
        keep_firing_seconds=keep * 60,
        labels={name: templates.parse_template(text) for name, text in labels.items()},
        annotations={"summary": templates.parse_template("{{ $labels.node }} reads {{ $value }}")},
        path="r.yaml",
        line=1,
    )


def states(rule: rulefile.AlertingRule, story: Iterable[tuple[float, bool]]) -> list[tuple[float, str]]:
    """The minute of each change of the one alert's state, for a story of (minute, is hot)."""
    alerts: dict[Labels, Alert] = {}
    transitions: list[tuple[float, str]] = []
    for minute, is_hot in story:
        moved = alerting.step(rule, alerts, {GPU: 95.0} if is_hot else {}, now=START + timedelta(minutes=minute))
        alerts = dict(moved.alerts)
        state = next((alert.state.value for alert in alerts.values()), "inactive")
        if state != (transitions[-1][1] if transitions else "inactive"):
            transitions.append((minute, state))
    return transitions


def test_a_gpu_that_cools_before_the_hold_never_fires() -> None:
    story = [(0, True), (4, True), (5, False), (6, True), (11, True)]
    assert states(alert_rule(hold=5), story) == [(0, "pending"), (5, "inactive"), (6, "pending"), (11, "firing")]


def test_without_a_hold_an_alert_fires_at_once() -> None:
    assert states(alert_rule(), [(0, True)]) == [(0, "firing")]


def test_a_resolved_alert_is_kept_for_a_quarter_of_an_hour() -> None:
    story = [(0, True), (1, False), (16, False), (16.1, False)]
    assert states(alert_rule(), story) == [(0, "firing"), (1, "resolved"), (16.1, "inactive")]


def test_a_resolved_alert_that_returns_starts_its_hold_again() -> None:
    story = [(0, True), (2, True), (3, False), (4, True), (6, True)]
    assert states(alert_rule(hold=2), story) == [
        (0, "pending"),
        (2, "firing"),
        (3, "resolved"),
        (4, "pending"),
        (6, "firing"),
    ]


def test_an_alert_keeps_firing_through_gaps_shorter_than_keep_firing_for() -> None:
    story = [(0, True), (1, False), (5, True), (6, False), (10, False), (11, False)]
    assert states(alert_rule(keep=5), story) == [(0, "firing"), (11, "resolved")]


def test_a_clock_that_goes_back_does_not_extend_the_hold() -> None:
    story = [(180, True), (1, True), (5, True), (6, True)]
    assert states(alert_rule(hold=5), story) == [(180, "pending"), (6, "firing")]


def test_a_clock_that_goes_back_does_not_keep_an_alert_firing() -> None:
    story = [(180, True), (181, False), (1, False), (5, False), (6, False)]
    assert states(alert_rule(keep=5), story) == [(180, "firing"), (6, "resolved")]


def test_labels_come_from_the_series_and_the_rule_and_annotations_follow_the_value() -> None:
    rule = alert_rule(severity="critical", node="{{ toUpper $labels.node }}", gpu="")
    moved = alerting.step(rule, {}, {GPU: 95.0}, now=START)
    (alert,) = moved.alerts.values()
    assert alert.labels == Labels({"alertname": "GpuHot", "node": "N7", "severity": "critical"})
    assert alert.annotations == {"summary": "n7 reads 95"}
    later = alerting.step(rule, moved.alerts, {GPU: 96.5}, now=START + timedelta(minutes=1))
    (alert,) = later.alerts.values()
    assert (alert.active_at, alert.value, alert.annotations["summary"]) == (START, 96.5, "n7 reads 96.5")


def test_only_the_beginning_and_the_end_of_firing_are_changes() -> None:
    rule = alert_rule(hold=1)
    moved = alerting.step(rule, {}, {GPU: 95.0}, now=START)
    assert moved.changes == ()
    fired = alerting.step(rule, moved.alerts, {GPU: 95.0}, now=START + timedelta(minutes=1))
    assert [(alert.state, alert.fired_at) for alert in fired.changes] == [("firing", START + timedelta(minutes=1))]
    still = alerting.step(rule, fired.alerts, {GPU: 95.0}, now=START + timedelta(minutes=2))
    assert still.changes == ()
    ended = alerting.step(rule, still.alerts, {}, now=START + timedelta(minutes=3))
    assert [(alert.state, alert.resolved_at) for alert in ended.changes] == [("resolved", START + timedelta(minutes=3))]


def test_two_series_that_become_one_alert_are_an_error() -> None:
    other = GPU.with_labels(gpu="4")
    with pytest.raises(QueryError, match="same alert"):
        alerting.step(alert_rule(gpu=""), {}, {GPU: 95.0, other: 96.0}, now=START)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30),
    st.integers(0, 10),
    st.integers(0, 10),
)
def test_no_sequence_makes_an_illegal_transition(story: list[tuple[int, bool]], hold: int, keep: int) -> None:
    rule, alerts, minute = alert_rule(hold=hold, keep=keep), {}, 0
    before: AlertState | None = None
    for pause, is_hot in story:
        minute += pause
        alerts = alerting.step(rule, alerts, {GPU: 1.0} if is_hot else {}, now=START + timedelta(minutes=minute)).alerts
        after = next((alert.state for alert in alerts.values()), None)
        assert after == before or after in MOVES[before]
        before = after
