"""Find why a GPU is slowed down: heat, the power brake of the chassis, or the power limit.

The clocks event reasons of the driver distinguish the three.
"""

from __future__ import annotations

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import (
    CLOCK_REASONS,
    POWER,
    SM_CLOCK,
    TEMPERATURE,
    IncidentFacts,
    member_evidence,
    reading_evidence,
    without_none,
)
from watchkeeper.model import clock_reasons
from watchkeeper.model.diagnosis import DiagnosisStep, Finding, RuledOut

FAMILIES = ("cooling", "power")


def thermal_throttle(facts: IncidentFacts) -> Finding | None:
    """One GPU is at its temperature limit or slowed down by heat; two or more mean a fault of the node."""
    uuid, hot = facts.place.gpu, hot_gpus(facts)
    if facts.incident.family not in FAMILIES or uuid not in hot or len(hot) > 1:
        return None
    has_reason = bool(clock_reason_bits(facts, uuid) & clock_reasons.THERMAL)
    return make_finding(
        facts,
        "thermal_throttle",
        place=facts.gpu(uuid),
        confidence=0.93 if has_reason else 0.82,
        evidence=without_none(
            reading_evidence(facts, TEMPERATURE, uuid),
            reading_evidence(facts, CLOCK_REASONS, uuid),
            reading_evidence(facts, SM_CLOCK, uuid),
            *(member_evidence(member) for member in facts.members_with_cause("thermal_throttle")),
        ),
        steps=(
            DiagnosisStep("Compare it with other GPUs under the same load", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),
        ),
        ruled_out=without_none(exclusions.rule_out_power_brake(facts), _rule_out_cooling(facts, uuid)),
    )


def power_brake(facts: IncidentFacts) -> Finding | None:
    """The chassis requests less power: a hardware signal with its own clocks event reason."""
    braked = sorted(
        uuid
        for uuid in facts.readings_by_gpu(CLOCK_REASONS)
        if clock_reason_bits(facts, uuid) & clock_reasons.POWER_BRAKE
    )
    members = facts.members_with_cause("power_brake")
    if facts.incident.family not in FAMILIES or not braked:
        return None
    return make_finding(
        facts,
        "power_brake",
        place=facts.node,
        confidence=0.95 if members else 0.8,
        evidence=without_none(
            *(reading_evidence(facts, CLOCK_REASONS, uuid) for uuid in braked[:4]),
            *(reading_evidence(facts, POWER, uuid) for uuid in braked[:2]),
            *(reading_evidence(facts, TEMPERATURE, uuid) for uuid in braked[:2]),
            *(member_evidence(member) for member in members),
        ),
        steps=(DiagnosisStep("Read the power supplies from the BMC", "ipmitool sdr type 'Power Supply'"),),
        ruled_out=without_none(exclusions.rule_out_heat(facts, braked[0]), _rule_out_power_cap(facts)),
    )


def power_cap(facts: IncidentFacts) -> Finding | None:
    """The GPU is at its configured power limit, without heat or power brake."""
    uuid = facts.place.gpu
    if (
        facts.incident.family not in FAMILIES
        or uuid is None
        or not clock_reason_bits(facts, uuid) & clock_reasons.POWER_CAP
    ):
        return None
    if clock_reason_bits(facts, uuid) & (clock_reasons.THERMAL | clock_reasons.POWER_BRAKE) or uuid in hot_gpus(facts):
        return None
    return make_finding(
        facts,
        "power_cap",
        place=facts.gpu(uuid),
        confidence=0.85,
        evidence=without_none(
            reading_evidence(facts, CLOCK_REASONS, uuid),
            reading_evidence(facts, POWER, uuid),
            reading_evidence(facts, TEMPERATURE, uuid),
        ),
        steps=(DiagnosisStep("Compare the current power limit with the default", "nvidia-smi -q -d POWER"),),
        ruled_out=without_none(exclusions.rule_out_heat(facts, uuid), exclusions.rule_out_power_brake(facts)),
    )


def clock_reason_bits(facts: IncidentFacts, uuid: str) -> int:
    """The clocks event reasons of a GPU as bits; 0 without a reading or with a blank value."""
    value = facts.readings_by_gpu(CLOCK_REASONS).get(uuid, 0.0)
    return int(value) if 0 <= value < 2**32 else 0


def hot_gpus(facts: IncidentFacts) -> list[str]:
    return [
        uuid
        for uuid, celsius in facts.readings_by_gpu(TEMPERATURE).items()
        if celsius >= exclusions.limit_celsius(facts, uuid) or clock_reason_bits(facts, uuid) & clock_reasons.THERMAL
    ]


def _rule_out_cooling(facts: IncidentFacts, uuid: str) -> RuledOut | None:
    others = [celsius for other, celsius in facts.readings_by_gpu(TEMPERATURE).items() if other != uuid]
    if not others:
        return None
    return RuledOut(
        "cooling_failure", f"the other {len(others)} GPUs of {facts.node_name} are at most {max(others):g} °C"
    )


def _rule_out_power_cap(facts: IncidentFacts) -> RuledOut | None:
    if any(clock_reason_bits(facts, uuid) & clock_reasons.POWER_CAP for uuid in facts.readings_by_gpu(CLOCK_REASONS)):
        return None
    return RuledOut("power_cap", f"no GPU of {facts.node_name} has the power limit bit 0x4 in {CLOCK_REASONS.metric}")
