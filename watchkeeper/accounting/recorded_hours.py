"""Usage out of an engine: the hours that packs/rules/usage-hours.yaml recorded, and its minutes where no hour is yet.

Works alike on the embedded engine and on Prometheus, because both only answer for series that rules have written.
`hours` also feeds the ledger. A slot of a recorded hour is the hour before its sample; a minute's is the one it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from watchkeeper.accounting import time_ranges, usage
from watchkeeper.accounting.tally import HOUR, UsageSlot, UsageTally
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import Engine, QueryResult

MINUTE = 60.0
TEAM_HOURS = ("watchkeeper:team_gpu_hours:sum",)
JOB_HOURS = (
    "watchkeeper:workload_gpu_hours:sum",
    "watchkeeper:fleet_gpu_hours:sum",
    "watchkeeper:missing_gpu_hours:sum",
)
MINUTES = ("watchkeeper:workload_gpus:sum", "watchkeeper:fleet_gpus:sum", "watchkeeper:fleet_missing:sum")
# GPUs of each whole minute, their mean of an hour, and the number of its whole minutes, which is written last: an hour
# without it was not written to its end.
ACCOUNTED, HOUR_ACCOUNTED = "watchkeeper:gpus_accounted:sum", "watchkeeper:gpus_accounted:avg"
SEEN_MINUTES = "watchkeeper:usage_minutes:count"
# One question is at most this long: a month of hours of 10,000 jobs is 7 million samples.
CHUNK_SECONDS = 7 * 86_400.0
# Minutes stand in for hours that are not recorded yet, never for a year of them.
MOST_MINUTES_SECONDS = 2 * 86_400.0
# Our word for each label; a dimension that is not here has the label of its own name.
RENAMED = {"model": "modelName", "node": "Hostname", "kind": "workload_kind", "job": "workload"}
# A hub under load misses a turn now and then. From four minutes of five on, those that were seen stand for the others;
# below, the others are unknown.
ENOUGH_SEEN = 0.8
NOT_OF_TEAMS = frozenset({"node", "user", "kind", "job"})
COLUMNS = {name: at for at, name in enumerate(usage.PARTS)}
STATE_COLUMNS = [COLUMNS[name] for name in usage.STATES]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedHours:
    """Recorded hours, one row for each hour and key; `seen` has the share of each hour that was seen, by cluster."""

    starts: time_ranges.Seconds
    keys: Sequence[usage.Key]
    amounts: usage.Amounts
    seen: Mapping[str, Mapping[float, float]]


def hours(engine: Engine, since: float, until: float, *, by_job: bool) -> RecordedHours:
    """Every recorded hour that overlaps the window."""
    seen: dict[str, dict[float, float]] = {}
    gpus: dict[tuple[str, float], float] = {}
    parts = []
    for start, end in _chunks(since, until):
        for labels, times, values in _samples(engine, SEEN_MINUTES, start, end=end):
            known = seen.setdefault(labels.get("cluster", ""), {})
            known.update(zip(times.tolist(), np.minimum(values / 60, 1.0).tolist(), strict=True))
        for labels, times, values in _samples(engine, HOUR_ACCOUNTED, start, end=end):
            gpus.update(((labels.get("cluster", ""), at), value) for at, value in zip(times, values, strict=True))
        names = JOB_HOURS if by_job else TEAM_HOURS
        found = [each for name in names for each in _samples(engine, name, start, end=end)]
        if found:
            parts.append(_rows(found))
    if not parts:
        return RecordedHours(np.zeros(0), [], np.zeros((0, len(usage.PARTS))), seen)
    starts, keys, amounts = zip(*parts, strict=True)
    owners = [key for each in keys for key in each]
    return _standing(_whole(RecordedHours(np.concatenate(starts), owners, np.concatenate(amounts), seen)), gpus)


def hours_of_minutes(engine: Engine, starts: Sequence[float], *, by_job: bool) -> RecordedHours:
    """Hours that no rule has recorded, summed from their minutes; those without any are not there."""
    rows: list[tuple[float, usage.Key, usage.Amounts]] = []
    seen: dict[str, dict[float, float]] = {}
    for start in starts:
        keys, amounts, minutes = _sum_minutes(engine, (start, start + HOUR))
        if not by_job:
            keys = [_of_team(key) for key in keys]
        rows += [(start, key, row) for key, row in zip(keys, amounts, strict=True)]
        for cluster, times in minutes.items():
            seen.setdefault(cluster, {})[start] = min(len(times) / 60, 1.0)
    amounts = np.array([row for _, _, row in rows]) if rows else np.zeros((0, len(usage.PARTS)))
    return _standing(RecordedHours(np.array([at for at, _, _ in rows]), [key for _, key, _ in rows], amounts, seen), {})


def joined(one: RecordedHours, other: RecordedHours) -> RecordedHours:
    seen = {
        cluster: {**one.seen.get(cluster, {}), **other.seen.get(cluster, {})} for cluster in {*one.seen, *other.seen}
    }
    starts = np.concatenate([one.starts, other.starts])
    return RecordedHours(starts, [*one.keys, *other.keys], np.concatenate([one.amounts, other.amounts]), seen)


def _of_team(key: usage.Key) -> usage.Key:
    return tuple(
        "" if name in NOT_OF_TEAMS and value != usage.NOBODY else value
        for name, value in zip(usage.DIMENSIONS, key, strict=True)
    )


def _whole(found: RecordedHours) -> RecordedHours:
    """Without hours that were not written to their end; their minutes tell of them."""
    pairs = zip(found.keys, found.starts.tolist(), strict=True)
    kept = np.array([start in found.seen.get(key[0], {}) for key, start in pairs], dtype=bool)
    keys = [key for key, is_kept in zip(found.keys, kept.tolist(), strict=True) if is_kept]
    return RecordedHours(found.starts[kept], keys, found.amounts[kept], found.seen)


def _standing(found: RecordedHours, gpus: Mapping[tuple[str, float], float]) -> RecordedHours:
    """Hours of which enough was seen, as if all had been; parts that sum to the GPUs of whole minutes.

    A hub that is killed between two rules leaves a minute with some of its parts. Nobody has seen that minute, so its
    parts must not count beside the unknown that stands for it.
    """
    slots, at, sizes = by_slot(found.keys, found.starts, found.amounts)
    factors = np.ones(len(slots))
    for one, (cluster, start) in enumerate(slots):
        share = found.seen.get(cluster, {}).get(start, 1.0)
        written = gpus.get((cluster, start), 0.0) * share
        if written > 0 and sizes[one] > 0:
            factors[one] = written / sizes[one]
        if ENOUGH_SEEN <= share < 1:
            factors[one] /= share
    seen = {
        cluster: {start: 1.0 if share >= ENOUGH_SEEN else share for start, share in known.items()}
        for cluster, known in found.seen.items()
    }
    return RecordedHours(found.starts, found.keys, found.amounts * factors[at, None], seen)


def by_slot(
    keys: Sequence[usage.Key], starts: time_ranges.Seconds, amounts: usage.Amounts
) -> tuple[list[tuple[str, float]], npt.NDArray[np.int64], time_ranges.Seconds]:
    """Clusters and starts of the hours in some rows, which of them each row belongs to, and the GPU-hours of each."""
    places: dict[tuple[str, float], int] = {}
    pairs = ((key[0], start) for key, start in zip(keys, starts.tolist(), strict=True))
    at = np.fromiter((places.setdefault(one, len(places)) for one in pairs), dtype=np.int64, count=len(keys))
    sizes = np.zeros(len(places))
    np.add.at(sizes, at, amounts[:, STATE_COLUMNS].sum(axis=1))
    return list(places), at, sizes


def _rows(
    found: Sequence[tuple[Labels, time_ranges.Seconds, time_ranges.Seconds]],
) -> tuple[time_ranges.Seconds, list[usage.Key], usage.Amounts]:
    """Series of parts as rows of hours and keys, in the order of the hours."""
    starts = np.unique(np.concatenate([times for _, times, _ in found]))
    places: dict[usage.Key, int] = {}
    owners = [places.setdefault(key_of(labels), len(places)) for labels, _, _ in found]
    dense = np.zeros((len(starts), len(places), len(usage.PARTS)))
    held = np.zeros(dense.shape[:2], dtype=bool)
    for (labels, times, values), owner in zip(found, owners, strict=True):
        at = np.searchsorted(starts, times)
        held[at, owner] = True
        for column, factor in _columns(labels):
            dense[at, owner, column] += values * factor
    hour, owner_at = np.nonzero(held)
    keys = list(places)
    return starts[hour], [keys[one] for one in owner_at.tolist()], dense[hour, owner_at]


def add_hours(tally: UsageTally, found: RecordedHours) -> list[tuple[float, float]]:
    """Put recorded hours into a tally; returns the stretches of the window that they cover."""
    starts = np.unique(found.starts)
    weights = time_ranges.cover(starts, HOUR, since=tally.since, until=tally.until)
    at = np.searchsorted(starts, found.starts)
    tally.add(found.keys, found.amounts * weights[at, None])
    slots, _, sizes = by_slot(found.keys, found.starts, found.amounts)
    for (cluster, start), size in zip(slots, sizes.tolist(), strict=True):
        tally.saw(cluster, UsageSlot(start, start + HOUR, found.seen.get(cluster, {}).get(start, 1.0), size))
    return [(start, start + HOUR) for start in starts.tolist()]


def add_minutes(tally: UsageTally, engine: Engine, piece: tuple[float, float]) -> None:
    """Put the minutes of a piece of the window into a tally, summed by the engine."""
    since, until = piece
    if not MINUTE <= until - since <= MOST_MINUTES_SECONDS:
        return
    keys, amounts, minutes = _sum_minutes(engine, piece)
    clusters = np.array([key[0] for key in keys])
    for cluster, times in minutes.items():
        start, end = max(float(times[0]), since), min(float(times[-1]) + MINUTE, until)
        share = min(len(times) * MINUTE / max(end - start, MINUTE), 1.0)
        own = clusters == cluster
        if share >= ENOUGH_SEEN:
            amounts[own] /= share
            share = 1.0
        tally.saw(cluster, UsageSlot(start, end, share, float(amounts[own][:, STATE_COLUMNS].sum())))
    tally.add(keys, amounts)


def _sum_minutes(
    engine: Engine, piece: tuple[float, float]
) -> tuple[list[usage.Key], usage.Amounts, dict[str, time_ranges.Seconds]]:
    """GPU-hours of a piece by key, and the minutes that were seen of each cluster."""
    since, until = piece
    seconds = round(until - since)
    # Half a minute before the end the window holds each minute once, whatever the jitter of the evaluations.
    at = round((until - MINUTE / 2) * 1000)
    minutes: dict[str, time_ranges.Seconds] = {}
    gpus: dict[tuple[str, float], float] = {}
    for labels, times, values in engine.instant(f"{ACCOUNTED}[{seconds}s]", at).frame.rows():
        if len(times):
            cluster = labels.get("cluster", "")
            minutes[cluster] = np.unique(time_ranges.snap(times / 1000, MINUTE))
            gpus[cluster, since] = float(values.mean()) * len(minutes[cluster]) / 60
    rows: dict[usage.Key, usage.Amounts] = {}
    for name in MINUTES:
        for labels, value in engine.instant(f"sum_over_time({name}[{seconds}s])", at).latest().items():
            owned = labels if name == MINUTES[0] else labels.with_labels(team=usage.NOBODY)
            if owned.get("cluster", "") not in minutes:
                continue
            row = rows.setdefault(key_of(owned), np.zeros(len(usage.PARTS)))
            for column, factor in _columns(owned):
                row[column] += value / 60 * factor
    amounts = np.array(list(rows.values())) if rows else np.zeros((0, len(usage.PARTS)))
    found = RecordedHours(np.full(len(rows), since), list(rows), amounts, {})
    return list(rows), _standing(found, gpus).amounts, minutes


def key_of(labels: Labels) -> usage.Key:
    pairs = dict(labels.pairs)
    named = {name: pairs.get(RENAMED.get(name, name), "") for name in usage.DIMENSIONS}
    if named["team"] == usage.NOBODY:
        named |= dict.fromkeys(("project", "namespace", "user", "kind", "job"), usage.NOBODY)
    return usage.key(**named)


def _columns(labels: Labels) -> list[tuple[int, float]]:
    part = labels.get("part", "")
    if part == "watts":
        return [(usage.KWH, 0.001)]
    if part == "used" and labels.get("measured") == "gpu_util":
        return [(usage.USED, 1.0), (usage.USED_BY_UTIL, 1.0)]
    return [(COLUMNS[part], 1.0)] if part in COLUMNS else []


def _samples(
    engine: Engine, name: str, since: float, *, end: float
) -> Iterator[tuple[Labels, time_ranges.Seconds, time_ranges.Seconds]]:
    """Series of hours with the starts of their hours; a sample at 11:00 is the hour from 10:00."""
    seconds = round(end - since + 2 * HOUR)
    answer: QueryResult = engine.instant(f"{name}[{seconds}s]", round((end + HOUR) * 1000))
    for labels, times, values in answer.frame.rows():
        starts = time_ranges.snap(times / 1000, HOUR) - HOUR
        inside = (starts >= since) & (starts < end)
        # Two samples of one hour are two evaluators; the later one has seen more.
        last = np.append(starts[1:] != starts[:-1], True) if len(starts) else inside
        if (inside & last).any():
            yield labels, starts[inside & last], values[inside & last]


def _chunks(since: float, until: float) -> Iterator[tuple[float, float]]:
    # The hour before may reach into the window where hours do not begin with the clock's.
    start = since // HOUR * HOUR - HOUR
    while start < until:
        yield start, min(start + CHUNK_SECONDS, until)
        start += CHUNK_SECONDS
