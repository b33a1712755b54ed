"""Heat that several GPUs of a node share."""

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
# One hot GPU is that GPU's own trouble; two at once share the air or the coolant.
HOT_GPUS = 2
# Neighbours do not tell their own limits; a little below the lowest of packs/gpu_models.csv.
NEAR_LIMIT_CELSIUS = 82.0


def cooling_failure(facts: IncidentFacts) -> Finding | None:
    """Two or more GPUs of the node at their temperature limit, or slowed down by heat."""
    if facts.incident.family != "cooling":
        return None
    if facts.place.node is None:
        return _shared(facts)
    hot, told = (
        sorted(_hot(facts), key=lambda uuid: -facts.readings_by_gpu(TEMPERATURE)[uuid]),
        facts.members_with_cause(CAUSE),
    )
    if not told and len(hot) < HOT_GPUS:
        # A power brake keeps GPUs without air below their limit; that most of the node is close to it tells.
        celsius = facts.readings_by_gpu(TEMPERATURE)
        hot = sorted((uuid for uuid in celsius if celsius[uuid] >= NEAR_LIMIT_CELSIUS), key=lambda uuid: -celsius[uuid])
        if len(hot) < HOT_GPUS or 2 * len(hot) <= len(celsius):
            return None
    return make_finding(
        facts,
        CAUSE,
        place=facts.node,
        confidence=0.95 if len(hot) >= HOT_GPUS and told else 0.85 if len(hot) >= HOT_GPUS else 0.7,
        evidence=without_none(
            _overview(facts, hot),
            *(reading_evidence(facts, TEMPERATURE, uuid) for uuid in hot[:4]),
            *(reading_evidence(facts, SM_CLOCK, uuid) for uuid in hot[:2]),
            *(reading_evidence(facts, CLOCK_REASONS, uuid) for uuid in hot[:2]),
            *(member_evidence(member) for member in told),
        ),
        steps=(
            DiagnosisStep("Read fans and inlet temperature from the machine's controller", "ipmitool sdr type Fan"),
            DiagnosisStep("See the limits that the GPUs give themselves", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),
        ),
        ruled_out=exclusions.against(exclusions.power_brake(facts), _one_gpu(facts, hot), _the_room(facts)),
    )


def _shared(facts: IncidentFacts) -> Finding | None:
    """A rack or leaf: most of its nodes are hot, so it is no machine's own fan."""
    peers, told = facts.context.peer_temperatures or {}, facts.members_with_cause(CAUSE)
    hot = sorted(
        (node for node, celsius in peers.items() if celsius >= NEAR_LIMIT_CELSIUS), key=lambda node: -peers[node]
    )
    if not told or not peers:
        return None
    whose = facts.names(facts.place)
    text = f"{len(hot)} of {len(peers)} nodes of {whose} have a GPU at {NEAR_LIMIT_CELSIUS:g} °C or more"
    return make_finding(
        facts,
        CAUSE,
        place=facts.place,
        confidence=0.95 if len(hot) >= HOT_GPUS and 2 * len(hot) > len(peers) else 0.7,
        evidence=(
            Evidence(TEMPERATURE.metric, text, at=facts.at, place=facts.place),
            *(Evidence(TEMPERATURE.metric, f"{node}: {peers[node]:g} °C", at=facts.at) for node in hot[:4]),
            *(member_evidence(member) for member in told[:4]),
        ),
        why="Most nodes of one rack are hot at once: its air or coolant is missing, not one machine's fan.",
        steps=(DiagnosisStep("Check air and coolant supply of the rack, and move work away from it"),),
        ruled_out=exclusions.against(_one_machine(facts, hot)),
    )


def _one_machine(facts: IncidentFacts, hot: list[str]) -> RuledOut | None:
    if len(hot) < HOT_GPUS:
        return None
    return RuledOut("thermal_throttle", f"{len(hot)} nodes of {facts.names(facts.place)} are hot at once, not one GPU")


def _the_room(facts: IncidentFacts) -> RuledOut | None:
    """Neighbours in the rack that are cool: the heat is this machine's."""
    others = {
        node: celsius for node, celsius in (facts.context.peer_temperatures or {}).items() if node != facts.place.node
    }
    cool = [node for node, celsius in others.items() if celsius < NEAR_LIMIT_CELSIUS]
    if not others or 2 * len(cool) <= len(others):
        return None
    return RuledOut(
        "rack cooling", f"{len(cool)} of {len(others)} neighbours in its rack are below {NEAR_LIMIT_CELSIUS:g} °C"
    )


def _hot(facts: IncidentFacts) -> list[str]:
    reasons = facts.readings_by_gpu(CLOCK_REASONS)
    return [
        uuid
        for uuid, celsius in facts.readings_by_gpu(TEMPERATURE).items()
        if celsius >= exclusions.limit_celsius(facts, uuid) or int(reasons.get(uuid, 0)) & clock_reasons.THERMAL
    ]


def _overview(facts: IncidentFacts, hot: list[str]) -> Evidence | None:
    celsius = facts.readings_by_gpu(TEMPERATURE)
    if not celsius:
        return None
    is_limit = all(uuid in _hot(facts) for uuid in hot)
    how = "at their limit" if is_limit else f"at {NEAR_LIMIT_CELSIUS:g} °C or more"
    text = f"{len(hot)} of {len(celsius)} GPUs of {facts.node_name} are {how}; the hottest reads "
    return Evidence(TEMPERATURE.metric, f"{text}{max(celsius.values()):g} °C", at=facts.at, place=facts.node)


def _one_gpu(facts: IncidentFacts, hot: list[str]) -> RuledOut | None:
    if len(hot) < HOT_GPUS:
        return None
    return RuledOut("thermal_throttle", f"{len(hot)} GPUs of {facts.node_name} are hot at once, not one")
