"""Create findings, and rule out other causes by the fact that contradicts them.

Title, explanation and first step come from packs/causes.csv. Missing data rules nothing out.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchkeeper.catalogue import causes
from watchkeeper.diagnose import evidence
from watchkeeper.diagnose.evidence import IncidentFacts, is_hardware_fault
from watchkeeper.model import clock_reasons
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.fleet import Place

# If a GPU does not report its limit: the highest maximum operating temperature of packs/gpu_models.csv.
USUAL_LIMIT_CELSIUS = 87.0


def make_finding(
    facts: IncidentFacts,
    cause: str,
    *,
    confidence: float,
    evidence: Iterable[Evidence | None],
    place: Place | None = None,
    steps: tuple[DiagnosisStep, ...] = (),
    ruled_out: Iterable[RuledOut | None] = (),
    why: str | None = None,
) -> Finding:
    """A finding for a cause of the catalogue, by default at the incident's place.

    The catalogue's advice is the first step, before the steps of the check. None among evidence and causes is dropped.
    """
    row, place = causes.lookup(cause), place or facts.place
    name = facts.names(place)
    # The cause of a job's incident may be at a node: then the title names that node.
    node = facts.names(Place(place.cluster, node=place.node)) if place.node else facts.node_name
    return Finding(
        cause=row.cause,
        confidence=confidence,
        place=place,
        title=row.headline(name, node),
        why=why or row.why,
        evidence=tuple(item for item in evidence if item is not None),
        actions=(DiagnosisStep(row.advice(name, node, is_domain=place.domain is not None)), *steps),
        ruled_out=tuple(other for other in ruled_out if other is not None),
    )


def limit_celsius(facts: IncidentFacts, gpu: str) -> float:
    """The temperature limit of a GPU; 0 or no reading means that the GPU does not report one."""
    return facts.reading(evidence.MAX_TEMPERATURE, gpu) or USUAL_LIMIT_CELSIUS


def rule_out_application(facts: IncidentFacts, gpu: Place) -> RuledOut | None:
    why = f"no application Xid of {facts.names(gpu)} within 10 minutes"
    has_events = facts.events_with_cause("app_illegal_access", place=gpu)
    return None if has_events else RuledOut("app_illegal_access", why)


def rule_out_heat(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    celsius, limit = facts.reading(evidence.TEMPERATURE, gpu), limit_celsius(facts, gpu)
    if celsius is None or celsius >= limit:
        return None
    return RuledOut("thermal_throttle", f"last temperature {celsius:g} °C, limit {limit:g} °C")


def rule_out_memory(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    is_zero = facts.reading(evidence.DOUBLE_BIT, gpu) == 0
    return RuledOut("ecc_uncorrectable", f"{evidence.DOUBLE_BIT.metric} is 0") if is_zero else None


def rule_out_remap_failure(facts: IncidentFacts, gpu: str) -> RuledOut | None:
    why = f"{evidence.REMAP_FAILURE.metric} is 0: the row can still be remapped"
    return RuledOut("row_remap_failure", why) if facts.reading(evidence.REMAP_FAILURE, gpu) == 0 else None


def rule_out_power_brake(facts: IncidentFacts) -> RuledOut | None:
    reasons = facts.readings_by_gpu(evidence.CLOCK_REASONS)
    if not reasons or any(int(value) & clock_reasons.POWER_BRAKE for value in reasons.values()):
        return None
    why = f"no GPU of {facts.node_name} has the power brake bit 0x80 in {evidence.CLOCK_REASONS.metric}"
    return RuledOut("power_brake", why)


def rule_out_hardware(facts: IncidentFacts, gpu: Place) -> RuledOut | None:
    """Rule out a lost GPU if the kernel log has no hardware fault and the GPU still reports."""
    has_fault = any(is_hardware_fault(event) and gpu.encloses(event.place) for event in facts.events)
    if has_fault or facts.reporting is None or gpu.gpu not in facts.reporting:
        return None
    return RuledOut("gpu_fell_off_bus", f"{facts.names(gpu)} still reports and has no hardware Xid in the kernel log")
