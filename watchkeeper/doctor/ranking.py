"""Opinions into findings: one per cause, consequences behind their cause, best first.

The table packs/signatures/cascades.csv says which causes follow from which. A consequence keeps its place
in the answer, with less confidence and the reason why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from watchkeeper.catalogue import causes, pack
from watchkeeper.doctor import signatures
from watchkeeper.doctor.facts import Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion
from watchkeeper.model import diagnosis

FILE = "signatures/cascades.csv"
# A cause must be at least this likely before other signs are taken for its consequences.
ROOT_CONFIDENCE = 0.5
# A guess does not explain away what the lines say outright.
ROOT_MARGIN = 0.2
EFFECT_FACTOR = 0.45
# Several different signs of one cause make it surer, but never certain.
AGREEMENT = 0.03
MOST = 0.97
# An unknown cause is a wish for more input, not an answer, however clear the line is.
MOST_FOR_UNKNOWN = 0.4
LEAST = 0.12
# Below this an unknown cause says no more than that an error was logged.
WORTH_ASKING = 0.3
MAX_FINDINGS = 8
MAX_REASONS = 3


@dataclass(frozen=True, slots=True)
class Weighed:
    """A cause with all that speaks for it."""

    cause: str
    confidence: float
    why: str
    sightings: tuple[Sighting, ...]
    ruled_out: tuple[str, ...]
    extra_where: tuple[tuple[str, str], ...]
    advice: tuple[str, ...]
    order: int


def rank(opinions: Iterable[Opinion]) -> list[Weighed]:
    """Findings, best first; of equals the one seen first."""
    by_cause: dict[str, list[Opinion]] = {}
    advice: list[str] = []
    for opinion in opinions:
        if opinion.cause:
            by_cause.setdefault(opinion.cause, []).append(opinion)
        else:
            advice.extend(opinion.advice)
    weighed = _cascade([_merge(cause, grouped) for cause, grouped in by_cause.items()])
    weighed = [candidate for candidate in weighed if candidate.confidence >= LEAST]
    weighed.sort(key=lambda candidate: (-round(candidate.confidence, 2), candidate.order, candidate.cause))
    if weighed and weighed[0].confidence >= ROOT_CONFIDENCE and weighed[0].cause != diagnosis.UNKNOWN_CAUSE:
        # Where the cause is known, a line that nothing explains only repeats that something failed.
        weighed = [
            candidate
            for candidate in weighed
            if candidate.cause != diagnosis.UNKNOWN_CAUSE or candidate.confidence >= WORTH_ASKING
        ]
    if advice and weighed:
        weighed[0] = replace(weighed[0], advice=(*weighed[0].advice, *dict.fromkeys(advice)))
    return weighed[:MAX_FINDINGS]


def _merge(cause: str, opinions: Sequence[Opinion]) -> Weighed:
    best = max(opinions, key=lambda opinion: (opinion.confidence, -opinion.order))
    signs = {sighting.sign for opinion in opinions if opinion.confidence >= 0.4 for sighting in opinion.sightings}
    confidence = min(MOST, best.confidence + AGREEMENT * (len(signs) - 1)) if signs else best.confidence
    confidence = max(confidence, best.confidence)
    if cause == diagnosis.UNKNOWN_CAUSE:
        confidence = min(confidence, MOST_FOR_UNKNOWN)
    ordered = sorted(opinions, key=lambda opinion: (-opinion.confidence, opinion.order))
    sightings = {sighting.order: sighting for opinion in ordered for sighting in opinion.sightings}
    whys = dict.fromkeys(opinion.why for opinion in ordered if opinion.why)
    return Weighed(
        cause=cause,
        confidence=confidence,
        why=" ".join(list(whys)[:MAX_REASONS]),
        sightings=tuple(sorted(list(sightings.values())[:MAX_EVIDENCE], key=lambda sighting: sighting.order)),
        ruled_out=tuple(dict.fromkeys(text for opinion in ordered for text in opinion.ruled_out)),
        extra_where=tuple(dict.fromkeys(pair for opinion in ordered for pair in opinion.extra_where)),
        advice=tuple(dict.fromkeys(text for opinion in ordered for text in opinion.advice)),
        order=min(opinion.order for opinion in opinions),
    )


def _cascade(weighed: Sequence[Weighed]) -> list[Weighed]:
    """Lower what follows from something else that is there, and say so on both sides."""
    result = []
    for candidate in weighed:
        roots = [
            root
            for root in weighed
            if root.cause != candidate.cause
            and root.confidence >= ROOT_CONFIDENCE
            and root.confidence >= candidate.confidence - ROOT_MARGIN
            and candidate.cause in effects_of(root.cause)
            and not _rests_on_the_same(root, candidate)
            and not (root.cause in effects_of(candidate.cause) and candidate.confidence >= root.confidence)
        ]
        if roots:
            root = max(roots, key=lambda option: option.confidence)
            note = f"{root.cause} comes before it: {reason_of(root.cause)}"
            candidate = replace(
                candidate, confidence=candidate.confidence * EFFECT_FACTOR, ruled_out=(*candidate.ruled_out, note)
            )
        followers = [other.cause for other in weighed if other.cause in effects_of(candidate.cause) and not roots]
        if followers and candidate.confidence >= ROOT_CONFIDENCE:
            notes = tuple(
                f"{name}: a consequence here; {reason_of(candidate.cause)}" for name in followers if name != "unknown"
            )
            candidate = replace(candidate, ruled_out=(*candidate.ruled_out, *notes))
        result.append(candidate)
    return result


def _rests_on_the_same(root: Weighed, other: Weighed) -> bool:
    """Whether a root is only another reading of the other's lines, as the rows of their signs have it."""
    lines = {sighting.order for sighting in other.sightings}
    rows = [signatures.table().signs.get(sighting.sign) for sighting in root.sightings]
    return all(sighting.order in lines for sighting in root.sightings) and all(
        sign is not None and {root.cause, other.cause} <= {sign.cause, *sign.also} for sign in rows
    )


def effects_of(cause: str) -> frozenset[str]:
    return _cascades().get(cause, (frozenset(), ""))[0]


def reason_of(cause: str) -> str:
    return _cascades().get(cause, (frozenset(), ""))[1] or "the other signs fit it"


@cache
def _cascades() -> dict[str, tuple[frozenset[str], str]]:
    return {root: (effects, why) for root, effects, why in pack.load(FILE, _read_row)}


def _read_row(cells: Mapping[str, str]) -> tuple[str, frozenset[str], str]:
    cause_ids = frozenset(row.cause for row in causes.all_causes())
    effects = frozenset(pack.choice(name, cause_ids) for name in cells["effects"].split())
    return pack.choice(cells["root"], cause_ids), effects, cells["why"]
