"""Rules over history: what they would have said, and when."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.group_evaluation import evaluate_group
from watchkeeper.kit import clock
from watchkeeper.model.alerts import AlertState
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.rules import replay, rulefile, series_notation
from watchkeeper.store import recording
from watchkeeper.store.head import head

MINUTE_MS = 60_000
START_MS = 1_700_000_040_000


def filled(*lines: str) -> embedded.EmbeddedEngine:
    """An engine with these series, one value a minute."""
    kept = head.Head(retention_ms=30 * 24 * 3_600_000)
    series = []
    for line in lines:
        name, _, text = line.rpartition(": ")
        pairs = [
            (START_MS + at * MINUTE_MS, v) for at, v in enumerate(series_notation.parse_values(text)) if v is not None
        ]
        times, values = np.array([at for at, _ in pairs]), np.array([value for _, value in pairs])
        series.append((series_notation.parse_labels(name), times, values))
    recording.load_series(series, kept, until_ms=START_MS + 10_000 * MINUTE_MS)
    return embedded.EmbeddedEngine(kept)


def replayed(rules: str, *lines: str, minutes: int = 15) -> replay.Timeline:
    text = "groups:\n- name: g\n  rules:\n" + "".join(f"  - {rule}\n" for rule in rules.splitlines())
    window = replay.ReplayWindow(START_MS, START_MS + minutes * MINUTE_MS, 60.0)
    return run(rulefile.read_rules({"r.yaml": text}), filled(*lines), window)


def run(rule_set: rulefile.RuleSet, engine: embedded.EmbeddedEngine, window: replay.ReplayWindow) -> replay.Timeline:
    return replay.replay(rule_set, engine, window, appender=engine.appender)


def minutes(episode: replay.Episode) -> list[int | None]:
    times = (episode.active_at, episode.fired_at, episode.ended_at)
    return [None if at is None else (clock.to_ms(at) - START_MS) // MINUTE_MS for at in times]


def test_an_alert_waits_fires_and_ends_when_the_rule_would_have_said_so() -> None:
    timeline = replayed("{alert: Hot, expr: temp > 90, for: 2m}", 'temp{gpu="3"}: 50x2 95x4 50x8')
    (episode,) = timeline.fired
    assert (episode.alert, episode.labels["gpu"], minutes(episode)) == ("Hot", "3", [3, 5, 8])
    assert timeline.steps == 16


def test_a_short_peak_waits_and_never_fires() -> None:
    timeline = replayed("{alert: Hot, expr: temp > 90, for: 5m}", "temp: 50x2 95 50x8")
    assert timeline.fired == ()
    assert minutes(timeline.episodes[0]) == [3, None, 4]


def test_an_alert_that_lasts_has_no_end() -> None:
    timeline = replayed("{alert: Hot, expr: temp > 90}", "temp: 50x4 95x30")
    assert minutes(timeline.fired[0]) == [5, 5, None]


def test_an_alert_that_comes_twice_is_two_episodes_in_order() -> None:
    timeline = replayed("{alert: Hot, expr: temp > 90}", "temp: 50 95 50x3 96 50x8")
    assert [minutes(episode) for episode in timeline.fired] == [[1, 1, 2], [6, 6, 7]]
    assert [episode.value for episode in timeline.fired] == [95.0, 96.0]


def test_a_rule_sees_what_an_earlier_one_records() -> None:
    rules = "{record: 'n:temp:max', expr: max(temp)}\n{alert: Hot, expr: 'n:temp:max > 90'}"
    timeline = replayed(rules, 'temp{gpu="1"}: 50x20', 'temp{gpu="2"}: 50x3 95x2 50x20')
    assert [minutes(episode) for episode in timeline.fired] == [[4, 4, 7]]


def test_a_recorded_series_ends_with_its_rule() -> None:
    rules = "{record: hot, expr: temp > 90}\n{alert: Quiet, expr: absent(hot)}"
    timeline = replayed(rules, "temp: 95x4 50x20", minutes=8)
    assert minutes(timeline.fired[0]) == [5, 5, None]


def test_annotations_are_written_as_at_the_last_evaluation() -> None:
    rule = "{alert: Hot, expr: temp > 90, annotations: {summary: 'now {{ $value }}'}}"
    timeline = replayed(rule, "temp: 95 96 97 50x9")
    assert timeline.fired[0].annotations == {"summary": "now 97"}


def test_a_rule_that_fails_is_named_and_the_others_go_on() -> None:
    rules = "{alert: Bad, expr: 'a * on () b'}\n{alert: Hot, expr: temp > 90}"
    timeline = replayed(rules, 'a{x="1"}: 1x20', 'a{x="2"}: 1x20', 'b{y="1"}: 1x20', 'b{y="2"}: 1x20', "temp: 95x20")
    assert [failure.rule for failure in timeline.failures] == ["Bad"]
    assert [episode.alert for episode in timeline.fired] == ["Hot"]


def test_a_replay_equals_the_evaluation_of_the_hub() -> None:
    """The law: rule by rule over the window equals step by step over the rules."""
    rule = "{alert: Hot, expr: 'avg_over_time(temp[3m]) > 70', for: 2m, keep_firing_for: 1m}"
    text = f"groups: [{{name: g, rules: [{rule}]}}]"
    rule_set, series = rulefile.read_rules({"r.yaml": text}), "temp: 50x3 95x3 50x2 99x9 50x20"
    engine, state, changes = filled(series), {}, []
    for minute in range(31):
        now = clock.from_ms(START_MS + minute * MINUTE_MS)
        result = evaluate_group(rule_set.groups[0], engine, state, now=now)
        state = result.state
        changes += [(alert.state, minute) for alert in result.changes]
    timeline = run(rule_set, filled(series), replay.ReplayWindow(START_MS, START_MS + 30 * MINUTE_MS, 60.0))
    edges = [
        (state, minute)
        for episode in timeline.fired
        for state, minute in zip((AlertState.FIRING, AlertState.RESOLVED), minutes(episode)[1:], strict=True)
    ]
    assert edges == changes
    assert len(edges) >= 2


def test_a_window_shorter_than_an_interval_is_reported() -> None:
    text = "groups: [{name: g, interval: 1h, rules: [{alert: A, expr: up}]}]"
    window = replay.ReplayWindow(START_MS + 1, START_MS + MINUTE_MS)
    timeline = run(rulefile.read_rules({"r.yaml": text}), filled("up: 1"), window)
    assert "no evaluation in this window" in timeline.failures[0].problem


def test_samples_that_were_appended_one_by_one_are_replayed_as_well() -> None:
    engine = filled("other: 1x5")
    engine.appender.append([Sample(Labels({"__name__": "temp"}), START_MS + MINUTE_MS, 95.0)])
    text = "groups: [{name: g, rules: [{alert: Hot, expr: temp > 90}]}]"
    timeline = run(
        rulefile.read_rules({"r.yaml": text}), engine, replay.ReplayWindow(START_MS, START_MS + 20 * MINUTE_MS, 60.0)
    )
    assert [minutes(episode) for episode in timeline.fired] == [[1, 1, pytest.approx(6)]]
