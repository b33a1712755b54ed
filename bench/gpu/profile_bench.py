"""The overhead of the recorder and the accuracy of the classifier on a real GPU, as one JSON object.

    python bench/gpu/profile_bench.py [--overhead-rounds 6] [--seconds 4.4] [--set SET] [--keep FOLDER]

`overhead`: a bf16 training step with and without the recorder at ten samples a second, in turn in one run; the
difference between turns without it is the noise. `classes`: the share of samples of a set of workloads
(`profile_unseen`, `profile_third` …) that get the correct class, with all counters and with NVML's basic counters only.
Needs torch; some workloads also need cupy, torchvision and transformers, and are skipped without them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.gpu import profile_record  # noqa: E402
from watchkeeper.probe.profile import columns, recorder, recording, segments  # noqa: E402

STEPS_SECONDS = 2.5
SETS = ("unseen", "third", "fourth", "fifth")


def measure_overhead(rounds: int) -> dict[str, Any]:
    """Turns in the order off, on, on, off, so that a drift of clocks and heat affects both equally."""
    import torch

    model = profile_record.transformer(2048, 6)
    train = profile_record.training_on(model)
    x = torch.randn(4, 2048, 2048, device="cuda").bfloat16()
    for _ in range(30):
        train(x)
    torch.cuda.synchronize()
    step_seconds: dict[str, list[float]] = {"off": [], "on": []}
    rows = 0
    for turn in range(rounds):
        for name in ("off", "on", "on", "off") if turn % 2 == 0 else ("on", "off", "off", "on"):
            if name == "off":
                step_seconds[name].append(_step_seconds(train, x))
                continue
            with recorder.Recorder(0.1, [0]) as running:
                step_seconds[name].append(_step_seconds(train, x))
                rows += sum(len(track) for track in running.finish().tracks)
    off, on = statistics.median(step_seconds["off"]), statistics.median(step_seconds["on"])
    noise = abs(statistics.median(step_seconds["off"][::2]) / statistics.median(step_seconds["off"][1::2]) - 1)
    return {
        "step_ms_without": round(1e3 * off, 4),
        "step_ms_with": round(1e3 * on, 4),
        "slow_down_percent": round(100 * (on / off - 1), 3),
        "noise_percent": round(100 * noise, 3),
        "turns": len(step_seconds["on"]),
        "samples_per_second": round(rows / (len(step_seconds["on"]) * STEPS_SECONDS), 2),
    }


def _step_seconds(train: Any, x: Any) -> float:
    import torch

    train(x)
    torch.cuda.synchronize()
    started_at, count = time.perf_counter(), 0
    while time.perf_counter() - started_at < STEPS_SECONDS:
        train(x)
        torch.cuda.synchronize()
        count += 1
    return (time.perf_counter() - started_at) / count


def measure_classes(seconds: float, folder: Path, *, chosen: str) -> dict[str, Any]:
    """The share of samples after the start-up whose label got its correct class."""
    importlib.import_module(f"bench.gpu.profile_{chosen}")
    path = folder / f"{chosen}.csv"
    truth = profile_record.run_all(seconds, path, [])
    read = recording.read_recording(path)
    basic = [
        replace(
            track, numbers={name: cells for name, cells in track.numbers.items() if name not in columns.GPM_METRICS}
        )
        for track in read.tracks
    ]
    return {"all_counters": _hits(read, truth), "basic_counters": _hits(replace(read, tracks=tuple(basic)), truth)}


def _hits(read: recording.Recording, truth: dict[str, str]) -> dict[str, Any]:
    judged_segments = segments.judge_recording(read).segments
    misses = [segment for segment in judged_segments if segment.verdict.bound.value != truth[segment.label]]
    samples, wrong = (sum(segment.features.samples for segment in group) for group in (judged_segments, misses))
    return {
        "labels": len(judged_segments),
        "samples": samples,
        "right_percent": round(100 * (1 - wrong / max(1, samples)), 2),
        "confidence": round(statistics.fmean(segment.verdict.confidence for segment in judged_segments), 2),
        "misses": [
            f"{segment.label}: {segment.verdict.bound}, {segment.verdict.confidence}, is {truth[segment.label]}"
            for segment in misses
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--overhead-rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.4)
    parser.add_argument("--set", dest="chosen", choices=SETS, default="unseen")
    parser.add_argument("--keep", type=Path, default=Path("."))
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, Any] = {}
    if options.seconds:
        numbers["classes"] = measure_classes(options.seconds, options.keep, chosen=options.chosen)
        print(json.dumps(numbers), flush=True)
    if options.overhead_rounds:
        numbers["overhead"] = measure_overhead(options.overhead_rounds)
    print(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
