"""Judge outages of services that a node depends on, such as file servers and licences."""

from __future__ import annotations

from collections.abc import Iterable

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.doctor.signatures import lookup

# The sign of an outage, and the sign of the recovery.
RECOVERY_SIGNS = {"storage-does-not-answer": "storage-answers-again", "virtual-gpu-unlicensed": "virtual-gpu-licensed"}
RECOVERED_CONFIDENCE = 0.45
NAMES = ("server", "target")


def unavailable_services(facts: DoctorFacts) -> Iterable[Opinion]:
    """Services that do not answer, or recovered after an outage that may have done harm."""
    for name, recovery_sign in RECOVERY_SIGNS.items():
        outages = facts.find(name)
        if not outages:
            continue
        sign, recoveries = lookup(name), facts.find(recovery_sign)
        ongoing = [sighting for sighting in outages if not any(_ends_outage(sighting, other) for other in recoveries)]
        if ongoing:
            yield opinion(sign.cause, sign.confidence, sign.why, on=ongoing[:MAX_EVIDENCE])
            for cause, confidence in sign.also.items():
                yield opinion(cause, confidence, sign.why, on=ongoing[:MAX_EVIDENCE])
        else:
            why = f"{sign.why} It recovered afterwards."
            yield opinion(sign.cause, RECOVERED_CONFIDENCE, why, on=[*outages[: MAX_EVIDENCE - 1], recoveries[-1]])


def _ends_outage(outage: Sighting, recovery: Sighting) -> bool:
    """Whether the recovery is of the same service and after the outage; a line without a name matches all services."""
    pairs = [
        (outage.fields[name], recovery.fields[name]) for name in NAMES if {*outage.fields} & {*recovery.fields} & {name}
    ]
    return (
        recovery.input == outage.input
        and recovery.order > outage.order
        and all(before == after for before, after in pairs)
    )
