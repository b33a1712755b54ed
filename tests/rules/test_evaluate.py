"""A rule group, evaluated: what is written back, what changed, and what a failure leaves alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.rules.fake_engine import FakeEngine
from tests.support.group_evaluation import evaluate_group
from watchkeeper.kit.clock import to_ms
from watchkeeper.model.alerts import AlertState
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample, is_stale
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.store.head.head import Head

START = datetime(2026, 1, 1, tzinfo=UTC)
HOT = Labels({"__name__": "celsius", "node": "n7"})
WARM = Labels({"__name__": "celsius", "node": "n8"})
FIRING = Labels({"__name__": "ALERTS", "alertname": "Hot", "alertstate": "firing", "node": "n7"})
SINCE = Labels({"__name__": "ALERTS_FOR_STATE", "alertname": "Hot", "node": "n7"})


def group(*rules: str, head: str = "") -> rulefile.RuleGroup:
    text = f"groups:\n- name: g\n{head}  rules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)
    return rulefile.read_rules({"r.yaml": text}).groups[0]


HOT_GROUP = group("alert: Hot, expr: celsius > 90, for: 1m")
HOT_KEY = evaluate.rule_key(HOT_GROUP, HOT_GROUP.rules[0])


def minute(count: float) -> datetime:
    return START + timedelta(minutes=count)


def shown(samples: tuple[Sample, ...]) -> dict[str, float | str]:
    return {str(sample.labels): "stale" if is_stale(sample.value) else sample.value for sample in samples}


def test_a_recording_rule_renames_relabels_and_marks_missing_series() -> None:
    engine = FakeEngine({"celsius": {HOT: 95.0, WARM: 50.0}})
    rules = group("record: 'node:celsius', expr: celsius, labels: {site: east}")
    first = evaluate_group(rules, engine, {}, now=START)
    assert shown(first.samples) == {
        'node:celsius{node="n7", site="east"}': 95.0,
        'node:celsius{node="n8", site="east"}': 50.0,
    }
    engine.answers["celsius"] = {HOT: 96.0}
    second = evaluate_group(rules, engine, first.state, now=minute(1))
    assert shown(second.samples)['node:celsius{node="n8", site="east"}'] == "stale"
    assert evaluate_group(rules, engine, second.state, now=minute(2)).samples == (
        Sample(Labels({"__name__": "node:celsius", "node": "n7", "site": "east"}), 1767225720000, 96.0),
    )


def test_an_alert_is_written_as_prometheus_writes_it() -> None:
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}})
    pending = evaluate_group(HOT_GROUP, engine, {}, now=START)
    assert shown(pending.samples) == {
        str(FIRING.with_labels(alertstate="pending")): 1.0,
        str(SINCE): START.timestamp(),
    }
    firing = evaluate_group(HOT_GROUP, engine, pending.state, now=minute(1))
    assert shown(firing.samples)[str(FIRING)] == 1.0
    assert shown(firing.samples)[str(FIRING.with_labels(alertstate="pending"))] == "stale"
    assert [alert.name for alert in firing.changes] == ["Hot"]
    engine.answers["celsius > 90"] = {}
    ended = evaluate_group(HOT_GROUP, engine, firing.state, now=minute(2))
    assert shown(ended.samples) == {str(FIRING): "stale", str(SINCE): "stale"}
    assert [alert.state for alert in ended.changes] == [AlertState.RESOLVED]


def test_a_rule_that_fails_keeps_its_alerts_and_does_not_stop_the_group() -> None:
    rules = group("alert: Hot, expr: celsius > 90", "record: a, expr: vector(1)")
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}, "vector(1)": {Labels(): 1.0}})
    first = evaluate_group(rules, engine, {}, now=START)
    del engine.answers["celsius > 90"]
    second = evaluate_group(rules, engine, first.state, now=minute(1))
    failed, fine = second.results
    assert (failed.state.health, fine.state.health) == (evaluate.RuleHealth.ERROR, evaluate.RuleHealth.OK)
    assert "no answer" in failed.state.last_error
    assert [alert.state for alert in failed.state.alerts.values()] == [AlertState.FIRING]
    assert (failed.samples, failed.changes) == ((), ())
    assert failed.state.evaluated_at == minute(1)


def test_a_group_over_its_limit_says_both_numbers_and_writes_nothing() -> None:
    rules = group("record: a, expr: celsius", head="  limit: 1\n")
    result = evaluate_group(rules, FakeEngine({"celsius": {HOT: 1.0, WARM: 2.0}}), {}, now=START)
    assert result.samples == ()
    assert result.results[0].state.last_error == "a returns 2 series, the limit of its group is 1"


def test_two_recorded_series_that_become_one_are_an_error() -> None:
    rules = group("record: a, expr: celsius, labels: {node: all}")
    result = evaluate_group(rules, FakeEngine({"celsius": {HOT: 1.0, WARM: 2.0}}), {}, now=START)
    assert "same a" in result.results[0].state.last_error


def test_a_rule_reads_what_an_earlier_one_recorded_in_the_same_evaluation() -> None:
    engine = FakeEngine({"celsius": {HOT: 95.0}, "hot": {}})
    rules = group("record: hot, expr: celsius", "alert: Hot, expr: hot")
    changes = []
    for result in evaluate.evaluate_each(rules, engine, {}, now=START):
        engine.answers |= {
            "hot": {sample.labels: sample.value for sample in result.samples if isinstance(sample, Sample)}
        }
        changes += result.changes
    assert [alert.value for alert in changes] == [95.0]


def test_a_query_offset_asks_for_the_past_and_writes_for_now() -> None:
    engine = FakeEngine({"celsius": {HOT: 95.0}})
    result = evaluate_group(group("record: a, expr: celsius", head="  query_offset: 1m\n"), engine, {}, now=minute(1))
    assert engine.queries == [("celsius", 1767225600000)]
    assert [sample.at_ms for sample in result.samples] == [1767225660000]


def test_annotations_may_ask_the_engine() -> None:
    rules = group("""alert: Hot, expr: celsius > 90, annotations: {more: '{{ query "power" | first | value }} W'}""")
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}, "power": {WARM: 700.0}})
    assert evaluate_group(rules, engine, {}, now=START).changes[0].annotations == {"more": "700 W"}


def test_restored_alerts_continue_without_a_second_change() -> None:
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}})
    state: evaluate.RuleStates = {}
    for at in (0, 1):
        state = evaluate_group(HOT_GROUP, engine, state, now=minute(at)).state
    kept = list(state[HOT_KEY].alerts.values())
    strangers = [replace(alert, labels=alert.labels.with_labels(alertname="Other")) for alert in kept]
    restored = evaluate.restore_group(HOT_GROUP, {}, [*kept, *strangers])
    assert list(restored[HOT_KEY].alerts.values()) == kept
    after = evaluate_group(HOT_GROUP, engine, restored, now=minute(3))
    assert after.changes == ()
    engine.answers["celsius > 90"] = {}
    silent = evaluate_group(HOT_GROUP, engine, restored, now=minute(3))
    assert (silent.changes, list(silent.state[HOT_KEY].alerts.values())) == ((), kept)
    held = evaluate_group(HOT_GROUP, engine, silent.state, now=minute(5.9))
    assert held.changes == ()
    ended = evaluate_group(HOT_GROUP, engine, held.state, now=minute(6))
    assert [alert.state for alert in ended.changes] == [AlertState.RESOLVED]
    assert shown(ended.samples) == {str(FIRING): "stale", str(SINCE): "stale"}


def test_a_pending_alert_keeps_its_active_time_after_a_restart() -> None:
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}})
    first = evaluate_group(HOT_GROUP, engine, {}, now=START)
    state = evaluate.restore_pending_ages(first.state, {SINCE.without("__name__"): 40.0})
    second = evaluate_group(HOT_GROUP, engine, state, now=minute(0.25))
    assert second.changes == ()
    third = evaluate_group(HOT_GROUP, engine, second.state, now=minute(0.5))
    assert [(alert.state, alert.active_at) for alert in third.changes] == [
        (AlertState.FIRING, START - timedelta(seconds=40))
    ]


def test_series_from_before_a_restart_become_stale_if_missing() -> None:
    rules = group("record: a, expr: celsius > 90", "alert: Hot, expr: celsius > 90, for: 1m")
    before = [Labels({"__name__": "a", "node": node}) for node in ("n7", "n8")]
    wrote = dict(zip((evaluate.rule_key(rules, rule) for rule in rules.rules), (before, [SINCE]), strict=True))
    for answer, ended in (({HOT: 95.0}, {str(before[1])}), ({}, {*map(str, before), str(SINCE)})):
        state = evaluate.with_series_before_restart(rules, {}, wrote.__getitem__)
        first = evaluate_group(rules, FakeEngine({"celsius > 90": answer}), state, now=START)
        assert {name for name, value in shown(first.samples).items() if value == "stale"} == ended
        second = evaluate_group(rules, FakeEngine({"celsius > 90": answer}), first.state, now=minute(1))
        assert "stale" not in [value for name, value in shown(second.samples).items() if name in ended]


def test_a_removed_rule_resolves_its_alerts_and_ends_its_series() -> None:
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}})
    state: evaluate.RuleStates = {}
    for at in (0, 1):
        state = evaluate_group(HOT_GROUP, engine, state, now=minute(at)).state
    left, samples, resolved = evaluate.retire_rules(state, rulefile.RuleSet(), now=minute(2))
    assert left == {}
    assert shown(samples) == {str(FIRING): "stale", str(SINCE): "stale"}
    assert [(alert.state, alert.resolved_at) for alert in resolved] == [(AlertState.RESOLVED, minute(2))]
    assert evaluate.retire_rules(state, rulefile.RuleSet((HOT_GROUP,)), now=minute(2))[0] == state


def an_engine_of_a_hub_that_stopped(*, at: float, alert_ended_at: float | None = None) -> EmbeddedEngine:
    """One alert pending from minute -20 on, and the hub's own series beside it, until it stopped."""
    engine = EmbeddedEngine(Head())
    for quarter in range(-80, round(at * 4) + 1):
        at_ms, beats = to_ms(minute(quarter / 4)), Labels({"__name__": evaluate.HEARTBEAT, "group": "g"})
        engine.appender.append([Sample(beats, at_ms, 0.1)])
        if alert_ended_at is None or quarter / 4 < alert_ended_at:
            engine.appender.append([Sample(SINCE, at_ms, minute(-20).timestamp())])
        elif quarter / 4 == alert_ended_at:
            engine.appender.append([Sample(SINCE, at_ms, STALE)])
    return engine


