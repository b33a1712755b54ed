"""Rank opinions into findings: one per cause, consequences after their cause, the best first.

The table packs/signatures/cascades.csv lists which causes follow from which. A consequence stays in the report, with
lower confidence and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from watchkeeper.catalogue import causes, pack
from watchkeeper.doctor import signatures
from watchkeeper.doctor.facts import MAX_EVIDENCE, Opinion
from watchkeeper.model import diagnosis

FILE = "signatures/cascades.csv"
# Other causes count as consequences only of a cause with at least this confidence.
ROOT_CONFIDENCE = 0.5
# A cause with much lower confidence does not explain a clearer one.
ROOT_MARGIN = 0.2
EFFECT_FACTOR = 0.45
# Each further sign of a cause adds this much confidence, up to MAX_CONFIDENCE.
AGREEMENT = 0.03
MAX_CONFIDENCE = 0.97
# An unknown cause asks for more input, however clear its line is.
MAX_UNKNOWN_CONFIDENCE = 0.4
MIN_CONFIDENCE = 0.12
# Below this, an unknown cause means only that an error was logged.
MIN_UNKNOWN_CONFIDENCE = 0.3
MAX_FINDINGS = 8
MAX_REASONS = 3


def rank_causes(opinions: Iterable[Opinion]) -> list[Opinion]:
    """One opinion per cause, best first; of equal ones the first in time."""
    by_cause: dict[str, list[Opinion]] = {}
    advice: list[str] = []
    for opinion in opinions:
        if opinion.cause:
            by_cause.setdefault(opinion.cause, []).append(opinion)
        else:
            advice.extend(opinion.advice)
    ranked = _weaken_effects([_merge(cause, cause_opinions) for cause, cause_opinions in by_cause.items()])
    ranked = [candidate for candidate in ranked if candidate.confidence >= MIN_CONFIDENCE]
    ranked.sort(key=lambda candidate: (-round(candidate.confidence, 2), candidate.order, candidate.cause))
    if ranked and ranked[0].confidence >= ROOT_CONFIDENCE and ranked[0].cause != diagnosis.UNKNOWN_CAUSE:
        # With a known cause, an unexplained line adds no information.
        ranked = [
            opinion
            for opinion in ranked
            if opinion.cause != diagnosis.UNKNOWN_CAUSE or opinion.confidence >= MIN_UNKNOWN_CONFIDENCE
        ]
    if advice and ranked:
        ranked[0] = replace(ranked[0], advice=(*ranked[0].advice, *dict.fromkeys(advice)))
    return ranked[:MAX_FINDINGS]


def _merge(cause: str, opinions: Sequence[Opinion]) -> Opinion:
    ordered = sorted(opinions, key=lambda opinion: (-opinion.confidence, opinion.order))
    best = ordered[0].confidence
    signs = {sighting.sign for opinion in opinions if opinion.confidence >= 0.4 for sighting in opinion.sightings}
    confidence = max(best, min(MAX_CONFIDENCE, best + AGREEMENT * (len(signs) - 1)))
    if cause == diagnosis.UNKNOWN_CAUSE:
        confidence = min(confidence, MAX_UNKNOWN_CONFIDENCE)
    sightings = {sighting.order: sighting for opinion in ordered for sighting in opinion.sightings}
    reasons = dict.fromkeys(opinion.why for opinion in ordered if opinion.why)
    return Opinion(
        cause=cause,
        confidence=confidence,
        why=" ".join(list(reasons)[:MAX_REASONS]),
        sightings=tuple(sorted(list(sightings.values())[:MAX_EVIDENCE], key=lambda sighting: sighting.order)),
        ruled_out=tuple(dict.fromkeys(text for opinion in ordered for text in opinion.ruled_out)),
        extra_where=tuple(dict.fromkeys(pair for opinion in ordered for pair in opinion.extra_where)),
        advice=tuple(dict.fromkeys(text for opinion in ordered for text in opinion.advice)),
        order=min(opinion.order for opinion in opinions),
    )


def _weaken_effects(ranked: Sequence[Opinion]) -> list[Opinion]:
    """Lower the confidence of consequences, and add the reason to both causes."""
    result = []
    for candidate in ranked:
        roots = [
            root
            for root in ranked
            if root.cause != candidate.cause
            and root.confidence >= ROOT_CONFIDENCE
            and root.confidence >= candidate.confidence - ROOT_MARGIN
            and candidate.cause in effects_of(root.cause)
            and not _has_same_lines(root, candidate)
            and not (root.cause in effects_of(candidate.cause) and candidate.confidence >= root.confidence)
        ]
        if roots:
            root = max(roots, key=lambda option: option.confidence)
            ruled_out = (*candidate.ruled_out, f"{root.cause} is the cause: {cascade_reason(root.cause)}")
            candidate = replace(candidate, confidence=candidate.confidence * EFFECT_FACTOR, ruled_out=ruled_out)
        effects = [other.cause for other in ranked if other.cause in effects_of(candidate.cause) and not roots]
        if effects and candidate.confidence >= ROOT_CONFIDENCE:
            reason = cascade_reason(candidate.cause)
            notes = (f"{name}: a consequence; {reason}" for name in effects if name != "unknown")
            candidate = replace(candidate, ruled_out=(*candidate.ruled_out, *notes))
        result.append(candidate)
    return result


def _has_same_lines(root: Opinion, other: Opinion) -> bool:
    """Whether both causes rest on the same lines, because their signs allow both causes."""
    lines = {sighting.order for sighting in other.sightings}
    rows = [signatures.table().signs.get(sighting.sign) for sighting in root.sightings]
    return all(sighting.order in lines for sighting in root.sightings) and all(
        sign is not None and {root.cause, other.cause} <= sign.causes.keys() for sign in rows
    )


def effects_of(cause: str) -> frozenset[str]:
    return _cascades().get(cause, (frozenset(), ""))[0]


def cascade_reason(cause: str) -> str:
    return _cascades().get(cause, (frozenset(), ""))[1] or "it explains the other signs"


@cache
def _cascades() -> dict[str, tuple[frozenset[str], str]]:
    return {root: (effects, why) for root, effects, why in pack.load(FILE, _read_row)}


def _read_row(cells: Mapping[str, str]) -> tuple[str, frozenset[str], str]:
    cause_ids = frozenset(row.cause for row in causes.all_causes())
    effects = frozenset(pack.choice(name, cause_ids) for name in cells["effects"].split())
    return pack.choice(cells["root"], cause_ids), effects, cells["why"]
