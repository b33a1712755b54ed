"""Find why GPUs are slowed down: heat of one GPU, failed cooling of a node or rack, the power brake, the power limit.

The clocks event reasons of the driver distinguish heat, power brake and power limit.
"""

from __future__ import annotations

from watchkeeper.diagnose import evidence
from watchkeeper.diagnose.checks import findings
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.model import clock_reasons
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut

FAMILIES = ("cooling", "power")
COOLING_FAILURE = "cooling_failure"
# One hot GPU has a fault of its own; two share the air or the coolant.
HOT_GPUS = 2
# Used for neighbours, whose limits are not read: slightly below the lowest limit of packs/gpu_models.csv.
NEAR_LIMIT_CELSIUS = 82.0


def thermal_throttle(facts: IncidentFacts) -> Finding | None:
    """One GPU is at its temperature limit or slowed down by heat; two or more mean a fault of the node."""
    uuid, hot = facts.place.gpu, hot_gpus(facts)
    if facts.incident.family not in FAMILIES or uuid not in hot or len(hot) > 1:
        return None
    return make_finding(
        facts,
        "thermal_throttle",
        place=facts.gpu(uuid),
        confidence=0.93 if clock_reason_bits(facts, uuid) & clock_reasons.THERMAL else 0.82,
        evidence=(
            facts.reading_evidence(evidence.TEMPERATURE, uuid),
            facts.reading_evidence(evidence.CLOCK_REASONS, uuid),
            facts.reading_evidence(evidence.SM_CLOCK, uuid),
            *(member_evidence(member) for member in facts.members_with_cause("thermal_throttle")),
        ),
        steps=(
            DiagnosisStep("Compare it with other GPUs under the same load", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),
        ),
        ruled_out=(findings.rule_out_power_brake(facts), _rule_out_cooling(facts, uuid)),
    )


def power_brake(facts: IncidentFacts) -> Finding | None:
    """The chassis requests less power: a hardware signal with its own clocks event reason."""
    uuids = sorted(facts.readings_by_gpu(evidence.CLOCK_REASONS))
    braked = [uuid for uuid in uuids if clock_reason_bits(facts, uuid) & clock_reasons.POWER_BRAKE]
    members = facts.members_with_cause("power_brake")
    if facts.incident.family not in FAMILIES or not braked:
        return None
    return make_finding(
        facts,
        "power_brake",
        place=facts.node,
        confidence=0.95 if members else 0.8,
        evidence=(
            *(facts.reading_evidence(evidence.CLOCK_REASONS, uuid) for uuid in braked[:4]),
            *(facts.reading_evidence(evidence.POWER, uuid) for uuid in braked[:2]),
            *(facts.reading_evidence(evidence.TEMPERATURE, uuid) for uuid in braked[:2]),
            *(member_evidence(member) for member in members),
        ),
        steps=(DiagnosisStep("Read the power supplies from the BMC", "ipmitool sdr type 'Power Supply'"),),
        ruled_out=(findings.rule_out_heat(facts, braked[0]), _rule_out_power_cap(facts)),
    )


def power_cap(facts: IncidentFacts) -> Finding | None:
    """The GPU is at its configured power limit, without heat or power brake."""
    uuid = facts.place.gpu
    if facts.incident.family not in FAMILIES or uuid is None:
        return None
    bits, other_reasons = clock_reason_bits(facts, uuid), clock_reasons.THERMAL | clock_reasons.POWER_BRAKE
    if not bits & clock_reasons.POWER_CAP or bits & other_reasons or uuid in hot_gpus(facts):
        return None
    return make_finding(
        facts,
        "power_cap",
        place=facts.gpu(uuid),
        confidence=0.85,
        evidence=(
            facts.reading_evidence(evidence.CLOCK_REASONS, uuid),
            facts.reading_evidence(evidence.POWER, uuid),
            facts.reading_evidence(evidence.TEMPERATURE, uuid),
        ),
        steps=(DiagnosisStep("Compare the current power limit with the default", "nvidia-smi -q -d POWER"),),
        ruled_out=(findings.rule_out_heat(facts, uuid), findings.rule_out_power_brake(facts)),
    )


def clock_reason_bits(facts: IncidentFacts, uuid: str) -> int:
    """The clocks event reasons of a GPU as bits; 0 without a reading or with a blank value."""
    value = facts.readings_by_gpu(evidence.CLOCK_REASONS).get(uuid, 0.0)
    return int(value) if 0 <= value < 2**32 else 0


def hot_gpus(facts: IncidentFacts) -> list[str]:
    return [
        uuid
        for uuid, celsius in facts.readings_by_gpu(evidence.TEMPERATURE).items()
        if celsius >= findings.limit_celsius(facts, uuid) or clock_reason_bits(facts, uuid) & clock_reasons.THERMAL
    ]


def _rule_out_cooling(facts: IncidentFacts, uuid: str) -> RuledOut | None:
    others = [celsius for other, celsius in facts.readings_by_gpu(evidence.TEMPERATURE).items() if other != uuid]
    if not others:
        return None
    why = f"the other {len(others)} GPUs of {facts.node_name} are at most {max(others):g} °C"
    return RuledOut(COOLING_FAILURE, why)


