"""A week in review: which causes, how fast they were found and repaired, which rules are noisy, who breaks again.

Pure: made from incidents and their timelines, for `watchkeeper incidents digest` and GET /api/digest.
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

MOST_LISTED = 20
DIAGNOSED = "diagnosis"


@dataclass(frozen=True, slots=True)
class CauseLine:
    """Medians in seconds; None where nothing was measured."""

    cause: str
    incidents: int
    detect_seconds: float | None
    diagnose_seconds: float | None
    repair_seconds: float | None


@dataclass(frozen=True, slots=True)
class Counted:
    name: str
    incidents: int


@dataclass(frozen=True, slots=True)
class Digest:
    since: datetime
    until: datetime
    incidents: int
    still_open: int
    by_cause: tuple[CauseLine, ...]
    noisiest_rules: tuple[Counted, ...]
    repeat_offenders: tuple[Counted, ...]
    # By what the inventory says of them; what nobody says has its own line, `unmapped`.
    by_team: tuple[Counted, ...] = ()
    by_rack: tuple[Counted, ...] = ()
    by_pool: tuple[Counted, ...] = ()


def make_digest(
    incidents: Iterable[Incident],
    *,
    since: datetime,
    until: datetime,
    timeline: Callable[[str], Sequence[TimelineEntry]],
    names: Callable[[Incident], str],
    belongs_to: Callable[[Incident], Mapping[str, frozenset[str]]],
) -> Digest:
    """Of the incidents that opened in the time; one that hits two teams counts for both."""
    # One that became a part of another is counted there.
    mine = [one for one in incidents if since <= one.opened_at < until and one.part_of is None]
    by_cause: dict[str, list[Incident]] = {}
    for one in mine:
        by_cause.setdefault(one.cause, []).append(one)
    lines = [_line(cause, some, timeline=timeline) for cause, some in by_cause.items()]
    rules = Counter(name for one in mine for name in set(alert_names(one)))
    places = Counter(names(one) for one in mine)
    owners = [belongs_to(one) for one in mine]
    counted = {kind: Counter(name for own in owners for name in own.get(kind, ())) for kind in ("team", "rack", "pool")}
    return Digest(
        since=since,
        until=until,
        incidents=len(mine),
        still_open=sum(one.is_open for one in mine),
        by_cause=tuple(sorted(lines, key=lambda line: (-line.incidents, line.cause))),
        noisiest_rules=_most(rules, at_least=1),
        repeat_offenders=_most(places, at_least=2),
        by_team=_most(counted["team"], at_least=1),
        by_rack=_most(counted["rack"], at_least=1),
        by_pool=_most(counted["pool"], at_least=1),
    )


def digest_lines(digest: Digest) -> list[str]:
    """The digest for a terminal or an e-mail."""
    span = f"{digest.since:%Y-%m-%d} to {digest.until:%Y-%m-%d}"
    said = [f"Incidents {span}: {digest.incidents}, {digest.still_open} still open"]
    if digest.by_cause:
        said += ["", "By cause (median times to detect, diagnose, repair)"]
        said += [
            f"  {line.incidents:4}  {line.cause:32} {_time(line.detect_seconds):>8} "
            f"{_time(line.diagnose_seconds):>8} {_time(line.repair_seconds):>8}"
            for line in digest.by_cause
        ]
    for title, counted in (
        ("Noisiest rules", digest.noisiest_rules),
        ("Again and again", digest.repeat_offenders),
        ("By team", digest.by_team),
        ("By rack", digest.by_rack),
        ("By pool", digest.by_pool),
    ):
        if counted:
            said += ["", title, *(f"  {one.incidents:4}  {one.name}" for one in counted)]
    return said


def _line(cause: str, some: Sequence[Incident], *, timeline: Callable[[str], Sequence[TimelineEntry]]) -> CauseLine:
    detect = [(one.opened_at - min(member.since for member in one.members)).total_seconds() for one in some]
    repair = [(one.resolved_at - one.opened_at).total_seconds() for one in some if one.resolved_at is not None]
    diagnose = []
    for one in some:
        first = next((entry.at for entry in timeline(one.id) if entry.kind == DIAGNOSED), None)
        if first is not None:
            diagnose.append((first - one.opened_at).total_seconds())
    return CauseLine(cause, len(some), _median(detect), _median(diagnose), _median(repair))


def _median(seconds: Sequence[float]) -> float | None:
    # A clock that is a little ahead must not make the time to detect negative.
    return round(max(median(seconds), 0.0), 1) if seconds else None


def _most(counts: Counter[str], *, at_least: int) -> tuple[Counted, ...]:
    """The most frequent; what is unmapped is among them however rare it is."""
    listed = dict(counts.most_common(MOST_LISTED)) | ({UNMAPPED: counts[UNMAPPED]} if counts[UNMAPPED] else {})
    return tuple(Counted(name, count) for name, count in listed.items() if count >= at_least)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else durations.format_seconds(round(seconds))
