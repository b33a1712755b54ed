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
    found = _first(facts)
    if found is None:
        return
    first, at, gave_up = found
    place = ", ".join(f"{name} {first.fields[name]}" for name in ("rank", "node") if name in first.fields)
    why = f"It came first, at {at:%H:%M:%S}{f' ({place})' if place else ''}: "
    why += f"{(gave_up - at).total_seconds():.0f} s before the first rank gave up."
    yield opinion(_cause_of(first), max(FIRST, _strength(first)), why, on=[first])


def weaken_late(facts: DoctorFacts, opinions: Iterable[Opinion]) -> list[Opinion]:
    """Opinions, less sure where all their lines came after the ranks had given up and an earlier error is known."""
    found = _first(facts)
    if found is None:
        return list(opinions)
    first, _, gave_up = found
    note = "it came after the first rank had given up"
    return [
        replace(one, confidence=one.confidence * LATE_FACTOR, ruled_out=(*one.ruled_out, f"{one.cause}: {note}"))
        if one.cause not in CONSEQUENCES
        and one.cause != _cause_of(first)
        and one.sightings
        and all(seen.at is not None and seen.at > gave_up for seen in one.sightings)
        else one
        for one in opinions
    ]


def _first(facts: DoctorFacts) -> tuple[Sighting, datetime, datetime] | None:
    """The first error, its time, and the later time at which the first rank gave up."""
    gave_up = next((seen.at for seen in facts.of(*GAVE_UP) if seen.at is not None), None)
    for seen in facts.all():
        if gave_up is None or (seen.at is not None and seen.at >= gave_up):
            return None
        is_error = _cause_of(seen) not in CONSEQUENCES and seen.sign not in GAVE_UP
        if seen.at is not None and is_error and _strength(seen) >= LEAST_STRENGTH:
            return seen, seen.at, gave_up
    return None


def on_the_missing_node(facts: DoctorFacts) -> Iterable[Opinion]:
    """What the kernel of the missing rank's node said before the others gave up."""
    waits = facts.of("watchdog-timeout")
    missing = collectives.missing_ranks(facts)
    if not waits or not missing:
        return
    homes = {
        short_name(seen.fields["node"]): seen.fields["rank"]
        for seen in facts.of("nccl-rank")
        if seen.fields["rank"] in missing and "node" in seen.fields
    }
    by_cause: dict[tuple[str, str], list[Sighting]] = {}
    for seen in facts.of(*KERNEL):
        node = short_name(seen.fields.get("node", ""))
        is_later = seen.at is not None and waits[0].at is not None and seen.at > waits[0].at
        if node in homes and not is_later and _cause_of(seen) not in CONSEQUENCES:
            by_cause.setdefault((_cause_of(seen), node), []).append(seen)
    for (cause, node), lines in by_cause.items():
        why = f"Rank {homes[node]}, which the others waited for, ran on {node}, whose kernel reports this."
        yield opinion(cause, JOINED, why, on=lines[:MAX_SHOWN], where=_where(homes[node], lines))


def _where(rank: str, lines: Sequence[Sighting]) -> list[tuple[str, str]]:
    return [("missing_rank", rank), ("missing_node", lines[0].fields["node"])]


def _cause_of(seen: Sighting) -> str:
    if seen.sign == "kernel-xid":
        code = int(seen.fields["code"])
        return "" if code in FOLLOWING else xid.lookup(code).cause
    sign = signatures.lookup(seen.sign)
    return KERNEL.get(seen.sign) or (sign.cause if sign.role is Role.CAUSE else "")


def _strength(seen: Sighting) -> float:
    return FIRST if seen.sign in KERNEL else signatures.lookup(seen.sign).confidence
