"""Decide whether a new diagnosis differs from the previous one, which it mostly does not.

The pipeline stores only diagnoses that differ, so that a timeline contains only changes. All functions are pure.
"""

from __future__ import annotations

import re

from watchkeeper.model import diagnosis

SIMILAR_TEXT = re.compile(r"people: (\S+) looked like this and was (\S+) \(([^:]*): (.*)\)", re.DOTALL)


def has_changed(current: diagnosis.Diagnosis, previous: diagnosis.Diagnosis | None) -> bool:
    """Whether causes, places, confidence or corrections differ, or a GPU has its index instead of its UUID."""
    if previous is None:
        return True
    return _comparable(current) != _comparable(previous) or (_has_uuid_title(previous) and not _has_uuid_title(current))


def similar_incidents(current: diagnosis.Diagnosis) -> tuple[diagnosis.SimilarIncident, ...]:
    return current.similar or _parse_similar(current.checked_sources)


def _parse_similar(texts: tuple[str, ...]) -> tuple[diagnosis.SimilarIncident, ...]:
    """Compatibility: diagnoses without `Diagnosis.similar` have corrections as texts in `checked_sources`."""
    matches = (SIMILAR_TEXT.fullmatch(text) for text in texts)
    return tuple(diagnosis.SimilarIncident(*match.groups()) for match in matches if match is not None)


def _comparable(current: diagnosis.Diagnosis) -> object:
    """The parts that must be equal for two diagnoses to count as the same."""
    return similar_incidents(current), [
        (finding.cause, finding.place, round(finding.confidence, 1), len(finding.evidence))
        for finding in current.findings
    ]


def _has_uuid_title(current: diagnosis.Diagnosis) -> bool:
    """Whether a title has the UUID of a GPU, because its index was not known yet."""
    return any(finding.place.is_named_in(finding.title) for finding in current.findings)
