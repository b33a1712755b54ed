"""Rule out other causes, each with the fact that contradicts it; None if no fact does.

Missing data rules nothing out.
"""

from __future__ import annotations

from watchkeeper.diagnose.evidence import (
    CLOCK_REASONS,
    DOUBLE_BIT,
    MAX_TEMPERATURE,
    REMAP_FAILURE,
    TEMPERATURE,
    IncidentFacts,
    is_hardware_fault,
)
from watchkeeper.model import clock_reasons
from watchkeeper.model.diagnosis import RuledOut
from watchkeeper.model.fleet import Place

# If a GPU does not report its limit: the highest maximum operating temperature of packs/gpu_models.csv.
USUAL_LIMIT_CELSIUS = 87.0


def limit_celsius(facts: IncidentFacts, gpu: str) -> float:
    """The temperature limit of a GPU; 0 or no reading means that the GPU does not report one."""
    return facts.reading(MAX_TEMPERATURE, gpu) or USUAL_LIMIT_CELSIUS


def rule_out_application(facts: IncidentFacts, gpu: Place) -> RuledOut | None:
    if facts.events_with_cause("app_illegal_access", place=gpu):
        return None
    return RuledOut("app_illegal_access", f"no application Xid of {facts.names(gpu)} within 10 minutes")


def rule_out_heat(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    celsius, limit = facts.reading(TEMPERATURE, gpu), limit_celsius(facts, gpu)
    if celsius is None or celsius >= limit:
        return None
    return RuledOut("thermal_throttle", f"last temperature {celsius:g} °C, limit {limit:g} °C")


def rule_out_memory(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    if facts.reading(DOUBLE_BIT, gpu) != 0:
        return None
    return RuledOut("ecc_uncorrectable", f"{DOUBLE_BIT.metric} is 0")


def rule_out_remap_failure(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    if facts.reading(REMAP_FAILURE, gpu) != 0:
        return None
    return RuledOut("row_remap_failure", f"{REMAP_FAILURE.metric} is 0: the row can still be remapped")


def rule_out_power_brake(facts: IncidentFacts) -> RuledOut | None:
    reasons = facts.readings_by_gpu(CLOCK_REASONS)
    if not reasons or any(int(value) & clock_reasons.POWER_BRAKE for value in reasons.values()):
        return None
    return RuledOut(
        "power_brake", f"no GPU of {facts.node_name} has the power brake bit 0x80 in {CLOCK_REASONS.metric}"
    )


def rule_out_hardware(facts: IncidentFacts, gpu: Place) -> RuledOut | None:
    """Rule out a lost GPU if the kernel log has no hardware fault and the GPU still reports."""
    if any(is_hardware_fault(event) and gpu.encloses(event.place) for event in facts.events):
        return None
    if facts.reporting is None or gpu.gpu not in facts.reporting:
        return None
    return RuledOut("gpu_fell_off_bus", f"{facts.names(gpu)} still reports and has no hardware Xid in the kernel log")
