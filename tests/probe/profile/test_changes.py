"""Recordings without labels: where one workload ends and the next starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.profile import loads
from tests.properties import examples
from watchkeeper.probe.profile import changes, segments
from watchkeeper.probe.profile.recording import GpuTrack, Recording
from watchkeeper.probe.profile.verdict import MIB_PER_GB, default_model

CEILING = default_model().pcie_gb_per_second * MIB_PER_GB
STEADY = sorted(set(loads.LOADS) - {"nothing", "checkpoints", "tiny_request_each_25_ms"})


def one_after_another(*names: str, pause: float = 0.0) -> GpuTrack:
    """Six seconds of each, with a pause after each."""
    tracks, at = [], 0.0
    for seed, name in enumerate(names):
        for load, seconds in ((loads.LOADS[name], 6.0), (loads.LOADS["nothing"], pause)):
            tracks.append(loads.record(load, seconds=seconds, since=at, seed=seed))
            at += seconds
    return loads.joined(*tracks)


def classes(track: GpuTrack) -> list[str]:
    return [segment.verdict.bound.value for segment in segments.judge_recording(Recording((track,))).segments]


@pytest.mark.parametrize("pause", [0.0, 0.7, 1.5])
def test_consecutive_workloads_are_separate_segments_with_any_pause_between(pause: float) -> None:
    names = ("products", "copies_on_the_gpu", "fp32_products", "pinned_copies", "training")
    assert classes(one_after_another(*names, pause=pause)) == [loads.LOADS[name].truth for name in names]


def test_programs_of_one_class_with_pauses_between_are_not_a_stall() -> None:
    """Four training runs of different models, with different values."""
    sizes = [loads.Load("compute_bound", {**loads.WIDE, "any_tensor_util": share}) for share in (92, 70, 85, 62)]
    tracks = [loads.record(load, since=7.0 * place, seconds=6.0, seed=place) for place, load in enumerate(sizes)]
    gaps = [loads.record(loads.LOADS["nothing"], since=7.0 * place + 6, seconds=1.0) for place in range(4)]
    mixed = [track for both in zip(tracks, gaps, strict=True) for track in both]
    assert set(classes(loads.joined(*mixed))) == {"compute_bound"}


def test_a_long_pause_is_a_segment() -> None:
    tracks = [
        loads.record(loads.LOADS["products"], seconds=8),
        loads.record(loads.LOADS["nothing"], seconds=8, since=8),
        loads.record(loads.LOADS["copies_on_the_gpu"], seconds=8, since=16),
    ]
    assert classes(loads.joined(*tracks)) == ["compute_bound", "idle", "memory_bound"]


@given(st.lists(st.sampled_from(STEADY), min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 3.0, 9.0]))
@examples(40)
def test_segments_are_in_order_and_share_no_row(names: list[str], pause: float) -> None:
    track = one_after_another(*names, pause=pause)
    pieces = changes.find_segments(track, CEILING)
    rows = [row for piece in pieces for row in piece]
    assert rows == sorted(set(rows))
    assert set(rows) <= set(range(len(track)))
    assert all(pieces)


@given(st.sampled_from(sorted(loads.LOADS)), st.integers(0, 99))
@examples(40)
def test_a_single_workload_is_never_split(name: str, seed: int) -> None:
    track = loads.record(loads.LOADS[name], seconds=20.0, seed=seed)
    assert len(changes.find_segments(track, CEILING)) == 1


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_few_rows_are_one_segment(rows: int) -> None:
    track = loads.record(loads.LOADS["products"]).select_rows(range(rows))
    assert changes.find_segments(replace(track, labels=None), CEILING) == [range(rows)]
