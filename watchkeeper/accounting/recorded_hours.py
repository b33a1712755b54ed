"""Read usage from an engine: hours recorded by packs/rules/usage-hours.yaml, and minutes where no hour exists yet.

It works with the embedded engine and with Prometheus, because it reads only recorded series. An hourly sample covers
the hour before it; a minute sample covers the minute that it starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from watchkeeper.accounting import time_ranges, usage
from watchkeeper.accounting.tally import HOUR, UsageSlot, UsageTally
from watchkeeper.accounting.time_ranges import Seconds
from watchkeeper.model.labels import Labels
from watchkeeper.query.engine import Engine

# A series with the start of each hour and its value.
HourlySeries = tuple[Labels, Seconds, Seconds]
MINUTE = 60.0
TEAM_HOURS = ("watchkeeper:team_gpu_hours:sum",)
JOB_HOURS = (
    "watchkeeper:workload_gpu_hours:sum",
    "watchkeeper:fleet_gpu_hours:sum",
    "watchkeeper:missing_gpu_hours:sum",
)
MINUTES = ("watchkeeper:workload_gpus:sum", "watchkeeper:fleet_gpus:sum", "watchkeeper:fleet_missing:sum")
# The GPUs of each complete minute, their mean over an hour, and the number of complete minutes. The last is written
# last: an hour without it is incomplete.
GPUS_METRIC, HOURLY_GPUS_METRIC = "watchkeeper:gpus_accounted:sum", "watchkeeper:gpus_accounted:avg"
RECORDED_MINUTES_METRIC = "watchkeeper:usage_minutes:count"
# The longest range of one query: a month of hours of 10,000 jobs is 7 million samples.
CHUNK_SECONDS = 7 * 86_400.0
# Minutes replace hours that are not recorded yet; longer ranges would read too many samples.
MAX_MINUTES_SECONDS = 2 * 86_400.0
# The label of each dimension; other dimensions have a label of the same name.
LABEL_NAMES = {"model": "modelName", "node": "Hostname", "kind": "workload_kind", "job": "workload"}
# A hub under load misses some evaluations. If at least 80 % of the minutes are recorded, the hour is extrapolated from
# them; otherwise the missing minutes count as unknown.
MIN_RECORDED_SHARE = 0.8
JOB_DIMENSIONS = frozenset({"node", "user", "kind", "job"})
COLUMNS = {name: at for at, name in enumerate(usage.PARTS)}
STATE_COLUMNS = [COLUMNS[name] for name in usage.STATES]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedHours:
    """Recorded hours, one row for each hour and key; `recorded_shares` is by cluster and hour."""

    starts: Seconds
    keys: Sequence[usage.Key]
    amounts: usage.Amounts
    share: Mapping[str, Mapping[float, float]]


def read_hours(engine: Engine, since: float, until: float, *, by_job: bool) -> RecordedHours:
    shares: dict[str, dict[float, float]] = {}
    gpus: dict[tuple[str, float], float] = {}
    parts = []
    # The previous hour can overlap the window if recorded hours do not start on the full hour.
    for start in np.arange(since // HOUR * HOUR - HOUR, until, CHUNK_SECONDS).tolist():
        end = min(start + CHUNK_SECONDS, until)
        for labels, times, values in _read_samples(engine, RECORDED_MINUTES_METRIC, start, end=end):
            cluster_shares = shares.setdefault(labels.get("cluster", ""), {})
            cluster_shares.update(zip(times.tolist(), np.minimum(values / 60, 1.0).tolist(), strict=True))
        for labels, times, values in _read_samples(engine, HOURLY_GPUS_METRIC, start, end=end):
            gpus.update(((labels.get("cluster", ""), at), value) for at, value in zip(times, values, strict=True))
        names = JOB_HOURS if by_job else TEAM_HOURS
        series = [samples for name in names for samples in _read_samples(engine, name, start, end=end)]
        if series:
            parts.append(_build_rows(series))
    if not parts:
        return RecordedHours(np.zeros(0), [], np.zeros((0, len(usage.PARTS))), shares)
    starts, keys, amounts = zip(*parts, strict=True)
    owners = [key for part_keys in keys for key in part_keys]
    hours = np.concatenate(starts)
    # Incomplete hours are summed from their minutes.
    is_complete = [at in shares.get(key[0], {}) for key, at in zip(owners, hours.tolist(), strict=True)]
    kept = list(itertools.compress(owners, is_complete))
    recorded = RecordedHours(hours[is_complete], kept, np.concatenate(amounts)[is_complete], shares)
    return _scale_to_recorded(recorded, gpus)


def sum_hours_from_minutes(engine: Engine, starts: Sequence[float], *, by_job: bool) -> RecordedHours:
    """Sum hours that no rule recorded from their minutes; hours without any minute are omitted."""
    rows: list[tuple[float, usage.Key, usage.Amounts]] = []
    shares: dict[str, dict[float, float]] = {}
    for start in starts:
        keys, amounts, minutes = _sum_minutes(engine, start, start + HOUR)
        if not by_job:
            keys = [
                tuple("" if name in JOB_DIMENSIONS and value != usage.UNOWNED else value for name, value in labelled)
                for labelled in (zip(usage.DIMENSIONS, key, strict=True) for key in keys)
            ]
        rows += [(start, key, row) for key, row in zip(keys, amounts, strict=True)]
        for cluster, times in minutes.items():
            shares.setdefault(cluster, {})[start] = min(len(times) / 60, 1.0)
    amounts = np.array([row for _, _, row in rows]) if rows else np.zeros((0, len(usage.PARTS)))
    hour_starts = np.array([at for at, _, _ in rows])
    return _scale_to_recorded(RecordedHours(hour_starts, [key for _, key, _ in rows], amounts, shares), {})


def join_hours(first: RecordedHours, second: RecordedHours) -> RecordedHours:
    clusters = {*first.share, *second.share}
    shares = {name: {**first.share.get(name, {}), **second.share.get(name, {})} for name in clusters}
    starts = np.concatenate([first.starts, second.starts])
    return RecordedHours(starts, [*first.keys, *second.keys], np.concatenate([first.amounts, second.amounts]), shares)


def _scale_to_recorded(recorded: RecordedHours, gpus: Mapping[tuple[str, float], float]) -> RecordedHours:
    """Extrapolate hours with enough recorded minutes, and scale each hour to the GPUs of its complete minutes."""
    # A hub that is killed between two rules leaves an incomplete minute. That minute counts as unknown, so its recorded
    # parts must not count as well.
    slots, slot_indexes, sizes = sum_by_slot(recorded.keys, recorded.starts, recorded.amounts)
    factors = np.ones(len(slots))
    for index, (cluster, start) in enumerate(slots):
        share = recorded.share.get(cluster, {}).get(start, 1.0)
        recorded_gpu_hours = gpus.get((cluster, start), 0.0) * share
        if recorded_gpu_hours > 0 and sizes[index] > 0:
            factors[index] = recorded_gpu_hours / sizes[index]
        if MIN_RECORDED_SHARE <= share < 1:
            factors[index] /= share
    shares = {
        name: {start: 1.0 if share >= MIN_RECORDED_SHARE else share for start, share in cluster_shares.items()}
        for name, cluster_shares in recorded.share.items()
    }
    return RecordedHours(recorded.starts, recorded.keys, recorded.amounts * factors[slot_indexes, None], shares)


def sum_by_slot(
    keys: Sequence[usage.Key], starts: Seconds, amounts: usage.Amounts
) -> tuple[list[tuple[str, float]], npt.NDArray[np.int64], Seconds]:
    """Return the distinct (cluster, hour) slots of some rows, the slot index of each row, and the GPU-hours by slot."""
    slot_indexes: dict[tuple[str, float], int] = {}
    pairs = ((key[0], start) for key, start in zip(keys, starts.tolist(), strict=True))
    row_slots = np.array([slot_indexes.setdefault(slot, len(slot_indexes)) for slot in pairs], dtype=np.int64)
    sizes = np.zeros(len(slot_indexes))
    np.add.at(sizes, row_slots, amounts[:, STATE_COLUMNS].sum(axis=1))
    return list(slot_indexes), row_slots, sizes


def _build_rows(series: Sequence[HourlySeries]) -> tuple[Seconds, list[usage.Key], usage.Amounts]:
    """Convert series, one for each part, to rows of hours and keys, sorted by hour."""
    starts = np.unique(np.concatenate([times for _, times, _ in series]))
    key_indexes: dict[usage.Key, int] = {}
    owners = [key_indexes.setdefault(key_from_labels(labels), len(key_indexes)) for labels, _, _ in series]
    amounts = np.zeros((len(starts), len(key_indexes), len(usage.PARTS)))
    has_sample = np.zeros(amounts.shape[:2], dtype=bool)
    for (labels, times, values), owner in zip(series, owners, strict=True):
        indexes = np.searchsorted(starts, times)
        has_sample[indexes, owner] = True
        for column, factor in _part_columns(labels):
            amounts[indexes, owner, column] += values * factor
    hour_index, key_index = np.nonzero(has_sample)
    keys = list(key_indexes)
    return starts[hour_index], [keys[index] for index in key_index.tolist()], amounts[hour_index, key_index]


def add_hours(tally: UsageTally, recorded: RecordedHours) -> list[tuple[float, float]]:
    """Add recorded hours to a tally; return the time ranges that they cover."""
    starts = np.unique(recorded.starts)
    weights = time_ranges.cover(starts, HOUR, since=tally.since, until=tally.until)
    indexes = np.searchsorted(starts, recorded.starts)
    tally.add(recorded.keys, recorded.amounts * weights[indexes, None])
    slots, _, sizes = sum_by_slot(recorded.keys, recorded.starts, recorded.amounts)
    for (cluster, start), size in zip(slots, sizes.tolist(), strict=True):
        tally.add_slot(cluster, UsageSlot(start, start + HOUR, recorded.share.get(cluster, {}).get(start, 1.0), size))
    return [(start, start + HOUR) for start in starts.tolist()]


def add_minutes(tally: UsageTally, engine: Engine, since: float, until: float) -> None:
    if not MINUTE <= until - since <= MAX_MINUTES_SECONDS:
        return
    keys, amounts, minutes = _sum_minutes(engine, since, until)
    clusters = np.array([key[0] for key in keys])
    for cluster, times in minutes.items():
        start, end = max(float(times[0]), since), min(float(times[-1]) + MINUTE, until)
        share = min(len(times) * MINUTE / max(end - start, MINUTE), 1.0)
        is_cluster = clusters == cluster
        if share >= MIN_RECORDED_SHARE:
            amounts[is_cluster] /= share
            share = 1.0
        tally.add_slot(cluster, UsageSlot(start, end, share, float(amounts[is_cluster][:, STATE_COLUMNS].sum())))
    tally.add(keys, amounts)


def _sum_minutes(
    engine: Engine, since: float, until: float
) -> tuple[list[usage.Key], usage.Amounts, dict[str, Seconds]]:
    """Return the GPU-hours of a window by key, and the recorded minutes of each cluster."""
    seconds = round(until - since)
    # A range that ends half a minute early has each minute once, whatever the jitter of the evaluations.
    at_ms = round((until - MINUTE / 2) * 1000)
    minutes: dict[str, Seconds] = {}
    gpus: dict[tuple[str, float], float] = {}
    for labels, times, values in engine.instant(f"{GPUS_METRIC}[{seconds}s]", at_ms).frame.rows():
        if len(times):
            cluster = labels.get("cluster", "")
            minutes[cluster] = np.unique(time_ranges.snap(times / 1000, MINUTE))
            gpus[cluster, since] = float(values.mean()) * len(minutes[cluster]) / 60
    rows: dict[usage.Key, usage.Amounts] = {}
    for name in MINUTES:
        for labels, value in engine.instant(f"sum_over_time({name}[{seconds}s])", at_ms).latest().items():
            owner_labels = labels if name == MINUTES[0] else labels.with_labels(team=usage.UNOWNED)
            if owner_labels.get("cluster", "") not in minutes:
                continue
            row = rows.setdefault(key_from_labels(owner_labels), np.zeros(len(usage.PARTS)))
            for column, factor in _part_columns(owner_labels):
                row[column] += value / 60 * factor
    amounts = np.array(list(rows.values())) if rows else np.zeros((0, len(usage.PARTS)))
    recorded = RecordedHours(np.full(len(rows), since), list(rows), amounts, {})
    return list(rows), _scale_to_recorded(recorded, gpus).amounts, minutes


def key_from_labels(labels: Labels) -> usage.Key:
    pairs = dict(labels.pairs)
    values = {name: pairs.get(LABEL_NAMES.get(name, name), "") for name in usage.DIMENSIONS}
    if values["team"] == usage.UNOWNED:
        values |= dict.fromkeys(("project", "namespace", "user", "kind", "job"), usage.UNOWNED)
    return usage.make_key(**values)


def _part_columns(labels: Labels) -> list[tuple[int, float]]:
    part = labels.get("part", "")
    if part == "watts":
        return [(usage.KWH, 0.001)]
    if part == "used" and labels.get("measured") == "gpu_util":
        return [(usage.USED, 1.0), (usage.USED_BY_UTIL, 1.0)]
    return [(COLUMNS[part], 1.0)] if part in COLUMNS else []


def _read_samples(engine: Engine, name: str, since: float, *, end: float) -> Iterator[HourlySeries]:
    """Read hourly series with the start of each hour; a sample at 11:00 is the hour from 10:00."""
    seconds = round(end - since + 2 * HOUR)
    for labels, times, values in engine.instant(f"{name}[{seconds}s]", round((end + HOUR) * 1000)).frame.rows():
        starts = time_ranges.snap(times / 1000, HOUR) - HOUR
        is_inside = (starts >= since) & (starts < end)
        # Two samples of one hour come from two hubs; the later one covers more.
        is_last = np.append(starts[1:] != starts[:-1], True) if len(starts) else is_inside
        if (is_inside & is_last).any():
            yield labels, starts[is_inside & is_last], values[is_inside & is_last]
