"""Services that a machine depends on, and that come back: file servers and licences."""

from __future__ import annotations

from collections.abc import Iterable

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.doctor.signatures import lookup

# A sign of a service that is away, and the one that says it is back.
RETURNS = {
    "storage-does-not-answer": "storage-answers-again",
    "virtual-gpu-unlicensed": "virtual-gpu-licensed",
}
OVER = 0.45
NAMES = ("server", "target")


def away(facts: DoctorFacts) -> Iterable[Opinion]:
    """Services that do not answer; one that came back may still have harmed what waited for it."""
    for name, back in RETURNS.items():
        outages = facts.of(name)
        if not outages:
            continue
        sign, returned = lookup(name), facts.of(back)
        still = [sighting for sighting in outages if not any(_ends(sighting, other) for other in returned)]
        if still:
            yield opinion(sign.cause, sign.confidence, sign.why, on=still[:MAX_EVIDENCE])
            for cause, confidence in sign.also.items():
                yield opinion(cause, confidence, sign.why, on=still[:MAX_EVIDENCE])
        else:
            why = f"{sign.why} Here it came back afterwards."
            yield opinion(sign.cause, OVER, why, on=[*outages[: MAX_EVIDENCE - 1], returned[-1]])


def _ends(failed: Sighting, back: Sighting) -> bool:
    """Whether the service of the one line is back with the other; lines that name no service count for all."""
    named = [(failed.fields[name], back.fields[name]) for name in NAMES if {*failed.fields} & {*back.fields} & {name}]
    return back.input == failed.input and back.order > failed.order and all(before == after for before, after in named)
