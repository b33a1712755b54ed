"""Divide a recording into segments and classify each: by label if there are labels, else by change.

The first seconds of a segment are its start-up and are excluded. Without labels, `changes` finds segments, and
neighbours of the same class are merged.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from watchkeeper.catalogue.gpu_models import GpuModel
from watchkeeper.probe.profile import changes, columns
from watchkeeper.probe.profile.classify import MIN_CONFIDENCE, classify
from watchkeeper.probe.profile.features import Features, activity, measure_features
from watchkeeper.probe.profile.recording import GpuTrack, Recording, present_values
from watchkeeper.probe.profile.verdict import (
    MIB_PER_GB,
    Bound,
    WorkloadVerdict,
    default_model,
    find_model,
    guess_model,
    limits,
)

# Clocks, power and NVML's averages need this long to settle at the start of a workload.
SETTLE_SECONDS = 3.0
# At least this share of a short segment is classified.
MIN_JUDGED_SHARE = 0.6
# The class of fewer rows is not reliable.
MIN_ROWS = 10
# So many bursts are a rhythm; fewer are the start of a program, or its end.
MIN_BURSTS = 3
START_FRACTION = 30


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the track of one GPU with its verdict; `label` is that of the file, or a number."""

    gpu: str
    label: str
    since: float
    until: float
    samples: int
    features: Features
    verdict: WorkloadVerdict


@dataclass(frozen=True, slots=True)
class JudgedRecording:
    """All segments of a recording; if `model_is_known` is False, the GPU model is assumed."""

    segments: tuple[Segment, ...]
    model: GpuModel
    model_is_known: bool
    unassigned_rows: int


def judge_recording(recording: Recording, model: GpuModel | None = None) -> JudgedRecording:
    segments, unassigned_rows = [], 0
    ceilings, is_known = choose_model(recording, model)
    for track in recording.tracks:
        labelled_rows, skipped_rows = _split_into_segments(track, ceilings)
        # Missing is not idle: rows without activity values belong to no segment.
        without_activity = [rows for _, rows in labelled_rows if not track.has_activity(rows)]
        labelled_rows = [(label, rows) for label, rows in labelled_rows if rows not in without_activity]
        unassigned_rows += skipped_rows + sum(map(len, without_activity))
        idle_power = idle_watts(track, ceilings)
        for label, rows in labelled_rows:
            segments.append(_judge_segment(track, label, rows=rows, model=ceilings, idle_power=idle_power))
    return JudgedRecording(tuple(segments), ceilings, is_known, unassigned_rows)


def choose_model(recording: Recording, model: GpuModel | None = None) -> tuple[GpuModel, bool]:
    """The GPU model and whether it is known: as given, as recorded, by memory clock, or else assumed."""
    chosen = model or (find_model(recording.model) if recording.model else None)
    guesses = filter(None, map(_guess_model, recording.tracks))
    chosen = chosen or next(guesses, None)
    return chosen or default_model(), chosen is not None


def judge_whole(track: GpuTrack, model: GpuModel) -> Segment:
    return _judge_segment(track, "all", rows=list(range(len(track))), model=model, idle_power=idle_watts(track, model))


def trim_to_work(track: GpuTrack, model: GpuModel) -> GpuTrack:
    """The track from a thirtieth of all activity, or one second of it, on; without imports, loading and a short end."""
    levels = changes.fill_gaps(activity(track, _pcie_ceiling(model)))
    passed, steps = 0.0, [0.0, *(b - a for a, b in pairwise(track.times))]
    sums = [passed := passed + level * step for level, step in zip(levels, steps, strict=True)]
    start_activity = min(passed / START_FRACTION, 1.0)
    end_activity = passed - start_activity / 10
    rows = [row for row, so_far in enumerate(sums) if start_activity <= so_far <= end_activity]
    busy_rows = sum(levels[row] >= max(levels) / 10 for row in rows)
    if passed <= 0 or track.times[-1] - track.times[0] < 2 * changes.MIN_SEGMENT_SECONDS or busy_rows < MIN_ROWS:
        return track
    # What follows is not the end of the work if it is longer than the work.
    is_end = len(track) - rows[-1] <= rows[-1] - rows[0] + 1
    return track.select_rows(range(rows[0], rows[-1] + 1 if is_end else len(track)))