def _rule_out_power_cap(facts: IncidentFacts) -> RuledOut | None:
    if any(
        clock_reason_bits(facts, uuid) & clock_reasons.POWER_CAP
        for uuid in facts.readings_by_gpu(evidence.CLOCK_REASONS)
    ):
        return None
    return RuledOut(
        "power_cap", f"no GPU of {facts.node_name} has the power limit bit 0x4 in {evidence.CLOCK_REASONS.metric}"
    )


def cooling_failure(facts: IncidentFacts) -> Finding | None:
    """Two or more GPUs of the node are at their temperature limit or slowed down by heat."""
    if facts.incident.family != "cooling":
        return None
    if facts.place.node is None:
        return _domain_finding(facts)
    members, celsius = facts.members_with_cause(COOLING_FAILURE), facts.readings_by_gpu(evidence.TEMPERATURE)
    hottest_first = sorted(celsius, key=lambda uuid: -celsius[uuid])
    at_limit = hot_gpus(facts)
    hot = [uuid for uuid in hottest_first if uuid in at_limit]
    if not members and len(hot) < HOT_GPUS:
        # A power brake keeps GPUs below their limit even without cooling: most GPUs near the limit are enough.
        hot = [uuid for uuid in hottest_first if celsius[uuid] >= NEAR_LIMIT_CELSIUS]
        if len(hot) < HOT_GPUS or 2 * len(hot) <= len(celsius):
            return None
    return make_finding(
        facts,
        COOLING_FAILURE,
        place=facts.node,
        confidence=0.95 if len(hot) >= HOT_GPUS and members else 0.85 if len(hot) >= HOT_GPUS else 0.7,
        evidence=(
            _overview_evidence(facts, hot),
            *(facts.reading_evidence(evidence.TEMPERATURE, uuid) for uuid in hot[:4]),
            *(facts.reading_evidence(evidence.SM_CLOCK, uuid) for uuid in hot[:2]),
            *(facts.reading_evidence(evidence.CLOCK_REASONS, uuid) for uuid in hot[:2]),
            *(member_evidence(member) for member in members),
        ),
        steps=(
            DiagnosisStep("Read fans and inlet temperature from the BMC", "ipmitool sdr type Fan"),
            DiagnosisStep("Read the temperature limits of the GPUs", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),
        ),
        ruled_out=(
            findings.rule_out_power_brake(facts),
            _rule_out_single(hot, f"GPUs of {facts.node_name}"),
            _rule_out_rack(facts),
        ),
    )


def _domain_finding(facts: IncidentFacts) -> Finding | None:
    """Most nodes of a rack or leaf are hot, so the cause is not the fan of one node."""
    peers, members = facts.context.peer_temperatures or {}, facts.members_with_cause(COOLING_FAILURE)
    if not members or not peers:
        return None
    hot = [node for node in sorted(peers, key=lambda name: -peers[name]) if peers[node] >= NEAR_LIMIT_CELSIUS]
    domain_name = facts.names(facts.place)
    text = f"{len(hot)} of {len(peers)} nodes of {domain_name} have a GPU at {NEAR_LIMIT_CELSIUS:g} °C or more"
    return make_finding(
        facts,
        COOLING_FAILURE,
        confidence=0.95 if len(hot) >= HOT_GPUS and 2 * len(hot) > len(peers) else 0.7,
        evidence=(
            Evidence(evidence.TEMPERATURE.metric, text, at=facts.at, place=facts.place),
            *(Evidence(evidence.TEMPERATURE.metric, f"{node}: {peers[node]:g} °C", at=facts.at) for node in hot[:4]),
            *(member_evidence(member) for member in members[:4]),
        ),
        why="Most nodes of the rack are hot at the same time: its air or coolant supply failed, not one node's fan.",
        steps=(DiagnosisStep("Check the air and coolant supply of the rack, and move workloads to other racks"),),
        ruled_out=(_rule_out_single(hot, f"nodes of {domain_name}", subject="one GPU"),),
    )


def _rule_out_single(hot: list[str], members: str, *, subject: str = "one") -> RuledOut | None:
    if len(hot) < HOT_GPUS:
        return None
    return RuledOut("thermal_throttle", f"{len(hot)} {members} are hot, not {subject}")


def _rule_out_rack(facts: IncidentFacts) -> RuledOut | None:
    """Rule out the cooling of the rack if most neighbours are cool."""
    peers = facts.context.peer_temperatures or {}
    others = [celsius for node, celsius in peers.items() if node != facts.place.node]
    cool = sum(celsius < NEAR_LIMIT_CELSIUS for celsius in others)
    if 2 * cool <= len(others):
        return None
    why = f"{cool} of {len(others)} other nodes of its rack are below {NEAR_LIMIT_CELSIUS:g} °C"
    return RuledOut("rack cooling", why)


def _overview_evidence(facts: IncidentFacts, hot: list[str]) -> Evidence | None:
    celsius = facts.readings_by_gpu(evidence.TEMPERATURE)
    if not celsius:
        return None
    is_limit = all(uuid in hot_gpus(facts) for uuid in hot)
    level = "at their limit" if is_limit else f"at {NEAR_LIMIT_CELSIUS:g} °C or more"
    text = f"{len(hot)} of {len(celsius)} GPUs of {facts.node_name} are {level}; highest temperature "
    return Evidence(evidence.TEMPERATURE.metric, f"{text}{max(celsius.values()):g} °C", at=facts.at, place=facts.node)
