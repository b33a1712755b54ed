"""Find the slow GPU of a job without rank metrics: the other GPUs of its node wait for it.

packs/rules/jobs.yaml decides which GPU is slow (`JobRankSlow`); this check names it and compares its clock.
"""

from __future__ import annotations

from statistics import median

from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.checks.training import CLOCK, COMPUTE, FAMILIES
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.diagnose.place_context import GPU_BUSIER
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.fleet import Place

# As in packs/rules/jobs.yaml.
LATE_SHARE = 0.1
# The clocks of healthy GPUs with the same work differ by a few per cent.
SLOW_CLOCK = 0.95


def late_gpu(facts: IncidentFacts) -> Finding | None:
    """One GPU has higher SM activity than the others of its node, in a job without rank metrics."""
    late = [(labels, share) for labels, share in facts.context.rows(GPU_BUSIER) if share > LATE_SHARE]
    if facts.incident.family not in FAMILIES or facts.context.rows(COMPUTE) or len(late) != 1:
        return None
    labels, share = late[0]
    place = Place(facts.place.cluster, node=labels.get("Hostname") or "?", gpu=labels.get("UUID") or None)
    name = facts.names(place)
    text = f"{name}: SMs busy {share:.0%} longer than on the other GPUs of its node, which wait for it"
    clocks = _clock_evidence(facts, place)
    step = "Find out why its clock is low" if clocks else "Compare its clocks and links with the other GPUs"
    return make_finding(
        facts,
        "nccl_timeout_straggler",
        confidence=0.88 if clocks else 0.82,
        evidence=(
            Evidence("DCGM_FI_PROF_SM_ACTIVE", text, at=facts.at, place=place),
            *clocks,
            *(member_evidence(member) for member in facts.incident.members[:4]),
        ),
        why=f"The rank on {name} is late at every step; all other ranks wait for it.",
        steps=(DiagnosisStep(step, "nvidia-smi -q -d PERFORMANCE,CLOCK"),),
        ruled_out=(RuledOut("ib_link_degraded", "only this GPU is slow; a slow fabric slows all GPUs"),),
    )


def _clock_evidence(facts: IncidentFacts, place: Place) -> tuple[Evidence, ...]:
    """Evidence that the clock of the GPU is lower than those of its neighbours."""
    clocks = {labels.get("UUID", ""): mhz for labels, mhz in facts.context.rows(CLOCK, Hostname=place.node or "")}
    own, others = clocks.get(place.gpu or ""), [mhz for uuid, mhz in clocks.items() if uuid != place.gpu]
    if own is None or not others or own >= SLOW_CLOCK * median(others):
        return ()
    text = f"{facts.names(place)}: SM clock {own:.0f} MHz, other GPUs of the node {median(others):.0f} MHz"
    return (Evidence(CLOCK, text, at=facts.at, place=place),)
