"""Why another cause was dropped, each with the fact that speaks against it; None while nothing does.

The checks collect these with `against`. What was not seen rules nothing out.
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

# Where a GPU does not say its own limit: the highest maximum operating temperature of packs/gpu_models.csv.
USUAL_LIMIT_CELSIUS = 87.0


def against(*reasons: RuledOut | None) -> tuple[RuledOut, ...]:
    return tuple(reason for reason in reasons if reason is not None)


def limit_celsius(facts: IncidentFacts, gpu: str) -> float:
    """A GPU's own limit; 0 or nothing means that it does not say."""
    return facts.reading(MAX_TEMPERATURE, gpu) or USUAL_LIMIT_CELSIUS


def application(facts: IncidentFacts, gpu: Place) -> RuledOut | None:
    if facts.events_with_cause("app_illegal_access", place=gpu):
        return None
    return RuledOut("app_illegal_access", f"no application Xid of {facts.names(gpu)} within 10 minutes")


def heat(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    celsius, limit = facts.reading(TEMPERATURE, gpu), limit_celsius(facts, gpu)
    if celsius is None or celsius >= limit:
        return None
    return RuledOut("thermal_throttle", f"it last read {celsius:g} °C, below its limit of {limit:g} °C")


def memory(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    if facts.reading(DOUBLE_BIT, gpu) != 0:
        return None
    return RuledOut("ecc_uncorrectable", f"{DOUBLE_BIT.metric} reads 0")


def remap_failure(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    if facts.reading(REMAP_FAILURE, gpu) != 0:
        return None
    return RuledOut("row_remap_failure", f"{REMAP_FAILURE.metric} reads 0, so the row can still be remapped")


def power_brake(facts: IncidentFacts) -> RuledOut | None:
    reasons = facts.readings_by_gpu(CLOCK_REASONS)
    if not reasons or any(int(value) & clock_reasons.POWER_BRAKE for value in reasons.values()):
        return None
    return RuledOut(
        "power_brake", f"no GPU of {facts.node_name} has the power brake bit 0x80 in {CLOCK_REASONS.metric}"
    )


def hardware(facts: IncidentFacts, gpu: Place) -> RuledOut | None:
    """No grave fault in the log, and the GPU still answers."""
    if any(is_hardware_fault(event) and gpu.encloses(event.place) for event in facts.events):
        return None
    if facts.reporting is None or gpu.gpu not in facts.reporting:
        return None
    return RuledOut("gpu_fell_off_bus", f"{facts.names(gpu)} still reports, and the log has no hardware Xid of it")
