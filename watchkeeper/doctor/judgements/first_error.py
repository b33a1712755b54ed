"""Find the error or the rank that was first: the other lines of a failed job are mostly about ranks that only waited.

If the inputs have clocks (`timeline`), the error before the first timeout is the cause, in whichever log it is. A rank
is named if it is the only one that differs from the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from watchkeeper.catalogue import xid
from watchkeeper.doctor import signatures
from watchkeeper.doctor.facts import MAX_EVIDENCE, DoctorFacts, Opinion, Sighting, field_values, opinion
from watchkeeper.doctor.judgements import collectives, kernel
from watchkeeper.doctor.signatures import Role
from watchkeeper.doctor.timeline import short_name
from watchkeeper.model import diagnosis
from watchkeeper.readers import flight_recorder

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
# An error that is first in time has slightly higher confidence than the same error without a time.
FIRST_CONFIDENCE, NODE_CONFIDENCE = 0.84, 0.8
# A sign with less confidence before the timeouts does not weaken clearer ones.
MIN_CONFIDENCE = 0.5
LATE_FACTOR = 0.45
MAX_SHOWN = 4
# [rank2] step 1200 loss: nan     step=1200 | loss: nan
STEP = re.compile(r"(?i)\b(?:step|iteration|iter|global_step)\b\W{0,3}(\d{1,12})")
CONNECTION_LOST = ("store-peer-closed", "nccl-peer-closed", "nccl-remote-error")
FOLLOWING_SIGNS = (*CONNECTION_LOST, "gloo-timeout", "watchdog-timeout", "monitored-barrier")
# With two ranks, it is unknown which of them differs.
MIN_RANKS = 3
# Slightly above the sign alone, because the ranks agree which one it is.
DIVERGES, DISAGREES, SILENT = 0.9, 0.96, 0.75


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
    explained, timeout_at, candidates = {*CONSEQUENCES, _cause_of(first[0])}, first[2], list(opinions)
    for at, candidate in enumerate(candidates):
        times = [sighting.at for sighting in candidate.sightings]
        if candidate.cause not in explained and times and all(time is not None and time > timeout_at for time in times):
            note = f"{candidate.cause}: it happened after the first rank timed out"
            confidence, ruled_out = candidate.confidence * LATE_FACTOR, (*candidate.ruled_out, note)
            candidates[at] = replace(candidate, confidence=confidence, ruled_out=ruled_out)
    return candidates


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
        return "" if code in kernel.CONSEQUENT_XIDS else xid.lookup(code).cause
    sign = signatures.lookup(sighting.sign)
    return KERNEL_CAUSES.get(sighting.sign) or (sign.cause if sign.role is Role.CAUSE else "")


def _confidence(sighting: Sighting) -> float:
    return FIRST_CONFIDENCE if sighting.sign in KERNEL_CAUSES else signatures.lookup(sighting.sign).confidence


def first_to_diverge(facts: DoctorFacts) -> Iterable[Opinion]:
    """The rank whose loss was NaN first; the next all-reduce spreads NaN to the other ranks."""
    first_by_rank: dict[str, Sighting] = {}
    for sighting in facts.find("loss-nan"):
        if "rank" in sighting.fields:
            first_by_rank.setdefault(sighting.fields["rank"], sighting)
    steps = {rank: int(match[1]) for rank, sighting in first_by_rank.items() if (match := STEP.search(sighting.text))}
    if len(first_by_rank) < 2 or len(steps) < len(first_by_rank):
        return
    first = min(steps.values())
    ranks = [rank for rank, step in steps.items() if step == first]
    if len(ranks) == 1:
        why = f"Rank {ranks[0]} was the first, at step {first}; the next all-reduce spread it to the other ranks."
        on = [first_by_rank[ranks[0]]]
        yield opinion("training_diverged", DIVERGES, why, on=on, where=[("culprit_rank", ranks[0])])


def disagrees_with_all(facts: DoctorFacts) -> Iterable[Opinion]:
    """The rank that is in every pair of ranks with different collectives."""
    sightings = [sighting for sighting in facts.find("collectives-differ") if sighting.fields.get("peer")]
    pairs = {frozenset((sighting.fields["rank"], sighting.fields["peer"])) for sighting in sightings}
    if not pairs or len(frozenset.union(*pairs)) < MIN_RANKS:
        return
    in_all = frozenset.intersection(*pairs)
    if len(in_all) == 1:
        (rank,) = in_all
        why = f"Rank {rank} differs from the others: it is in every pair of ranks that disagree."
        own = [sighting for sighting in sightings if sighting.fields["rank"] == rank] or sightings
        yield opinion("nccl_shape_or_collective_mismatch", DISAGREES, why, on=own[:1], where=[("culprit_rank", rank)])


def silent_rank(facts: DoctorFacts) -> Iterable[Opinion]:
    """The only rank whose log has no connection error, while the other ranks lost a peer."""
    names = (flight_recorder.RANK_OF_NAME.search(given.name.rsplit("/", 1)[-1]) for given in facts.inputs)
    ranks = {match[1] for match in names if match}
    disconnected = facts.find(*CONNECTION_LOST)
    following_ranks = set(field_values(facts.find(*FOLLOWING_SIGNS), "rank"))
    silent_ranks = sorted(ranks - following_ranks, key=int)
    if not disconnected or len(ranks) < MIN_RANKS or len(silent_ranks) != 1:
        return
    why = f"The other {len(following_ranks & ranks)} ranks lost a connection; only rank {silent_ranks[0]} did not."
    where = [("culprit_rank", silent_ranks[0]), ("missing_rank", silent_ranks[0])]
    yield opinion("nccl_rank_died", SILENT, why, on=disconnected[:MAX_EVIDENCE], where=where)
