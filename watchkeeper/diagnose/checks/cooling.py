"""Heat that several GPUs of a node share."""

from __future__ import annotations

from watchkeeper.diagnose.checks import ruling
from watchkeeper.diagnose.checks.wording import finding
from watchkeeper.diagnose.evidence import CLOCK_REASONS, SM_CLOCK, TEMPERATURE, Facts, member_line, number, present
from watchkeeper.model.diagnosis import Evidence, Finding, RuledOut, Step

CAUSE = "cooling_failure"
# One hot GPU is that GPU's own trouble; two at once share the air or the coolant.
HOT_GPUS = 2


def cooling_failure(facts: Facts) -> Finding | None:
    """Two or more GPUs of the node at their temperature limit, or slowed down by heat."""
    if facts.incident.family != "cooling":
        return None
    hot, told = sorted(_hot(facts), key=lambda uuid: -facts.of_all(TEMPERATURE)[uuid]), facts.members_of(CAUSE)
    if len(hot) < HOT_GPUS and not told:
        return None
    return finding(
        facts,
        CAUSE,
        place=facts.node,
        confidence=0.95 if len(hot) >= HOT_GPUS and told else 0.85 if len(hot) >= HOT_GPUS else 0.7,
        evidence=present(
            _overview(facts, hot),
            *(number(facts, TEMPERATURE, uuid) for uuid in hot[:4]),
            *(number(facts, SM_CLOCK, uuid) for uuid in hot[:2]),
            *(number(facts, CLOCK_REASONS, uuid) for uuid in hot[:2]),
            *(member_line(member) for member in told),
        ),
        steps=(
            Step("Read fans and inlet temperature from the machine's controller", "ipmitool sdr type Fan"),
            Step("See the limits that the GPUs give themselves", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),
        ),
        ruled_out=ruling.against(ruling.power_brake(facts), _one_gpu(facts, hot)),
    )


def _hot(facts: Facts) -> list[str]:
    reasons = facts.of_all(CLOCK_REASONS)
    return [
        uuid
        for uuid, celsius in facts.of_all(TEMPERATURE).items()
        if celsius >= ruling.limit_celsius(facts, uuid) or int(reasons.get(uuid, 0)) & ruling.THERMAL_BITS
    ]


def _overview(facts: Facts, hot: list[str]) -> Evidence | None:
    celsius = facts.of_all(TEMPERATURE)
    if not celsius:
        return None
    text = f"{len(hot)} of {len(celsius)} GPUs of {facts.node_name} are at their limit; the hottest reads "
    return Evidence(TEMPERATURE.metric, f"{text}{max(celsius.values()):g} °C", at=facts.at, place=facts.node)


def _one_gpu(facts: Facts, hot: list[str]) -> RuledOut | None:
    if len(hot) < HOT_GPUS:
        return None
    return RuledOut("thermal_throttle", f"{len(hot)} GPUs of {facts.node_name} are hot at once, not one")
