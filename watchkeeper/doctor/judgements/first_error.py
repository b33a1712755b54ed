"""What happened before the ranks gave up: the first error in time, and the kernel's words on the missing rank's node.

A time-out is printed minutes after its reason, by ranks that only waited. Where the clocks of the inputs allow it
(`timeline`), the error that came before the first time-out is the cause, wherever its log stands in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

GAVE_UP = ("watchdog-timeout", "nccl-peer-closed", "nccl-remote-error", "nccl-ib-completion")
# These say that somebody waited or was left alone, not why.
CONSEQUENCES = frozenset({"nccl_timeout_straggler", "nccl_rank_died", "training_stalled", diagnosis.UNKNOWN_CAUSE, ""})
KERNEL = {
    "kernel-xid": "",
    "kernel-gpu_lost": "gpu_fell_off_bus",
    "kernel-oom_kill": "host_oom",
    "kernel-gsp_error": "gsp_timeout",
    "kernel-nvlink_error": "nvlink_error",
    "kernel-nic_error": "ib_link_degraded",
    "kernel-link_down": "ib_link_degraded",
}
# An Xid that only follows from another fault.
FOLLOWING = frozenset({45, 154})
# An error that came first is a little surer than the same one without a time.
FIRST, JOINED = 0.84, 0.8
# A weak sign before the time-outs is no reason to doubt what is clearer.
LEAST_STRENGTH = 0.5
LATE_FACTOR = 0.45
MAX_SHOWN = 4


def came_first(facts: DoctorFacts) -> Iterable[Opinion]:
    """The first error before the first rank gave up, when both have a time."""
    first_error = _first(facts)
    if first_error is None:
        return
    first, at, gave_up = first_error
    place = ", ".join(f"{name} {first.fields[name]}" for name in ("rank", "node") if name in first.fields)
    why = f"It came first, at {at:%H:%M:%S}{f' ({place})' if place else ''}: "
    why += f"{(gave_up - at).total_seconds():.0f} s before the first rank gave up."
    yield opinion(_cause_of(first), max(FIRST, _strength(first)), why, on=[first])


def weaken_late(facts: DoctorFacts, opinions: Iterable[Opinion]) -> list[Opinion]:
    """Opinions, less sure where all their lines came after the ranks had given up and an earlier error is known."""
    first_error = _first(facts)
    if first_error is None:
        return list(opinions)
    first, _, gave_up = first_error
    note = "it came after the first rank had given up"
    return [
        replace(
            candidate,
            confidence=candidate.confidence * LATE_FACTOR,
            ruled_out=(*candidate.ruled_out, f"{candidate.cause}: {note}"),
        )
        if candidate.cause not in CONSEQUENCES
        and candidate.cause != _cause_of(first)
        and candidate.sightings
        and all(sighting.at is not None and sighting.at > gave_up for sighting in candidate.sightings)
        else candidate
        for candidate in opinions
    ]


def _first(facts: DoctorFacts) -> tuple[Sighting, datetime, datetime] | None:
    """The first error, its time, and the later time at which the first rank gave up."""
    gave_up = next((sighting.at for sighting in facts.of(*GAVE_UP) if sighting.at is not None), None)
    for sighting in facts.all():
        if gave_up is None or (sighting.at is not None and sighting.at >= gave_up):
            return None
        is_error = _cause_of(sighting) not in CONSEQUENCES and sighting.sign not in GAVE_UP
        if sighting.at is not None and is_error and _strength(sighting) >= LEAST_STRENGTH:
            return sighting, sighting.at, gave_up
    return None


def on_the_missing_node(facts: DoctorFacts) -> Iterable[Opinion]:
    """What the kernel of the missing rank's node said before the others gave up."""
    waits = facts.of("watchdog-timeout")
    missing = collectives.missing_ranks(facts)
    if not waits or not missing:
        return
    homes = {
        short_name(sighting.fields["node"]): sighting.fields["rank"]
        for sighting in facts.of("nccl-rank")
        if sighting.fields["rank"] in missing and "node" in sighting.fields
    }
    by_cause: dict[tuple[str, str], list[Sighting]] = {}
    for sighting in facts.of(*KERNEL):
        node = short_name(sighting.fields.get("node", ""))
        is_later = sighting.at is not None and waits[0].at is not None and sighting.at > waits[0].at
        if node in homes and not is_later and _cause_of(sighting) not in CONSEQUENCES:
            by_cause.setdefault((_cause_of(sighting), node), []).append(sighting)
    for (cause, node), lines in by_cause.items():
        why = f"Rank {homes[node]}, which the others waited for, ran on {node}, whose kernel reports this."
        yield opinion(cause, JOINED, why, on=lines[:MAX_SHOWN], where=_where(homes[node], lines))


def _where(rank: str, lines: Sequence[Sighting]) -> list[tuple[str, str]]:
    return [("missing_rank", rank), ("missing_node", lines[0].fields["node"])]


def _cause_of(sighting: Sighting) -> str:
    if sighting.sign == "kernel-xid":
        code = int(sighting.fields["code"])
        return "" if code in FOLLOWING else xid.lookup(code).cause
    sign = signatures.lookup(sighting.sign)
    return KERNEL.get(sighting.sign) or (sign.cause if sign.role is Role.CAUSE else "")


def _strength(sighting: Sighting) -> float:
    return FIRST if sighting.sign in KERNEL else signatures.lookup(sighting.sign).confidence
