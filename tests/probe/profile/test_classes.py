"""Classes of workloads, from recordings with a known bottleneck."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.profile import loads
from tests.properties import examples
from tests.support.paths import SHARED
from watchkeeper.probe.profile import columns, recording, segments
from watchkeeper.probe.profile.recording import GpuTrack, Recording
from watchkeeper.probe.profile.verdict import Bound

TRACE = SHARED / "h200/h200_workloads.csv"
# fp64 products run on the tensor cores of an H200 (dfma_tensor_util 94 %), and the light loop at full memory launches
# 130,000 kernels a second of 2 µs each.
TRUTH = {
    "idle": "idle",
    "tensor_compute_bf16": "compute_bound",
    "fp32_no_tensor": "compute_bound_no_tensor",
    "fp64": "compute_bound",
    "memory_bound_copy": "memory_bound",
    "memory_bound_elementwise": "memory_bound",
    "pcie_h2d_pinned": "pcie_bound",
    "pcie_d2h_pinned": "pcie_bound",
    "pcie_h2d_pageable": "pcie_bound",
    "data_starved_training": "data_starved",
    "cpu_bound_loader_h2d": "data_starved",
    "launch_bound_small_kernels": "launch_bound",
    "inference_batch1": "underutilized",
    "transformer_training_step": "mixed",
    "near_oom_light": "launch_bound",
    "idle_after": "idle",
}


def judge(track: GpuTrack) -> segments.Segment:
    return segments.judge_recording(Recording((track,))).segments[0]


@pytest.mark.parametrize("name", loads.LOADS)
@pytest.mark.parametrize("interval", [0.05, 0.1, 0.15])
def test_a_synthetic_workload_gets_its_class(name: str, interval: float) -> None:
    load = loads.LOADS[name]
    segment = judge(loads.record(load, interval=interval, label=name))
    assert (segment.verdict.bound, segment.verdict.confidence >= 0.6) == (load.truth, True), segment.verdict


@pytest.mark.parametrize("name", sorted(set(loads.LOADS) - {"checkpoints"}))
def test_one_sample_a_second_is_enough_for_steady_workloads(name: str) -> None:
    load = loads.LOADS[name]
    assert judge(loads.record(load, seconds=20, interval=1.0, label=name)).verdict.bound == load.truth


@pytest.mark.skipif(not TRACE.exists(), reason="the shared recording is not here")
def test_every_label_of_the_recorded_h200_is_right() -> None:
    judged = segments.judge_recording(recording.read_recording(TRACE))
    assert {segment.label: segment.verdict.bound.value for segment in judged.segments} == TRUTH
    assert judged.model_is_known
    assert judged.unassigned_rows == 119


@pytest.mark.skipif(not TRACE.exists(), reason="the shared recording is not here")
def test_without_gpm_the_recorded_h200_has_the_same_classes_with_less_confidence() -> None:
    read = recording.read_recording(TRACE)
    basic = Recording((loads.without(read.tracks[0], *columns.GPM_METRICS),))
    sure = {segment.label: segment.verdict.confidence for segment in segments.judge_recording(read).segments}
    for segment in segments.judge_recording(basic).segments:
        assert segment.verdict.bound == TRUTH[segment.label]
        assert segment.verdict.confidence < sure[segment.label]
        assert any("no GPM" in text for text in segment.verdict.doubts)


@given(
    st.sampled_from(sorted(loads.LOADS)),
    st.sets(st.sampled_from(sorted(columns.NUMBER_COLUMNS)), max_size=20),
    st.integers(3, 40),
)
@examples(60)
def test_missing_columns_never_raise_the_confidence_of_a_class(name: str, missing: set[str], rows: int) -> None:
    track = loads.record(loads.LOADS[name], seconds=4.0).select_rows(range(rows))
    whole = judge(track).verdict
    part = judge(loads.without(track, *(missing - {"graphics_util", "gpu_util"}))).verdict
    assert isinstance(part.bound, Bound)
    assert 0 < part.confidence < 1
    assert part.bound is not whole.bound or part.confidence <= whole.confidence


@given(st.sampled_from(sorted(set(loads.LOADS) - {"nothing", "all_reduce"})), st.integers(0, 99))
@examples(30)
def test_without_gpm_confidence_falls(name: str, seed: int) -> None:
    track = loads.record(loads.LOADS[name], seconds=6.0, seed=seed)
    assert judge(loads.without(track, *columns.GPM_METRICS)).verdict.confidence < judge(track).verdict.confidence


def test_gpu_util_of_99_percent_during_copies_is_pcie_bound() -> None:
    segment = judge(loads.record(loads.LOADS["pinned_copies"], label="copies"))
    assert segment.features.gpu_util is not None
    assert (segment.features.gpu_util > 0.95, segment.verdict.bound) == (True, Bound.PCIE)


def test_the_power_cap_at_full_load_does_not_lower_the_confidence() -> None:
    segment = judge(loads.record(loads.LOADS["products"], label="products"))
    assert (segment.features.power_capped, segment.verdict.doubts) == (1.0, ())


def test_without_labels_a_recording_is_split_where_the_work_changes() -> None:
    parts = ["nothing", "products", "copies_on_the_gpu", "pinned_copies", "tiny_kernels"]
    tracks = [loads.record(loads.LOADS[name], since=8.0 * place) for place, name in enumerate(parts)]
    split = segments.judge_recording(Recording((loads.joined(*tracks),))).segments
    assert [segment.verdict.bound.value for segment in split] == [loads.LOADS[name].truth for name in parts]
    assert [round(segment.since / 8) for segment in split] == [0, 1, 2, 3, 4]


def test_work_with_repeated_stops_is_one_segment() -> None:
    slow = loads.Load("stalls_input_or_io", loads.WIDE, on_seconds=2.5, off_seconds=2.5, watts=692)
    split = segments.judge_recording(Recording((loads.record(slow, seconds=42),))).segments
    assert [segment.verdict.bound.value for segment in split] == ["stalls_input_or_io"]


def test_separate_rows_of_one_label_are_one_segment() -> None:
    first, gap, second = (
        loads.record(loads.LOADS[name], since=at, label=label)
        for name, at, label in (("products", 0, "a"), ("nothing", 8, "gap"), ("products", 16, "a"))
    )
    judged = segments.judge_recording(Recording((loads.joined(first, gap, second),)))
    assert [(segment.label, segment.verdict.bound, segment.samples) for segment in judged.segments] == [
        ("a", Bound.COMPUTE, 160)
    ]
    assert judged.unassigned_rows == 80


def test_a_label_without_readings_is_no_segment_and_never_idle() -> None:
    work = loads.record(loads.LOADS["products"], label="work")
    blind = loads.record(loads.LOADS["products"], since=8, label="blind")
    numbers = {name: [None] * len(blind) for name in blind.numbers}
    judged = segments.judge_recording(Recording((loads.joined(work, replace(blind, numbers=numbers)),)))
    assert ([segment.label for segment in judged.segments], judged.unassigned_rows) == (["work"], len(blind))


def test_each_gpu_has_its_own_segments() -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["t", "uuid", "graphics_util", "sm_util", "any_tensor_util", "dram_bw_util"])
    for row in range(60):
        writer.writerow([row / 10, "GPU-a", 99, 95, 85, 20])
        writer.writerow([row / 10, "GPU-b", 99, 97, 0, 85])
    judged = segments.judge_recording(recording.read_text(text.getvalue(), where="two.csv"))
    assert [(segment.gpu, segment.verdict.bound.value) for segment in judged.segments] == [
        ("GPU-a", "compute_bound"),
        ("GPU-b", "memory_bound"),
    ]


@pytest.mark.parametrize("name", ["products", "copies_on_the_gpu", "tiny_kernels", "slow_loader", "pinned_copies"])
def test_sm_util_without_graphics_util_still_separates_work_from_waiting(name: str) -> None:
    track = loads.record(loads.LOADS[name], label=name)
    segment = judge(loads.without(track, "graphics_util"))
    assert segment.verdict.bound == loads.LOADS[name].truth
    assert segment.verdict.confidence < judge(track).verdict.confidence


def test_a_recording_with_only_sm_util_is_not_idle_during_work() -> None:
    track = loads.record(loads.LOADS["products"], label="work")
    alone = loads.without(track, *(name for name in track.numbers if name != "sm_util"))
    assert judge(alone).verdict.bound not in (Bound.IDLE, Bound.UNDERUTILIZED, Bound.DATA_STARVED)


@pytest.mark.parametrize("spike", [0.3, 2.0, 30.0, 95.0])
@pytest.mark.parametrize("place", [0, 5, 10])
def test_eleven_idle_samples_with_one_spike_are_idle(spike: float, place: int) -> None:
    track = loads.record(loads.LOADS["nothing"], seconds=1.1, label="before")
    for column in ("graphics_util", "sm_util", "gpu_util"):
        track.numbers[column][place] = spike  # type: ignore[index]
    assert judge(track).verdict.bound is Bound.IDLE


def test_the_class_of_a_label_is_that_of_its_longest_phase_if_it_is_idle() -> None:
    parts = [("products", 0.0, 5.0), ("nothing", 5.0, 20.0)]
    tracks = [
        loads.record(loads.LOADS[name], since=since, seconds=seconds, label="job") for name, since, seconds in parts
    ]
    segment = judge(loads.joined(*tracks))
    assert (segment.verdict.bound, segment.samples) == (Bound.IDLE, 250)
    assert segment.verdict.why.startswith("200 of 250 samples: ")


def test_a_burst_with_too_few_samples_for_a_verdict_is_no_segment() -> None:
    parts = [("nothing", 0.0, 5.0), ("products", 5.0, 0.3), ("nothing", 5.3, 8.0)]
    tracks = [loads.record(loads.LOADS[name], since=since, seconds=seconds) for name, since, seconds in parts]
    judged = segments.judge_recording(Recording((loads.joined(*tracks),)))
    assert [(segment.verdict.bound, segment.samples) for segment in judged.segments] == [(Bound.IDLE, 130)]
    assert judged.unassigned_rows == 3


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_the_confidence_of_few_samples_is_low(rows: int) -> None:
    few = judge(loads.record(loads.LOADS["products"], label="few").select_rows(range(rows))).verdict
    assert few.confidence <= max(0.2, rows / 10)
    assert any("samples, at least 10" in text for text in few.doubts)