def idle_watts(track: GpuTrack, model: GpuModel) -> float:
    """The idle power of this GPU: as recorded, or that of the model plus high clocks after work."""
    power, busy = track.numbers.get("power_w", ()), track.numbers.get("gpu_util", ())
    idle_readings = sorted(watts for watts, share in zip(power, busy, strict=False) if watts is not None and share == 0)
    # After work an H200 stays at its highest clock and 126 W, compared with 82 W at rest.
    return idle_readings[len(idle_readings) // 2] if len(idle_readings) >= 5 else 1.5 * model.idle_watts


def _guess_model(track: GpuTrack) -> GpuModel | None:
    clocks = present_values(track.numbers.get("mem_clock", ()))
    return guess_model(max(clocks)) if clocks else None


def _judge_segment(track: GpuTrack, label: str, *, rows: Sequence[int], model: GpuModel, idle_power: float) -> Segment:
    main_rows = _find_main_phase(track, rows, model) if track.has_activity(rows) else rows
    settled, full_track = track.select_rows(_drop_start_up(track.times, main_rows)), track.select_rows(main_rows)
    verdict, features = _judge_rows(settled, model, idle_power=idle_power, full_track=full_track)
    if len(main_rows) < len(rows):
        verdict = replace(verdict, why=f"{len(main_rows)} of {len(rows)} samples: {verdict.why}")
    return Segment(track.gpu, label, track.times[rows[0]], track.times[rows[-1]], len(rows), features, verdict)


def _judge_rows(
    track: GpuTrack, model: GpuModel, *, idle_power: float, full_track: GpuTrack
) -> tuple[WorkloadVerdict, Features]:
    features = measure_features(track, model, idle_watts=idle_power, full_track=full_track)
    verdict = classify(features)
    if len(track) < 20 or verdict.bound in (Bound.STALLS, Bound.MIXED):
        return verdict, features
    middle = len(track) // 2
    halves = {
        classify(measure_features(track.select_rows(rows), model, idle_watts=idle_power)).bound
        for rows in (range(middle), range(middle, len(track)))
    }
    if halves != {verdict.bound}:
        names = " and ".join(sorted(halves))
        doubt = f"its halves alone are classified as {names} (confidence × 0.85)"
        confidence = max(MIN_CONFIDENCE, round(verdict.confidence * 0.85, 2))
        verdict = replace(verdict, confidence=confidence, doubts=(*verdict.doubts, doubt))
    return verdict, features


def _drop_start_up(times: Sequence[float], rows: Sequence[int]) -> list[int]:
    """Rows without start-up; rows of one label may be several runs, each with a start-up."""
    if len(rows) < 3:
        return list(rows)
    step = statistics.median(times[b] - times[a] for a, b in pairwise(rows))
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1 and times[row] - times[runs[-1][-1]] <= max(5 * step, 1.0):
            runs[-1].append(row)
        else:
            runs.append([row])
    settled_rows = []
    for run in runs:
        since, duration = times[run[0]], times[run[-1]] - times[run[0]]
        start_up_seconds = min(SETTLE_SECONDS, (1 - MIN_JUDGED_SHARE) * duration)
        settled_rows += [row for row in run if times[row] - since >= start_up_seconds]
    return settled_rows


def _split_into_segments(track: GpuTrack, model: GpuModel) -> tuple[list[tuple[str, list[int]]], int]:
    """Label and rows of each segment, and the number of rows in none."""
    if track.labels is None:
        return _split_by_change(track, model)
    by_label: dict[str, list[int]] = {}
    for row, label in enumerate(track.labels):
        if label and label != columns.TRANSITION:
            by_label.setdefault(label, []).append(row)
    assigned_rows = sum(len(rows) for rows in by_label.values())
    if not by_label:
        return [(columns.TRANSITION, list(range(len(track))))], 0
    return list(by_label.items()), len(track) - assigned_rows


def _split_by_change(track: GpuTrack, model: GpuModel) -> tuple[list[tuple[str, list[int]]], int]:
    """Number the parts between which the workload changes."""
    parts = _merge_phases(track, model)
    assigned_rows = sum(len(rows) for _, rows in parts)
    return [(str(number), rows) for number, (_, rows) in enumerate(parts, start=1)], len(track) - assigned_rows


def _merge_phases(track: GpuTrack, model: GpuModel) -> list[tuple[Bound, list[int]]]:
    """Class and rows of each phase; neighbours of one class without a stop between them are one."""
    seconds_per_row = changes.sample_interval(track)
    merged: list[tuple[Bound, list[int]]] = []
    for bound, rows in _find_phases(track, model):
        last_bound, last_rows = merged[-1] if merged else (None, [])
        if bound is last_bound is Bound.IDLE:
            last_rows += rows
        elif bound is last_bound and (rows[0] - last_rows[-1]) * seconds_per_row < limits()["gap_seconds"]:
            last_rows += range(last_rows[-1] + 1, rows[-1] + 1)
        else:
            merged.append((bound, list(rows)))
    return merged


def _find_phases(track: GpuTrack, model: GpuModel) -> list[tuple[Bound, range]]:
    """The phases of a track with their class; bursts with too few rows for a verdict are dropped.

    Bursts that return, with only idle between them, are the rhythm of one phase.
    """
    idle_power = idle_watts(track, model)

    def classify_rows(rows: range) -> tuple[Bound, range]:
        # Include the start-up, because it is short here and the rhythm matters.
        return classify(measure_features(track.select_rows(rows), model, idle_watts=idle_power)).bound, rows

    phases = [classify_rows(rows) for rows in changes.find_segments(track, _pcie_ceiling(model))]
    short = [at for at, (_, rows) in enumerate(phases) if len(rows) < MIN_ROWS]
    if len(short) in (0, len(phases)):
        return phases
    between = {bound for at, (bound, _) in enumerate(phases) if short[0] < at < short[-1] and at not in short}
    if len(short) >= MIN_BURSTS and sum(len(phases[at][1]) for at in short) >= MIN_ROWS and between <= {Bound.IDLE}:
        rhythm = range(phases[short[0]][1].start, phases[short[-1]][1].stop)
        return [*phases[: short[0]], classify_rows(rhythm), *phases[short[-1] + 1 :]]
    return [phase for at, phase in enumerate(phases) if at not in short]


def _find_main_phase(track: GpuTrack, rows: Sequence[int], model: GpuModel) -> list[int]:
    """The rows of an idle phase that takes more than half of these rows; else all of them."""
    for bound, phase in _merge_phases(replace(track.select_rows(rows), labels=None), model):
        if bound is Bound.IDLE and len(rows) > 2 * (len(rows) - len(phase)):
            return [rows[at] for at in phase]
    return list(rows)


def _pcie_ceiling(model: GpuModel) -> float:
    return model.pcie_gb_per_second * MIB_PER_GB
