"""From a recording to segments with a class each: by label where there are labels, by change where there are none.

The first seconds of a segment belong to its start-up and are not judged. Without labels `changes` finds the pieces,
and neighbours of one class are put together. `classify` judges each; the command and the report print them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from watchkeeper.probe.profile import changes, columns
from watchkeeper.probe.profile.classify import LEAST_CONFIDENT, classify
from watchkeeper.probe.profile.features import Features, activity, measure
from watchkeeper.probe.profile.limits import MIB_PER_GB, GpuCeilings, default_model, find_model, guess_model, limits
from watchkeeper.probe.profile.recording import GpuTrack, Recording, present_values
from watchkeeper.probe.profile.verdict import Bound, WorkloadVerdict

# Start-up of a workload: clocks, power and NVML's own averages need up to this long to settle.
SETTLE_SECONDS = 3.0
# Of a shorter segment at least this share is judged.
LEAST_JUDGED_SHARE = 0.6
SHORTEST_ROWS = 10
START_SHARE = 30


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one GPU's track with its verdict; `label` is the file's own, or a number where it has none."""

    gpu: str
    label: str
    since: float
    until: float
    samples: int
    features: Features
    verdict: WorkloadVerdict


@dataclass(frozen=True, slots=True)
class JudgedRecording:
    """All segments of a recording; `model_is_known` False: ceilings are those of an assumed model."""

    segments: tuple[Segment, ...]
    model: GpuCeilings
    model_is_known: bool
    left_out: int


def judge_recording(recording: Recording, model: GpuCeilings | None = None) -> JudgedRecording:
    """Cut every track into segments and judge each."""
    found, left_out = [], 0
    ceilings, is_known = model_of(recording, model)
    for track in recording.tracks:
        stretches, skipped = _stretches(track, ceilings)
        # Missing is not idle: what says nothing about work belongs to no segment.
        silent = [rows for _, rows in stretches if not track.tells_work(rows)]
        stretches = [(label, rows) for label, rows in stretches if rows not in silent]
        left_out += skipped + sum(map(len, silent))
        floor = idle_watts(track, ceilings)
        found += [_judged(track, label, rows=rows, model=ceilings, floor=floor) for label, rows in stretches]
    return JudgedRecording(tuple(found), ceilings, is_known, left_out)


def model_of(recording: Recording, model: GpuCeilings | None = None) -> tuple[GpuCeilings, bool]:
    """Whose ceilings count, and whether that is known: as said, as recorded, by the memory clock, or assumed."""
    said = model or (find_model(recording.model) if recording.model else None)
    found = said or next((name for track in recording.tracks if (name := _guess(track)) is not None), None)
    return found or default_model(), found is not None


def judge_whole(track: GpuTrack, model: GpuCeilings) -> Segment:
    """One verdict over a whole track, for a workload that was recorded from its start to its end."""
    return _judged(track, "all", rows=list(range(len(track))), model=model, floor=idle_watts(track, model))


def working(track: GpuTrack, model: GpuCeilings) -> GpuTrack:
    """The track without what comes before and after the work: imports, loading, and the end of the program.

    Work has begun once a thirtieth of all activity has passed, or a second of it.
    """
    levels = changes.filled(activity(track, _ceiling(model)))
    passed, steps = 0.0, [0.0, *(b - a for a, b in pairwise(track.times))]
    sums = [passed := passed + level * step for level, step in zip(levels, steps, strict=True)]
    edge = min(passed / START_SHARE, 1.0)
    rows = [row for row, total in enumerate(sums) if edge <= total <= passed - edge / 10]
    if passed <= 0 or track.times[-1] - track.times[0] < 2 * changes.SHORTEST_SECONDS or len(rows) < SHORTEST_ROWS:
        return track
    return track.part(range(rows[0], rows[-1] + 1))


