"""The trust ladder: the most exact rule holds, of two equal ones the more careful, and it says which."""

from __future__ import annotations

import pytest

from watchkeeper.model.trust import Mode
from watchkeeper.remediate.trust_rules import TrustRule, TrustRules

LADDER = TrustRules(
    Mode.SUGGEST,
    (
        TrustRule(Mode.ACT, cause="gpu_fell_off_bus"),
        TrustRule(Mode.OBSERVE, pool="prod"),
        TrustRule(Mode.ASK, cause="ecc_uncorrectable", pool="prod"),
    ),
)


@pytest.mark.parametrize(
    ("cause", "pool", "mode", "why"),
    [
        (
            "gsp_timeout",
            "lab",
            "suggest",
            "mode suggest, set by remediate.mode; no [[remediate.trust]] entry matches",
        ),
        ("gpu_fell_off_bus", "lab", "act", "mode act, set by [[remediate.trust]] for cause gpu_fell_off_bus"),
        ("gpu_fell_off_bus", "prod", "observe", "the safer of the most specific rules"),
        ("ecc_uncorrectable", "prod", "ask", "for cause ecc_uncorrectable and pool prod, the most specific"),
        ("ecc_uncorrectable", "lab", "suggest", "no [[remediate.trust]] entry matches"),
    ],
)
def test_the_rule_that_holds_is_named(cause: str, pool: str, mode: str, why: str) -> None:
    mode_decision = LADDER.decide_mode(cause, pool)
    assert mode_decision.mode == mode
    assert why in mode_decision.why


def test_the_default_mode_is_observe() -> None:
    assert TrustRules().decide_mode("gpu_fell_off_bus", "lab").mode is Mode.OBSERVE


def test_a_pool_without_a_name_can_be_meant() -> None:
    assert TrustRules(rules=(TrustRule(Mode.ASK, pool=""),)).decide_mode("x", "").why.endswith("pool (unnamed)")
