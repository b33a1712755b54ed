"""Build the weekly digest: incidents by cause, times to detect and repair, noisy rules, repeated failures.

Pure: uses incidents and their timelines, for `watchkeeper incidents digest` and GET /api/digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from watchkeeper.incidents.incident_labels import alert_names
from watchkeeper.kit import durations
from watchkeeper.model.fleet import UNMAPPED
from watchkeeper.model.incidents import Incident
from watchkeeper.notify.incident_report import TimelineEntry

MAX_LISTED = 20
DIAGNOSED = "diagnosis"


@dataclass(frozen=True, slots=True)
class CauseLine:
    """The incidents of a cause, with median times in seconds; None if not measured."""

    cause: str
    incidents: int
    detect_seconds: float | None
    diagnose_seconds: float | None
    repair_seconds: float | None


@dataclass(frozen=True, slots=True)
class NamedCount:
    name: str
    incidents: int


@dataclass(frozen=True, slots=True)
class Digest:
    since: datetime
    until: datetime
    incidents: int
    still_open: int
    by_cause: tuple[CauseLine, ...]
    noisiest_rules: tuple[NamedCount, ...]
    repeat_offenders: tuple[NamedCount, ...]
    # From the inventory; incidents without an entry count as `unmapped`.
    by_team: tuple[NamedCount, ...] = ()
    by_rack: tuple[NamedCount, ...] = ()
    by_pool: tuple[NamedCount, ...] = ()


def make_digest(
    incidents: Iterable[Incident],
    *,
    since: datetime,
    until: datetime,
    timeline: Callable[[str], Sequence[TimelineEntry]],
    names: Callable[[Incident], str],
    belongs_to: Callable[[Incident], Mapping[str, frozenset[str]]],
) -> Digest:
    """The digest of incidents that opened in the window; an incident of two teams counts for both."""
    # A merged incident is counted in the other incident.
    opened = [incident for incident in incidents if since <= incident.opened_at < until and incident.part_of is None]
    by_cause: dict[str, list[Incident]] = {}
    for incident in opened:
        by_cause.setdefault(incident.cause, []).append(incident)
    cause_lines = [_cause_line(cause, group, timeline=timeline) for cause, group in by_cause.items()]
    rules = Counter(name for incident in opened for name in set(alert_names(incident)))
    places = Counter(names(incident) for incident in opened)
    labels = [belongs_to(incident) for incident in opened]
    counts_by_kind = {
        kind: Counter(name for owner in labels for name in owner.get(kind, ())) for kind in ("team", "rack", "pool")
    }
    return Digest(
        since=since,
        until=until,
        incidents=len(opened),
        still_open=sum(incident.is_open for incident in opened),
        by_cause=tuple(sorted(cause_lines, key=lambda line: (-line.incidents, line.cause))),
        noisiest_rules=_most_frequent(rules, at_least=1),
        repeat_offenders=_most_frequent(places, at_least=2),
        by_team=_most_frequent(counts_by_kind["team"], at_least=1),
        by_rack=_most_frequent(counts_by_kind["rack"], at_least=1),
        by_pool=_most_frequent(counts_by_kind["pool"], at_least=1),
    )


def digest_lines(digest: Digest) -> list[str]:
    window = f"{digest.since:%Y-%m-%d} to {digest.until:%Y-%m-%d}"
    lines = [f"Incidents {window}: {digest.incidents}, {digest.still_open} still open"]
    if digest.by_cause:
        lines += ["", "By cause (median times to detect, diagnose, repair)"]
        lines += [
            f"  {line.incidents:4}  {line.cause:32} {_format_duration(line.detect_seconds):>8} "
            f"{_format_duration(line.diagnose_seconds):>8} {_format_duration(line.repair_seconds):>8}"
            for line in digest.by_cause
        ]
    for title, counts in (
        ("Noisiest rules", digest.noisiest_rules),
        ("Repeated failures", digest.repeat_offenders),
        ("By team", digest.by_team),
        ("By rack", digest.by_rack),
        ("By pool", digest.by_pool),
    ):
        if counts:
            lines += ["", title, *(f"  {entry.incidents:4}  {entry.name}" for entry in counts)]
    return lines


def _cause_line(
    cause: str, incidents: Sequence[Incident], *, timeline: Callable[[str], Sequence[TimelineEntry]]
) -> CauseLine:
    detect, diagnose, repair = list[float](), list[float](), list[float]()
    for incident in incidents:
        opened_at = incident.opened_at
        detect.append((opened_at - min(member.since for member in incident.members)).total_seconds())
        first = next((entry.at for entry in timeline(incident.id) if entry.kind == DIAGNOSED), None)
        if first is not None:
            diagnose.append((first - opened_at).total_seconds())
        if incident.resolved_at is not None:
            repair.append((incident.resolved_at - opened_at).total_seconds())
    return CauseLine(cause, len(incidents), _median(detect), _median(diagnose), _median(repair))


def _median(seconds: Sequence[float]) -> float | None:
    # A clock that runs ahead must not make the time to detect negative.
    return round(max(median(seconds), 0.0), 1) if seconds else None


def _most_frequent(counts: Counter[str], *, at_least: int) -> tuple[NamedCount, ...]:
    """The most frequent names, and always `unmapped`."""
    listed = dict(counts.most_common(MAX_LISTED)) | ({UNMAPPED: counts[UNMAPPED]} if counts[UNMAPPED] else {})
    return tuple(NamedCount(name, count) for name, count in listed.items() if count >= at_least)


def _format_duration(seconds: float | None) -> str:
    return "-" if seconds is None else durations.format_seconds(round(seconds))
