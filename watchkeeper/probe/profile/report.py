"""Build a report from a recording: what bounds the workload, evidence, advice, and a comparison.

`build_report` is pure: a recording and an optional baseline in, a ProfileReport out. `report_text` and `report_page`
render it; `report_as_json` is the documented output of `watchkeeper profile --json`.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchkeeper.catalogue.gpu_models import GpuModel
from watchkeeper.kit import wire
from watchkeeper.probe.profile import advice, columns, compare, segments
from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.recording import GpuTrack, Recording, present_values
from watchkeeper.probe.profile.verdict import Bound, default_model, find_model, limits

# Words in a command that suggest inference.
SERVING = re.compile(r"serv|infer|predict|generate|vllm|triton|sglang|ollama|llama", re.IGNORECASE)
# With less confidence, the report recommends a profiler.
PROFILER_CONFIDENCE = 0.6
# Seed 004: GPUs of one job are alike within five points.
IMBALANCE = 0.05
# From this percentage of a core, a thread is the limit; from this many waiting threads, the disk is.
BUSY_THREAD = 85.0
DISK_WAIT = 0.2
# Shorter start-ups are not mentioned.
MIN_START_UP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU: its segments over time, and the main segment of the workload."""

    gpu: str
    timeline: tuple[segments.Segment, ...]
    main: segments.Segment
    achieved: advice.AchievedRates
    memory_used: float | None


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """The content of a report; `kind_is_assumed` if the kind of workload was guessed."""

    model: GpuModel
    model_is_known: bool
    seconds: float
    started: float
    start_up_seconds: float
    kind: str
    kind_is_assumed: bool
    gpus: tuple[GpuReport, ...]
    bottleneck: advice.BottleneckAdvice
    gain: advice.ExpectedGain
    expected: tuple[advice.MetricExpectation, ...]
    tool: str
    spread: float | None
    imbalance: str | None
    host: Mapping[str, float]
    compared_columns: tuple[compare.ComparedColumn, ...]
    baseline_bound: str | None
    notes: tuple[str, ...]

    @property
    def main(self) -> segments.Segment:
        return self.gpus[0].main


def build_report(
    recording: Recording,
    *,
    used_gpus: Iterable[str] = (),
    kind: str | None = None,
    command: Sequence[str] | None = None,
    baseline: Recording | None = None,
) -> ProfileReport:
    """Build the report; the most active GPU is first."""
    found_model = find_model(recording.model) if recording.model else None
    model, is_known = segments.choose_model(recording, found_model)
    tracks = [segments.trim_to_work(track, model) for track in _select_tracks(recording, model, set(used_gpus))]
    judged = segments.judge_recording(replace(recording, tracks=tuple(tracks)), model)
    gpus = [_report_gpu(track, judged, recording) for track in tracks]
    gpus.sort(key=lambda gpu: -gpu.main.features.rhythm.mean)
    started = min(track.times[0] for track in recording.tracks)
    start_up_seconds = min(track.times[0] for track in tracks) - started
    main = gpus[0].main
    bound, features = main.verdict.bound, main.features
    levels = [gpu.main.features.rhythm.mean for gpu in gpus]
    spread = max(levels) - min(levels) if len(levels) > 1 else None
    guessed_kind = "inference" if command and SERVING.search(" ".join(command)) else "training"
    workload_kind = kind or ("multi_gpu" if len(gpus) > 1 else guessed_kind)
    baseline_bound, compared_columns = _compare_with_baseline(recording, gpus[0], baseline=baseline, model=model)
    return ProfileReport(
        model=model,
        model_is_known=is_known and (recording.model is None or found_model is not None),
        seconds=recording.seconds,
        started=started,
        start_up_seconds=round(start_up_seconds, 1),
        kind=workload_kind,
        kind_is_assumed=kind is None,
        gpus=tuple(gpus),
        bottleneck=advice.bottleneck_advice()[bound.value],
        gain=advice.expected_gain(bound, features, model),
        expected=advice.metric_expectations(
            workload_kind,
            features,
            limit_watts=_limit_watts(recording, gpus[0].gpu, model),
            spread=spread,
            memory_used=gpus[0].memory_used,
        ),
        tool=advice.profiler_command(bound, command),
        spread=spread,
        imbalance=_describe_imbalance(gpus, spread),
        host=_host_means(recording),
        compared_columns=compared_columns,
        baseline_bound=baseline_bound,
        notes=(*recording.notes, *_create_notes(recording, main, start_up_seconds=start_up_seconds)),
    )


