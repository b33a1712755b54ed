"""Whether a diagnosis says something new: looked at again, an incident mostly says the same.

The pipeline asks before it keeps one, so that a timeline is for what changed. All functions are pure.
"""

from __future__ import annotations

import re

from watchkeeper.model import diagnosis

_WRITTEN = re.compile(r"people: (\S+) looked like this and was (\S+) \(([^:]*): (.*)\)", re.DOTALL)


def has_changed(found: diagnosis.Diagnosis, before: diagnosis.Diagnosis | None) -> bool:
    """Other causes, places, sureness or words of people than before, or a GPU that has its number at last."""
    if before is None:
        return True
    return _gist(found) != _gist(before) or (_is_by_uuid(before) and not _is_by_uuid(found))


def similar_incidents(found: diagnosis.Diagnosis) -> tuple[diagnosis.SimilarIncident, ...]:
    return found.similar or _alike_in_texts(found.checked_sources)


def _alike_in_texts(texts: tuple[str, ...]) -> tuple[diagnosis.SimilarIncident, ...]:
    """Compatibility: journals of before `Diagnosis.similar` have the words of people in `checked_sources` only."""
    read = (_WRITTEN.fullmatch(text) for text in texts)
    return tuple(diagnosis.SimilarIncident(*match.groups()) for match in read if match is not None)


def _gist(found: diagnosis.Diagnosis) -> object:
    """What a person would call the same diagnosis: the same causes at the same places, as sure as before."""
    return similar_incidents(found), [
        (one.cause, one.place, round(one.confidence, 1), len(one.evidence)) for one in found.findings
    ]


def _is_by_uuid(found: diagnosis.Diagnosis) -> bool:
    """True where a GPU is called by its UUID, because no page had told its number yet."""
    return any(one.place.is_named_in(one.title) for one in found.findings)
