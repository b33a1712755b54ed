"""Find the first error before the timeouts of the ranks, and kernel errors on the node of the missing rank.

A timeout is logged minutes after its cause, by ranks that only waited. If the inputs have clocks (`timeline`), the
error before the first timeout is the cause, in whichever log it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from watchkeeper.catalogue import xid
from watchkeeper.doctor import signatures
from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.judgements import collectives
from watchkeeper.doctor.opinion import Opinion, opinion
from watchkeeper.doctor.signatures import Role
from watchkeeper.doctor.timeline import short_name
from watchkeeper.model import diagnosis

TIMEOUT_SIGNS = ("watchdog-timeout", "nccl-peer-closed", "nccl-remote-error", "nccl-ib-completion")
# These causes describe that a rank waited or lost a peer, not why.
CONSEQUENCES = frozenset({"nccl_timeout_straggler", "nccl_rank_died", "training_stalled", diagnosis.UNKNOWN_CAUSE, ""})
KERNEL_CAUSES = {
    "kernel-xid": "",
    "kernel-gpu_lost": "gpu_fell_off_bus",
    "kernel-oom_kill": "host_oom",
    "kernel-gsp_error": "gsp_timeout",
    "kernel-nvlink_error": "nvlink_error",
    "kernel-nic_error": "ib_link_degraded",
    "kernel-link_down": "ib_link_degraded",
}
# Xids that only follow from another fault.
FOLLOWING_XIDS = frozenset({45, 154})
# An error that is first in time has slightly higher confidence than the same error without a time.
FIRST_CONFIDENCE, NODE_CONFIDENCE = 0.84, 0.8
# A sign with less confidence before the timeouts does not weaken clearer ones.
MIN_CONFIDENCE = 0.5
LATE_FACTOR = 0.45
MAX_SHOWN = 4


def first_error(facts: DoctorFacts) -> Iterable[Opinion]:
    """The first error before the first timeout, if both have a time."""
    first = _find_first_error(facts)
    if first is None:
        return
    sighting, at, timeout_at = first
    place = ", ".join(f"{name} {sighting.fields[name]}" for name in ("rank", "node") if name in sighting.fields)
    why = f"It was the first error, at {at:%H:%M:%S}{f' ({place})' if place else ''}, "
    why += f"{(timeout_at - at).total_seconds():.0f} s before the first rank timed out."
    yield opinion(_cause_of(sighting), max(FIRST_CONFIDENCE, _confidence(sighting)), why, on=[sighting])


def weaken_late_opinions(facts: DoctorFacts, opinions: Iterable[Opinion]) -> list[Opinion]:
    """Lower the confidence of opinions whose lines are all after the first timeout, if an earlier error is known."""
    first = _find_first_error(facts)
    if first is None:
        return list(opinions)
    sighting, _, timeout_at = first
    note = "it happened after the first rank timed out"
    return [
        replace(
            candidate,
            confidence=candidate.confidence * LATE_FACTOR,
            ruled_out=(*candidate.ruled_out, f"{candidate.cause}: {note}"),
        )
        if candidate.cause not in CONSEQUENCES
        and candidate.cause != _cause_of(sighting)
        and candidate.sightings
        and all(sighting.at is not None and sighting.at > timeout_at for sighting in candidate.sightings)
        else candidate
        for candidate in opinions
    ]


def _find_first_error(facts: DoctorFacts) -> tuple[Sighting, datetime, datetime] | None:
    """The first error, its time, and the later time of the first timeout."""
    timeout_at = next((sighting.at for sighting in facts.find(*TIMEOUT_SIGNS) if sighting.at is not None), None)
    for sighting in facts.all_sightings():
        if timeout_at is None or (sighting.at is not None and sighting.at >= timeout_at):
            return None
        is_error = _cause_of(sighting) not in CONSEQUENCES and sighting.sign not in TIMEOUT_SIGNS
        if sighting.at is not None and is_error and _confidence(sighting) >= MIN_CONFIDENCE:
            return sighting, sighting.at, timeout_at
    return None


def missing_node_errors(facts: DoctorFacts) -> Iterable[Opinion]:
    """Kernel errors on the node of the missing rank before the timeouts of the others."""
    timeouts = facts.find("watchdog-timeout")
    missing = collectives.missing_ranks(facts)
    if not timeouts or not missing:
        return
    rank_by_node = {
        short_name(sighting.fields["node"]): sighting.fields["rank"]
        for sighting in facts.find("nccl-rank")
        if sighting.fields["rank"] in missing and "node" in sighting.fields
    }
    by_cause: dict[tuple[str, str], list[Sighting]] = {}
    for sighting in facts.find(*KERNEL_CAUSES):
        node = short_name(sighting.fields.get("node", ""))
        is_later = sighting.at is not None and timeouts[0].at is not None and sighting.at > timeouts[0].at
        if node in rank_by_node and not is_later and _cause_of(sighting) not in CONSEQUENCES:
            by_cause.setdefault((_cause_of(sighting), node), []).append(sighting)
    for (cause, node), sightings in by_cause.items():
        rank = rank_by_node[node]
        why = f"The other ranks waited for rank {rank}, and the kernel of its node {node} logged this."
        where = [("missing_rank", rank), ("missing_node", sightings[0].fields["node"])]
        yield opinion(cause, NODE_CONFIDENCE, why, on=sightings[:MAX_SHOWN], where=where)


def _cause_of(sighting: Sighting) -> str:
    if sighting.sign == "kernel-xid":
        code = int(sighting.fields["code"])
        return "" if code in FOLLOWING_XIDS else xid.lookup(code).cause
    sign = signatures.lookup(sighting.sign)
    return KERNEL_CAUSES.get(sighting.sign) or (sign.cause if sign.role is Role.CAUSE else "")


def _confidence(sighting: Sighting) -> float:
    return FIRST_CONFIDENCE if sighting.sign in KERNEL_CAUSES else signatures.lookup(sighting.sign).confidence
