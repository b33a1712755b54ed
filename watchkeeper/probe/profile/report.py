"""A recording becomes a report: what the workload is bound by, evidence, what to do, and how it compares.

`build` is pure: recording, model and an optional earlier recording in, a `Report` out. `report_text` and `report_page`
turn it into words and into a page; `as_plain` is the documented JSON of `watchkeeper profile --json`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from watchkeeper.probe.profile import advice, compare, limits, segments
from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.recording import GpuTrack, Recording, present_values
from watchkeeper.probe.profile.verdict import Bound

# Words in a command that say what kind of workload it is.
SERVING = re.compile(r"serv|infer|predict|generate|vllm|triton|sglang|ollama|llama", re.IGNORECASE)
# Below this confidence the counters cannot tell, and a profiler should.
ASK_PROFILER = 0.6
# Seed 004: GPUs of one job are alike within five points.
IMBALANCE = 0.05
# Percent of a core from which a thread is the limit, and threads in uninterruptible sleep from which the disk is.
BUSY_THREAD = 85.0
DISK_WAIT = 0.2
# Shorter start-ups are nothing to speak of.
LONG_START_UP = 2.0


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU: its segments in time, and the one that stands for the workload."""

    gpu: str
    timeline: tuple[segments.Segment, ...]
    main: segments.Segment
    achieved: advice.AchievedRates
    memory_used: float | None


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Everything that is said about a recording; `kind_is_assumed` where nobody said which workload it is."""

    model: limits.GpuCeilings
    model_is_known: bool
    seconds: float
    started: float
    start_up_seconds: float
    kind: str
    kind_is_assumed: bool
    gpus: tuple[GpuReport, ...]
    words: advice.BottleneckAdvice
    gain: advice.ExpectedGain
    expected: tuple[advice.MetricExpectation, ...]
    tool: str
    spread: float | None
    imbalance: str | None
    host: Mapping[str, float]
    compared: tuple[compare.ComparedNumber, ...]
    baseline_bound: str | None
    notes: tuple[str, ...]

    @property
    def main(self) -> segments.Segment:
        return self.gpus[0].main


def build_report(
    recording: Recording,
    *,
    used: Iterable[str] = (),
    kind: str | None = None,
    command: Sequence[str] | None = None,
    baseline: Recording | None = None,
) -> ProfileReport:
    """The report; the GPU that worked most comes first."""
    named = limits.find_model(recording.model) if recording.model else None
    model, is_known = segments.model_of(recording, named)
    tracks = [segments.working(track, model) for track in _meant(recording, model, set(used))]
    judged = segments.judge_recording(replace(recording, tracks=tuple(tracks)), model)
    gpus = sorted((_gpu(track, judged, recording) for track in tracks), key=lambda gpu: -gpu.main.features.rhythm.mean)
    started = min(track.times[0] for track in recording.tracks)
    start_up = min(track.times[0] for track in tracks) - started
    main = gpus[0].main
    bound, features = main.verdict.bound, main.features
    spread = _spread(gpus)
    chosen = kind or _kind(command, len(gpus))
    return ProfileReport(
        model=model,
        model_is_known=is_known and (recording.model is None or named is not None),
        seconds=recording.seconds,
        started=started,
        start_up_seconds=round(start_up, 1),
        kind=chosen,
        kind_is_assumed=kind is None,
        gpus=tuple(gpus),
        words=advice.bottleneck_advice()[bound.value],
        gain=advice.gain(bound, features, model),
        expected=advice.expected(
            chosen,
            features,
            limit_watts=_limit_watts(recording, gpus[0].gpu, model),
            spread=spread,
            memory_used=gpus[0].memory_used,
        ),
        tool=advice.tool(bound, command),
        spread=spread,
        imbalance=_imbalance(gpus, spread),
        host=_host(recording),
        compared=_compared(recording, gpus[0], baseline=baseline, model=model),
        baseline_bound=_baseline_bound(baseline, model),
        notes=(*recording.notes, *_notes(recording, main, start_up=start_up)),
    )


def _meant(recording: Recording, model: limits.GpuCeilings, used: set[str]) -> list[GpuTrack]:
    """The GPUs of the workload: those it has a context on, else those that did anything, else all."""
    chosen = [track for track in recording.tracks if track.gpu in used]
    if chosen:
        return chosen
    active = [
        track
        for track in recording.tracks
        if segments.judge_whole(track, model).features.rhythm.mean >= limits.limits()["idle_activity"]
    ]
    return active or list(recording.tracks)


def _gpu(track: GpuTrack, judged: segments.JudgedRecording, recording: Recording) -> GpuReport:
    timeline = tuple(segment for segment in judged.segments if segment.gpu == track.gpu)
    main = main_segment(timeline)
    total = recording.facts.get(track.gpu, {}).get("memory_mib") or judged.model.memory_mib
    used = present_values(track.numbers.get("fb_used_mib", ()))
    return GpuReport(
        track.gpu,
        timeline,
        main,
        advice.achieved(main.features, judged.model),
        max(used) / total if used and total else None,
    )


def main_segment(timeline: Sequence[segments.Segment]) -> segments.Segment:
    """The class that took most of the time in which anything ran, by its longest segment."""
    working = [segment for segment in timeline if segment.verdict.bound is not Bound.IDLE] or list(timeline)
    lasted: dict[Bound, float] = {}
    for segment in working:
        bound = segment.verdict.bound
        lasted[bound] = lasted.get(bound, 0.0) + segment.until - segment.since
    most = max(lasted, key=lambda bound: lasted[bound])
    return max(
        (segment for segment in working if segment.verdict.bound is most),
        key=lambda segment: segment.until - segment.since,
    )


def _limit_watts(recording: Recording, gpu: str, model: limits.GpuCeilings) -> float:
    told = recording.facts.get(gpu, {}).get("power_limit_w")
    return float(told) if told else model.power_watts


def _spread(gpus: Sequence[GpuReport]) -> float | None:
    levels = [gpu.main.features.rhythm.mean for gpu in gpus]
    return max(levels) - min(levels) if len(levels) > 1 else None


def _imbalance(gpus: Sequence[GpuReport], spread: float | None) -> str | None:
    if spread is None or spread <= IMBALANCE:
        return None
    most, least = gpus[0], gpus[-1]
    return (
        f"GPU {most.gpu} is active {100 * most.main.features.rhythm.mean:.0f} % of the time and GPU {least.gpu} "
        f"{100 * least.main.features.rhythm.mean:.0f} %: {100 * spread:.0f} points apart, within {100 * IMBALANCE:.0f} "
        f"is even. Where GPUs wait for each other, the one that is active most is the one that the others wait for"
    )


def _kind(command: Sequence[str] | None, gpus: int) -> str:
    if gpus > 1:
        return "multi_gpu"
    return "inference" if command and SERVING.search(" ".join(command)) else "training"


def _host(recording: Recording) -> dict[str, float]:
    track = recording.tracks[0]
    names = ("cpu_cores", "busiest_thread", "disk_wait", "read_kbs", "write_kbs", "net_rx_kbs", "net_tx_kbs", "rss_mib")
    return {
        name: round(statistics.fmean(values), 2)
        for name in names
        if (values := present_values(track.numbers.get(name, ())))
    }


def _compared(
    recording: Recording, gpu: GpuReport, *, baseline: Recording | None, model: limits.GpuCeilings
) -> tuple[compare.ComparedNumber, ...]:
    if baseline is None:
        return ()
    now = next(track for track in recording.tracks if track.gpu == gpu.gpu)
    old, segment = _main_of(baseline, model)
    return compare.compare(_rows(old, segment), _rows(now, gpu.main))


def _main_of(baseline: Recording, model: limits.GpuCeilings) -> tuple[GpuTrack, segments.Segment]:
    """The GPU of an earlier recording that worked most, and the segment that stands for it."""
    track = max(baseline.tracks, key=lambda track: segments.judge_whole(track, model).features.rhythm.mean)
    track = segments.working(track, model)
    judged = segments.judge_recording(replace(baseline, tracks=(track,)), model)
    return track, main_segment(judged.segments)


def _rows(track: GpuTrack, segment: segments.Segment) -> GpuTrack:
    return track.part([row for row, at in enumerate(track.times) if segment.since <= at <= segment.until])


def _baseline_bound(baseline: Recording | None, model: limits.GpuCeilings) -> str | None:
    if baseline is None:
        return None
    return _main_of(baseline, model)[1].verdict.bound.value


def _notes(recording: Recording, main: segments.Segment, *, start_up: float) -> Iterable[str]:
    if start_up >= LONG_START_UP:
        yield f"work on the GPU began after {start_up:.0f} s: imports and loading; that part is not judged"
    for gpu, facts in recording.facts.items():
        if not facts.get("has_gpm", True):
            yield f"GPU {gpu}: {facts['why_no_gpm']}; the verdict is less sure"
    if recording.model is not None and limits.find_model(recording.model) is None:
        against = limits.default_model().name
        yield f"{recording.model} is not in the table of models: shares of PCIe and power are against {against}"
    if (main.features.power_capped or 0.0) > 0.5:
        yield "the power cap held the clocks (mask 0x4): normal at full load, no fault"
    if (main.features.thermally_slowed or 0.0) > 0.05:
        yield "heat slowed the clocks (mask 0x20 or 0x40): look at the cooling, `watchkeeper scan` says more"
    yield from _host_notes(main.features, main.verdict.bound)
    if main.until - main.since < 10:
        yield f"only {main.until - main.since:.0f} s of this kind of work were recorded; half a minute says more"


def _host_notes(features: Features, bound: Bound) -> Iterable[str]:
    """What the programs of the workload did meanwhile, where it says why the GPU waits."""
    if bound not in (Bound.DATA_STARVED, Bound.STALLS, Bound.LAUNCH, Bound.UNDERUTILIZED):
        return
    busiest, waiting = features.busiest_thread, features.disk_wait
    if busiest is not None and busiest >= BUSY_THREAD:
        yield f"one thread of the workload is busy {busiest:.0f} % of the time: the GPU waits for that thread"
    elif busiest is not None and busiest < BUSY_THREAD / 2:
        yield f"no thread of the workload is busy (the busiest {busiest:.0f} %): it waits for something else"
    if waiting is not None and waiting >= DISK_WAIT:
        yield f"{waiting:.1f} of its threads wait for a disk or a network file system on average"


def report_as_json(report: ProfileReport) -> dict[str, Any]:
    """The documented JSON of `watchkeeper profile --json`; keys are added, never renamed."""
    main = report.main
    return {
        "class": main.verdict.bound.value,
        "confidence": main.verdict.confidence,
        "why": main.verdict.why,
        "unsure": list(main.verdict.unsure),
        "model": report.model.name,
        "model_is_assumed": not report.model_is_known,
        "seconds": round(report.seconds, 1),
        "start_up_seconds": report.start_up_seconds,
        "kind": report.kind,
        "kind_is_assumed": report.kind_is_assumed,
        "first_change": report.words.first_change,
        "then": report.words.then,
        "gain": asdict(report.gain),
        "tool": report.tool,
        "evidence": {name: value for name, value in asdict(main.features).items() if value is not None},
        "expected": [{**asdict(row), "is_met": row.is_met} for row in report.expected],
        "gpus": [_gpu_plain(gpu, report.started) for gpu in report.gpus],
        "spread": report.spread,
        "imbalance": report.imbalance,
        "host": dict(report.host),
        "baseline": None
        if report.baseline_bound is None
        else {"class": report.baseline_bound, "compared": [asdict(row) for row in report.compared]},
        "notes": list(report.notes),
    }


def _gpu_plain(gpu: GpuReport, start: float) -> dict[str, Any]:
    return {
        "gpu": gpu.gpu,
        "class": gpu.main.verdict.bound.value,
        "achieved_estimates": asdict(gpu.achieved),
        "memory_used": gpu.memory_used,
        "segments": [segment_as_json(segment, start) for segment in gpu.timeline],
    }


def segment_as_json(segment: segments.Segment, start: float) -> dict[str, Any]:
    """One segment; `class` and its fellows are what `profile classify --json` promises."""
    verdict = segment.verdict
    return {
        "label": segment.label,
        "class": verdict.bound.value,
        "confidence": verdict.confidence,
        "why": verdict.why,
        "unsure": list(verdict.unsure),
        "gpu": segment.gpu,
        "since_seconds": round(segment.since - start, 3),
        "until_seconds": round(segment.until - start, 3),
        "samples": segment.samples,
    }
