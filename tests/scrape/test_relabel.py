"""Relabelling, action by action, with the answers that Prometheus gives."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.scrape.relabel import RelabelAction, RelabelRule, relabel

NAMED = {"source_labels": ("env",), "regex": "(p)(?P<rest>.*)", "target_label": "x"}
LABELS = {"__address__": "10.0.0.7:9400", "env": "prod", "team": "Vision", "__meta_k8s_label_app": "dcgm"}


def after(**rule: object) -> dict[str, str] | None:
    return relabel([RelabelRule(**rule)], LABELS)  # type: ignore[arg-type]


def changed(**rule: object) -> dict[str, str]:
    result = after(**rule)
    assert result is not None
    return dict(result.items() - LABELS.items())


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"target_label": "copy", "source_labels": ("env",)}, {"copy": "prod"}),
        ({"target_label": "fixed", "replacement": "yes"}, {"fixed": "yes"}),
        ({"source_labels": ("__address__",), "regex": "(.*):.*", "target_label": "host"}, {"host": "10.0.0.7"}),
        ({"source_labels": ("env", "team"), "target_label": "both"}, {"both": "prod;Vision"}),
        ({"source_labels": ("env", "team"), "separator": "/", "target_label": "both"}, {"both": "prod/Vision"}),
        (NAMED | {"replacement": "${rest}-$1-$$"}, {"x": "rod-p-$"}),
        (NAMED | {"replacement": "a$1b$9"}, {"x": "a"}),
        ({"source_labels": ("env",), "regex": "(.*)", "target_label": "in_$1"}, {"in_prod": "prod"}),
        ({"source_labels": ("env",), "regex": "test", "target_label": "x"}, {}),
        ({"source_labels": ("env",), "target_label": "$2", "regex": "(.*)()"}, {}),
        ({"source_labels": ("team",), "target_label": "t", "action": RelabelAction.LOWERCASE}, {"t": "vision"}),
        ({"source_labels": ("team",), "target_label": "t", "action": RelabelAction.UPPERCASE}, {"t": "VISION"}),
        ({"regex": "__meta_k8s_label_(.+)", "action": RelabelAction.LABEL_MAP}, {"app": "dcgm"}),
    ],
)  # fmt: skip
def test_a_rule_sets_what_prometheus_sets(rule: dict[str, object], expected: dict[str, str]) -> None:
    assert changed(**rule) == expected


@pytest.mark.parametrize(
    ("rule", "is_kept"),
    [
        ({"source_labels": ("env",), "regex": "prod", "action": RelabelAction.KEEP}, True),
        ({"source_labels": ("env",), "regex": "pro", "action": RelabelAction.KEEP}, False),
        ({"source_labels": ("none",), "regex": "", "action": RelabelAction.DROP}, False),
        ({"source_labels": ("env",), "regex": "test|stage", "action": RelabelAction.DROP}, True),
        ({"source_labels": ("env",), "target_label": "env", "action": RelabelAction.KEEP_EQUAL}, True),
        ({"source_labels": ("env",), "target_label": "team", "action": RelabelAction.KEEP_EQUAL}, False),
        ({"source_labels": ("env",), "target_label": "env", "action": RelabelAction.DROP_EQUAL}, False),
        ({"source_labels": ("env",), "target_label": "team", "action": RelabelAction.DROP_EQUAL}, True),
    ],
)
def test_a_rule_keeps_or_drops_the_whole_set(rule: dict[str, object], is_kept: bool) -> None:
    assert (after(**rule) is not None) is is_kept


def test_labels_are_dropped_and_kept_by_name() -> None:
    assert after(regex="__.*", action=RelabelAction.LABEL_DROP) == {"env": "prod", "team": "Vision"}
    assert after(regex="env", action=RelabelAction.LABEL_KEEP) == {"env": "prod"}


@pytest.mark.parametrize("name", ["²", "9" * 5000, "unknown"])
def test_a_group_that_no_pattern_can_have_is_empty(name: str) -> None:
    assert changed(source_labels=("env",), target_label="t", replacement=f"<${{{name}}}>") == {"t": "<>"}


def test_an_empty_replacement_takes_the_label_away() -> None:
    result = after(source_labels=("env",), target_label="team", replacement="")
    assert result is not None
    assert "team" not in result


@given(st.text(max_size=30), st.integers(1, 2**63))
def test_hashmod_is_the_tail_of_md5_as_in_prometheus(text: str, modulus: int) -> None:
    rule = RelabelRule(source_labels=("a",), target_label="shard", modulus=modulus, action=RelabelAction.HASHMOD)
    expected = int(hashlib.md5(text.encode()).hexdigest()[16:], 16) % modulus
    assert (relabel([rule], {"a": text}) or {})["shard"] == str(expected)


def test_rules_follow_one_another_until_one_drops() -> None:
    rename = RelabelRule(source_labels=("env",), target_label="stage")
    assert (
        relabel([rename, RelabelRule(source_labels=("stage",), regex="prod", action=RelabelAction.DROP)], LABELS)
        is None
    )


def test_a_label_may_have_any_name_as_in_prometheus_3() -> None:
    dotted = RelabelRule(source_labels=("env",), target_label="deployment.environment")
    upper = RelabelRule(source_labels=("env",), target_label="9", action=RelabelAction.UPPERCASE)
    named = relabel([dotted, upper], {"env": "prod"})
    assert named == {"env": "prod", "deployment.environment": "prod", "9": "PROD"}


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"regex": "(a"}, "not a regular expression"),
        ({}, "needs a `target_label`"),
        ({"action": RelabelAction.HASHMOD, "target_label": "x"}, "modulus"),
    ],
)
def test_a_rule_that_cannot_work_says_why(rule: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RelabelRule(**{"source_labels": (), **rule})  # type: ignore[arg-type]
