"""The trust ladder: the most exact rule holds, of two equal ones the more careful, and it says which."""

from __future__ import annotations

import pytest

from watchkeeper.model.trust import Mode
from watchkeeper.remediate.ladder import TrustLadder, TrustRule

LADDER = TrustLadder(
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
            "mode suggest by remediate.mode; no [[remediate.trust]] is about this",
        ),
        ("gpu_fell_off_bus", "lab", "act", "mode act by [[remediate.trust]] for cause gpu_fell_off_bus"),
        ("gpu_fell_off_bus", "prod", "observe", "the more careful of those that fit best"),
        ("ecc_uncorrectable", "prod", "ask", "for cause ecc_uncorrectable and pool prod, the most exact"),
        ("ecc_uncorrectable", "lab", "suggest", "is about this"),
    ],
)
def test_the_rule_that_holds_is_named(cause: str, pool: str, mode: str, why: str) -> None:
    rung = LADDER.decide_mode(cause, pool)
    assert rung.mode == mode
    assert why in rung.why


def test_nothing_is_trusted_unless_somebody_says_so() -> None:
    assert TrustLadder().decide_mode("gpu_fell_off_bus", "lab").mode is Mode.OBSERVE


def test_a_pool_without_a_name_can_be_meant() -> None:
    assert TrustLadder(rules=(TrustRule(Mode.ASK, pool=""),)).decide_mode("x", "").why.endswith("pool (without a name)")