def _select_tracks(recording: Recording, model: GpuModel, used_gpus: set[str]) -> list[GpuTrack]:
    """The GPUs of the workload: those with its context, else those with activity, else all."""
    used_tracks = [track for track in recording.tracks if track.gpu in used_gpus]
    if used_tracks:
        return used_tracks
    means = [segments.judge_whole(track, model).features.rhythm.mean for track in recording.tracks]
    active = [track for track, mean in zip(recording.tracks, means, strict=True) if mean >= limits()["idle_activity"]]
    return active or list(recording.tracks)


def _report_gpu(track: GpuTrack, judged_recording: segments.JudgedRecording, recording: Recording) -> GpuReport:
    timeline = tuple(segment for segment in judged_recording.segments if segment.gpu == track.gpu)
    main = main_segment(timeline)
    achieved = advice.achieved_rates(main.features, judged_recording.model)
    return GpuReport(track.gpu, timeline, main, achieved, _memory_used(recording, track, judged_recording.model))


def _limit_watts(recording: Recording, gpu: str, model: GpuModel) -> float:
    return float(recording.facts.get(gpu, {}).get("power_limit_w") or model.tdp_watts)


def _memory_used(recording: Recording, track: GpuTrack, model: GpuModel) -> float | None:
    memory_mib = recording.facts.get(track.gpu, {}).get("memory_mib") or model.memory_mib
    used_mib = present_values(track.numbers.get("fb_used_mib", ()))
    return max(used_mib) / memory_mib if used_mib and memory_mib else None


def segment_expectations(
    recording: Recording, segment: segments.Segment, model: GpuModel, kind: str
) -> tuple[advice.MetricExpectation, ...]:
    """The expected values of a segment; the spread is that of all GPUs that were recorded meanwhile."""
    tracks = {track.gpu: _segment_rows(track, segment) for track in recording.tracks}
    active = [track for track in tracks.values() if len(track) and track.has_activity(range(len(track)))]
    levels = [segments.judge_whole(track, model).features.rhythm.mean for track in active]
    return advice.metric_expectations(
        kind,
        segment.features,
        limit_watts=_limit_watts(recording, segment.gpu, model),
        spread=max(levels) - min(levels) if len(levels) > 1 else None,
        memory_used=_memory_used(recording, tracks[segment.gpu], model),
    )


def main_segment(timeline: Sequence[segments.Segment]) -> segments.Segment:
    """An idle segment of more than half of all samples, else the longest of the class that took most active time."""
    longest = max(timeline, key=lambda segment: segment.samples)
    if longest.verdict.bound is Bound.IDLE and 2 * longest.samples > sum(segment.samples for segment in timeline):
        return longest
    working = [segment for segment in timeline if segment.verdict.bound is not Bound.IDLE] or list(timeline)
    samples_by_bound: Counter[Bound] = Counter()
    for segment in working:
        samples_by_bound[segment.verdict.bound] += segment.samples
    main_bound = samples_by_bound.most_common(1)[0][0]
    return max(
        (segment for segment in working if segment.verdict.bound is main_bound), key=lambda segment: segment.samples
    )


def _describe_imbalance(gpus: Sequence[GpuReport], spread: float | None) -> str | None:
    if spread is None or spread <= IMBALANCE:
        return None
    most, least = gpus[0], gpus[-1]
    return (
        f"GPU {most.gpu} is active {100 * most.main.features.rhythm.mean:.0f} % of the time and GPU {least.gpu} "
        f"{100 * least.main.features.rhythm.mean:.0f} %: {100 * spread:.0f} points apart, the limit is "
        f"{100 * IMBALANCE:.0f}. If GPUs wait for each other, they wait for the most active one"
    )


def _host_means(recording: Recording) -> dict[str, float]:
    track = recording.tracks[0]
    return {
        name: round(statistics.fmean(values), 2)
        for name in columns.HOST_COLUMNS
        if (values := present_values(track.numbers.get(name, ())))
    }


def _compare_with_baseline(
    recording: Recording, gpu: GpuReport, *, baseline: Recording | None, model: GpuModel
) -> tuple[str | None, tuple[compare.ComparedColumn, ...]]:
    """The class of the most active GPU of the baseline, and the comparison of its main segment with that of `gpu`."""
    if baseline is None:
        return None, ()
    earlier = max(baseline.tracks, key=lambda track: segments.judge_whole(track, model).features.rhythm.mean)
    earlier = segments.trim_to_work(earlier, model)
    segment = main_segment(segments.judge_recording(replace(baseline, tracks=(earlier,)), model).segments)
    current = next(track for track in recording.tracks if track.gpu == gpu.gpu)
    compared = compare.compare(_segment_rows(earlier, segment), _segment_rows(current, gpu.main))
    return segment.verdict.bound.value, compared


