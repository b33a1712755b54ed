"""Find failed cooling of a node or rack: several hot GPUs."""

from __future__ import annotations

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import (
    CLOCK_REASONS,
    SM_CLOCK,
    TEMPERATURE,
    IncidentFacts,
    member_evidence,
    reading_evidence,
    without_none,
)
from watchkeeper.model import clock_reasons
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut

CAUSE = "cooling_failure"
# One hot GPU has a fault of its own; two share the air or the coolant.
HOT_GPUS = 2
# Used for neighbours, whose limits are not read: slightly below the lowest limit of packs/gpu_models.csv.
NEAR_LIMIT_CELSIUS = 82.0


def cooling_failure(facts: IncidentFacts) -> Finding | None:
    """Two or more GPUs of the node are at their temperature limit or slowed down by heat."""
    if facts.incident.family != "cooling":
        return None
    if facts.place.node is None:
        return _domain_finding(facts)
    hot, members = (
        sorted(_hot_gpus(facts), key=lambda uuid: -facts.readings_by_gpu(TEMPERATURE)[uuid]),
        facts.members_with_cause(CAUSE),
    )
    if not members and len(hot) < HOT_GPUS:
        # A power brake keeps GPUs below their limit even without cooling: most GPUs near the limit are enough.
        celsius = facts.readings_by_gpu(TEMPERATURE)
        hot = sorted((uuid for uuid in celsius if celsius[uuid] >= NEAR_LIMIT_CELSIUS), key=lambda uuid: -celsius[uuid])
        if len(hot) < HOT_GPUS or 2 * len(hot) <= len(celsius):
            return None
    return make_finding(
        facts,
        CAUSE,
        place=facts.node,
        confidence=0.95 if len(hot) >= HOT_GPUS and members else 0.85 if len(hot) >= HOT_GPUS else 0.7,
        evidence=without_none(
            _overview_evidence(facts, hot),
            *(reading_evidence(facts, TEMPERATURE, uuid) for uuid in hot[:4]),
            *(reading_evidence(facts, SM_CLOCK, uuid) for uuid in hot[:2]),
            *(reading_evidence(facts, CLOCK_REASONS, uuid) for uuid in hot[:2]),
            *(member_evidence(member) for member in members),
        ),
        steps=(
            DiagnosisStep("Read fans and inlet temperature from the BMC", "ipmitool sdr type Fan"),
            DiagnosisStep("Read the temperature limits of the GPUs", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),
        ),
        ruled_out=without_none(
            exclusions.rule_out_power_brake(facts), _rule_out_single_gpu(facts, hot), _rule_out_rack(facts)
        ),
    )


def _domain_finding(facts: IncidentFacts) -> Finding | None:
    """Most nodes of a rack or leaf are hot, so the cause is not the fan of one node."""
    peers, members = facts.context.peer_temperatures or {}, facts.members_with_cause(CAUSE)
    hot = sorted(
        (node for node, celsius in peers.items() if celsius >= NEAR_LIMIT_CELSIUS), key=lambda node: -peers[node]
    )
    if not members or not peers:
        return None
    domain_name = facts.names(facts.place)
    text = f"{len(hot)} of {len(peers)} nodes of {domain_name} have a GPU at {NEAR_LIMIT_CELSIUS:g} °C or more"
    return make_finding(
        facts,
        CAUSE,
        confidence=0.95 if len(hot) >= HOT_GPUS and 2 * len(hot) > len(peers) else 0.7,
        evidence=(
            Evidence(TEMPERATURE.metric, text, at=facts.at, place=facts.place),
            *(Evidence(TEMPERATURE.metric, f"{node}: {peers[node]:g} °C", at=facts.at) for node in hot[:4]),
            *(member_evidence(member) for member in members[:4]),
        ),
        why="Most nodes of the rack are hot at the same time: its air or coolant supply failed, not one node's fan.",
        steps=(DiagnosisStep("Check the air and coolant supply of the rack, and move workloads to other racks"),),
        ruled_out=without_none(_rule_out_single_node(facts, hot)),
    )


def _rule_out_single_node(facts: IncidentFacts, hot: list[str]) -> RuledOut | None:
    if len(hot) < HOT_GPUS:
        return None
    return RuledOut("thermal_throttle", f"{len(hot)} nodes of {facts.names(facts.place)} are hot, not one GPU")


def _rule_out_rack(facts: IncidentFacts) -> RuledOut | None:
    """Rule out the cooling of the rack if most neighbours are cool."""
    others = {
        node: celsius for node, celsius in (facts.context.peer_temperatures or {}).items() if node != facts.place.node
    }
    cool = [node for node, celsius in others.items() if celsius < NEAR_LIMIT_CELSIUS]
    if not others or 2 * len(cool) <= len(others):
        return None
    return RuledOut(
        "rack cooling", f"{len(cool)} of {len(others)} other nodes of its rack are below {NEAR_LIMIT_CELSIUS:g} °C"
    )


def _hot_gpus(facts: IncidentFacts) -> list[str]:
    reasons = facts.readings_by_gpu(CLOCK_REASONS)
    return [
        uuid
        for uuid, celsius in facts.readings_by_gpu(TEMPERATURE).items()
        if celsius >= exclusions.limit_celsius(facts, uuid) or int(reasons.get(uuid, 0)) & clock_reasons.THERMAL
    ]


def _overview_evidence(facts: IncidentFacts, hot: list[str]) -> Evidence | None:
    celsius = facts.readings_by_gpu(TEMPERATURE)
    if not celsius:
        return None
    is_limit = all(uuid in _hot_gpus(facts) for uuid in hot)
    level = "at their limit" if is_limit else f"at {NEAR_LIMIT_CELSIUS:g} °C or more"
    text = f"{len(hot)} of {len(celsius)} GPUs of {facts.node_name} are {level}; highest temperature "
    return Evidence(TEMPERATURE.metric, f"{text}{max(celsius.values()):g} °C", at=facts.at, place=facts.node)


def _rule_out_single_gpu(facts: IncidentFacts, hot: list[str]) -> RuledOut | None:
    if len(hot) < HOT_GPUS:
        return None
    return RuledOut("thermal_throttle", f"{len(hot)} GPUs of {facts.node_name} are hot, not one")