def idle_watts(track: GpuTrack, model: GpuCeilings) -> float:
    """What this GPU draws while it does nothing: as recorded, or the model's figure and the clocks that stay up."""
    power, busy = track.numbers.get("power_w", ()), track.numbers.get("gpu_util", ())
    quiet = sorted(watts for watts, share in zip(power, busy, strict=False) if watts is not None and share == 0)
    # After work an H200 stays at its highest clock and 126 W, against 82 W when it has rested.
    return quiet[len(quiet) // 2] if len(quiet) >= 5 else 1.5 * model.idle_watts


def _guess(track: GpuTrack) -> GpuCeilings | None:
    clocks = present_values(track.numbers.get("mem_clock", ()))
    return guess_model(max(clocks)) if clocks else None


def _judged(track: GpuTrack, label: str, *, rows: Sequence[int], model: GpuCeilings, floor: float) -> Segment:
    settled = _settled(track.times, rows)
    verdict, features = _verdict(track.part(settled), model, floor=floor, whole=track.part(rows))
    return Segment(track.gpu, label, track.times[rows[0]], track.times[rows[-1]], len(rows), features, verdict)


def _verdict(track: GpuTrack, model: GpuCeilings, *, floor: float, whole: GpuTrack) -> tuple[WorkloadVerdict, Features]:
    features = measure(track, model, idle_watts=floor, whole=whole)
    verdict = classify(features)
    if len(track) < 20 or verdict.bound in (Bound.STALLS, Bound.MIXED):
        return verdict, features
    middle = len(track) // 2
    halves = {
        classify(measure(track.part(rows), model, idle_watts=floor)).bound
        for rows in (range(middle), range(middle, len(track)))
    }
    if halves != {verdict.bound}:
        names = " and ".join(sorted(halves))
        why = f"its halves on their own look like {names} (confidence × 0.85)"
        lowered = max(LEAST_CONFIDENT, round(verdict.confidence * 0.85, 2))
        verdict = replace(verdict, confidence=lowered, unsure=(*verdict.unsure, why))
    return verdict, features


def _settled(times: Sequence[float], rows: Sequence[int]) -> list[int]:
    """Rows without the start-up; the rows of one label may lie apart, and each run has its own start."""
    if len(rows) < 3:
        return list(rows)
    step = statistics.median(times[b] - times[a] for a, b in pairwise(rows))
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1 and times[row] - times[runs[-1][-1]] <= max(5 * step, 1.0):
            runs[-1].append(row)
        else:
            runs.append([row])
    kept = []
    for run in runs:
        since, lasted = times[run[0]], times[run[-1]] - times[run[0]]
        skip = min(SETTLE_SECONDS, (1 - LEAST_JUDGED_SHARE) * lasted)
        kept += [row for row in run if times[row] - since >= skip]
    return kept


def _stretches(track: GpuTrack, model: GpuCeilings) -> tuple[list[tuple[str, list[int]]], int]:
    """Label and rows of each segment, and how many rows belong to none."""
    if track.labels is None:
        return _by_change(track, model)
    by_label: dict[str, list[int]] = {}
    for row, label in enumerate(track.labels):
        if label and label != columns.TRANSITION:
            by_label.setdefault(label, []).append(row)
    kept = sum(len(rows) for rows in by_label.values())
    if not by_label:
        return [(columns.TRANSITION, list(range(len(track))))], 0
    return list(by_label.items()), len(track) - kept


def _by_change(track: GpuTrack, model: GpuCeilings) -> tuple[list[tuple[str, list[int]]], int]:
    """Cut where what runs changes, put together what is of one class, and name the segments by their number.

    With a stop between them two pieces are two programs, or `changes` would not have parted them.
    """
    floor, step = idle_watts(track, model), changes.interval(track)
    grown: list[tuple[Bound, list[int]]] = []
    for piece in changes.pieces(track, _ceiling(model)):
        # By the whole piece, because a start-up is short here and the rhythm is what counts.
        bound = classify(measure(track.part(piece), model, idle_watts=floor)).bound
        has_stop = bool(grown) and (piece[0] - grown[-1][1][-1]) * step >= limits()["gap_seconds"]
        if grown and grown[-1][0] is bound and not has_stop:
            grown[-1][1].extend(range(grown[-1][1][-1] + 1, piece[-1] + 1))
        else:
            grown.append((bound, list(piece)))
    kept = sum(len(rows) for _, rows in grown)
    return [(str(number), rows) for number, (_, rows) in enumerate(grown, start=1)], len(track) - kept


def _ceiling(model: GpuCeilings) -> float:
    return model.pcie_gb_per_second * MIB_PER_GB