def _segment_rows(track: GpuTrack, segment: segments.Segment) -> GpuTrack:
    return track.select_rows([row for row, at in enumerate(track.times) if segment.since <= at <= segment.until])


def _create_notes(recording: Recording, main: segments.Segment, *, start_up_seconds: float) -> Iterable[str]:
    if start_up_seconds >= MIN_START_UP_SECONDS:
        yield f"GPU work started after {start_up_seconds:.0f} s; the time before (imports, loading) is excluded"
    for gpu, facts in recording.facts.items():
        if not facts.get("has_gpm", True):
            yield f"GPU {gpu}: {facts['why_no_gpm']}; the confidence is lower"
    if recording.model is not None and find_model(recording.model) is None:
        model_name = default_model().name
        yield f"{recording.model} is an unknown GPU model: shares of PCIe and power refer to {model_name}"
    if (main.features.power_capped or 0.0) > 0.5:
        yield "the power cap reduced the clocks (mask 0x4): normal at full load"
    if (main.features.thermally_slowed or 0.0) > 0.05:
        yield "thermal slowdown reduced the clocks (mask 0x20 or 0x40): check the cooling, then run `watchkeeper scan`"
    yield from _host_notes(main.features, main.verdict.bound)
    if main.until - main.since < 10:
        yield f"only {main.until - main.since:.0f} s of this work were recorded; record at least 30 s"


def _host_notes(features: Features, bound: Bound) -> Iterable[str]:
    """Notes on the processes of the workload, for classes in which the GPU waits."""
    if bound not in (Bound.DATA_STARVED, Bound.STALLS, Bound.LAUNCH, Bound.UNDERUTILIZED):
        return
    busiest_percent, waiting_threads = features.busiest_thread, features.disk_wait
    if busiest_percent is not None and busiest_percent >= BUSY_THREAD:
        yield f"one thread of the workload is busy {busiest_percent:.0f} % of the time: the GPU waits for this thread"
    elif busiest_percent is not None and busiest_percent < BUSY_THREAD / 2:
        yield f"no thread of the workload is busy (at most {busiest_percent:.0f} %): it waits for something else"
    if waiting_threads is not None and waiting_threads >= DISK_WAIT:
        yield f"on average {waiting_threads:.1f} threads wait for a disk or a network file system"


def report_as_json(report: ProfileReport) -> dict[str, Any]:
    """The documented JSON of `watchkeeper profile --json`; keys are added, never renamed."""
    main = report.main
    return {
        "class": main.verdict.bound.value,
        "confidence": main.verdict.confidence,
        "why": main.verdict.why,
        "unsure": list(main.verdict.doubts),
        "model": report.model.name,
        "model_is_assumed": not report.model_is_known,
        "seconds": round(report.seconds, 1),
        "start_up_seconds": report.start_up_seconds,
        "kind": report.kind,
        "kind_is_assumed": report.kind_is_assumed,
        "first_change": report.bottleneck.first_change,
        "then": report.bottleneck.next_change,
        "gain": wire.to_plain(report.gain),
        "tool": report.tool,
        "evidence": {name: value for name, value in wire.to_plain(main.features).items() if value is not None},
        "expected": expectations_as_json(report.expected),
        "gpus": [
            {
                "gpu": gpu.gpu,
                "class": gpu.main.verdict.bound.value,
                "achieved_estimates": wire.to_plain(gpu.achieved),
                "memory_used": gpu.memory_used,
                "segments": [segment_as_json(segment, report.started) for segment in gpu.timeline],
            }
            for gpu in report.gpus
        ],
        "spread": report.spread,
        "imbalance": report.imbalance,
        "host": dict(report.host),
        "baseline": None
        if report.baseline_bound is None
        else {"class": report.baseline_bound, "compared": wire.to_plain(report.compared_columns)},
        "notes": list(report.notes),
    }


def expectations_as_json(expected: Iterable[advice.MetricExpectation]) -> list[dict[str, Any]]:
    return [{**wire.to_plain(row), "is_met": row.is_met} for row in expected]


def segment_as_json(segment: segments.Segment, started: float) -> dict[str, Any]:
    """One segment, as in `profile classify --json`; keys are added, never renamed."""
    verdict = segment.verdict
    return {
        "label": segment.label,
        "class": verdict.bound.value,
        "confidence": verdict.confidence,
        "why": verdict.why,
        "unsure": list(verdict.doubts),
        "gpu": segment.gpu,
        "since_seconds": round(segment.since - started, 3),
        "until_seconds": round(segment.until - started, 3),
        "samples": segment.samples,
    }
