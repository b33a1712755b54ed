"""A job that tells of no steps and has one slow GPU: the others of its node wait for it, and it waits for nobody.

packs/rules/jobs.yaml decides who is late (`JobRankSlow`); here it is named, with what its clocks say.
"""

from __future__ import annotations

from statistics import median

from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.checks.training import COMPUTE, FAMILIES
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.diagnose.place_context import BUSIER
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.fleet import Place

# As in packs/rules/jobs.yaml.
LATE_SHARE = 0.1
CLOCK = "DCGM_FI_DEV_SM_CLOCK"
# Clocks of healthy GPUs at the same work differ by a few hundredths.
SLOW_CLOCK = 0.95


def late_gpu(facts: IncidentFacts) -> Finding | None:
    """One GPU that keeps its SMs busier than the others of its node, in a job whose ranks say nothing."""
    late = [(labels, share) for labels, share in facts.context.rows(BUSIER) if share > LATE_SHARE]
    if facts.incident.family not in FAMILIES or facts.context.rows(COMPUTE) or len(late) != 1:
        return None
    labels, share = late[0]
    place = Place(facts.place.cluster, node=labels.get("Hostname") or "?", gpu=labels.get("UUID") or None)
    name = facts.names(place)
    said = f"{name} keeps its SMs busy {share:.0%} longer than the others of its node, which wait for it"
    clocks = _clocks(facts, place)
    look = "Find out what holds its clocks down" if clocks else "Compare its clocks and links with its neighbours'"
    return make_finding(
        facts,
        "nccl_timeout_straggler",
        place=facts.place,
        confidence=0.88 if clocks else 0.82,
        evidence=(
            Evidence("DCGM_FI_PROF_SM_ACTIVE", said, at=facts.at, place=place),
            *clocks,
            *(member_evidence(member) for member in facts.incident.members[:4]),
        ),
        why=f"The rank on {name} is late at every step, and all others wait for it.",
        steps=(DiagnosisStep(look, "nvidia-smi -q -d PERFORMANCE,CLOCK"),),
        ruled_out=(
            RuledOut("ib_link_degraded", "the other GPUs wait for this one; a slow fabric slows down all alike"),
        ),
    )


def _clocks(facts: IncidentFacts, place: Place) -> tuple[Evidence, ...]:
    """That its clock is below those of its neighbours, where it is."""
    there = {labels.get("UUID", ""): mhz for labels, mhz in facts.context.rows(CLOCK, Hostname=place.node or "")}
    own, others = there.get(place.gpu or ""), [mhz for uuid, mhz in there.items() if uuid != place.gpu]
    if own is None or not others or own >= SLOW_CLOCK * median(others):
        return ()
    said = f"{facts.names(place)}: SM clock {own:.0f} MHz, the others of its node {median(others):.0f} MHz"
    return (Evidence(CLOCK, said, at=facts.at, place=place),)