def test_a_restart_remembers_for_how_long_alerts_were_active_when_the_hub_stopped() -> None:
    engine = an_engine_of_a_hub_that_stopped(at=-8)
    assert evaluate.ages_before_restart(evaluate.ALERTS_FOR_STATE, engine, START) == {
        SINCE.without("__name__"): 12 * 60
    }


def test_a_restart_does_not_remember_an_alert_that_had_ended_before_the_hub_stopped() -> None:
    for engine in (an_engine_of_a_hub_that_stopped(at=-8, alert_ended_at=-10), EmbeddedEngine(Head())):
        assert evaluate.ages_before_restart(evaluate.ALERTS_FOR_STATE, engine, START) == {}


def test_an_alert_that_is_kept_firing_tells_since_when_and_no_longer_once_it_is_back() -> None:
    rules = group("alert: Hot, expr: celsius > 90, keep_firing_for: 10m")
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}})
    state: evaluate.RuleStates = {}
    progress = []
    for at, is_hot in ((0, True), (1, False), (2, False), (3, True)):
        engine.answers["celsius > 90"] = {HOT: 95.0} if is_hot else {}
        result = evaluate_group(rules, engine, state, now=minute(at))
        state = result.state
        progress.append(shown(result.samples).get(str(SINCE.with_labels(__name__=evaluate.KEPT_SINCE))))
    assert progress == [None, minute(1).timestamp(), minute(1).timestamp(), "stale"]


def test_alerts_of_rules_that_a_new_start_no_longer_has_are_retired() -> None:
    engine = FakeEngine({"celsius > 90": {HOT: 95.0}})
    state: evaluate.RuleStates = {}
    for at in (0, 1):
        state = evaluate_group(HOT_GROUP, engine, state, now=minute(at)).state
    rules = rulefile.RuleSet((group("alert: Cold, expr: celsius < 0"),))
    restored = evaluate.restore_alerts(rules, list(state[HOT_KEY].alerts.values()))
    left, samples, resolved = evaluate.retire_rules(restored, rules, now=minute(2))
    assert (left, [alert.name for alert in resolved]) == ({}, ["Hot"])
    assert shown(samples) == {str(FIRING): "stale", str(SINCE): "stale"}
