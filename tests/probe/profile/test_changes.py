"""Recordings without labels: where one workload ends and the next begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.profile import loads
from tests.properties import examples
from watchkeeper.probe.profile import changes, segments
from watchkeeper.probe.profile.limits import MIB_PER_GB, default_model
from watchkeeper.probe.profile.recording import GpuTrack, Recording

CEILING = default_model().pcie_gb_per_second * MIB_PER_GB
STEADY = sorted(set(loads.LOADS) - {"nothing", "checkpoints", "tiny_request_each_25_ms"})


def one_after_another(*names: str, pause: float = 0.0) -> GpuTrack:
    """Six seconds of each, with nothing between two for a while."""
    tracks, at = [], 0.0
    for seed, name in enumerate(names):
        for load, seconds in ((loads.LOADS[name], 6.0), (loads.LOADS["nothing"], pause)):
            tracks.append(loads.record(load, seconds=seconds, since=at, seed=seed))
            at += seconds
    return loads.joined(*tracks)


def classes(track: GpuTrack) -> list[str]:
    return [segment.verdict.bound.value for segment in segments.judge_recording(Recording((track,))).segments]


@pytest.mark.parametrize("pause", [0.0, 0.7, 1.5])
def test_workloads_one_after_another_are_told_apart_whatever_the_pause_between(pause: float) -> None:
    names = ("products", "copies_on_the_gpu", "fp32_products", "pinned_copies", "training")
    assert classes(one_after_another(*names, pause=pause)) == [loads.LOADS[name].truth for name in names]


def test_two_programs_of_one_class_with_a_pause_between_are_no_stall() -> None:
    """Four training runs of different models: each shows numbers of its own."""
    sizes = [loads.Load("compute_bound", {**loads.WIDE, "any_tensor_util": share}) for share in (92, 70, 85, 62)]
    tracks = [loads.record(load, since=7.0 * place, seconds=6.0, seed=place) for place, load in enumerate(sizes)]
    gaps = [loads.record(loads.LOADS["nothing"], since=7.0 * place + 6, seconds=1.0) for place in range(4)]
    mixed = [track for both in zip(tracks, gaps, strict=True) for track in both]
    assert set(classes(loads.joined(*mixed))) == {"compute_bound"}


def test_a_pause_of_its_own_length_is_a_segment_and_a_short_one_is_none() -> None:
    tracks = [
        loads.record(loads.LOADS["products"], seconds=8),
        loads.record(loads.LOADS["nothing"], seconds=8, since=8),
        loads.record(loads.LOADS["copies_on_the_gpu"], seconds=8, since=16),
    ]
    assert classes(loads.joined(*tracks)) == ["compute_bound", "idle", "memory_bound"]


@given(st.lists(st.sampled_from(STEADY), min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 3.0, 9.0]))
@examples(40)
def test_pieces_are_in_order_and_share_no_row(names: list[str], pause: float) -> None:
    track = one_after_another(*names, pause=pause)
    pieces = changes.pieces(track, CEILING)
    rows = [row for piece in pieces for row in piece]
    assert rows == sorted(set(rows))
    assert set(rows) <= set(range(len(track)))
    assert all(pieces)


@given(st.sampled_from(sorted(loads.LOADS)), st.integers(0, 99))
@examples(40)
def test_one_workload_alone_is_never_cut(name: str, seed: int) -> None:
    track = loads.record(loads.LOADS[name], seconds=20.0, seed=seed)
    assert len(changes.pieces(track, CEILING)) == 1


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_few_rows_are_one_piece(rows: int) -> None:
    track = loads.record(loads.LOADS["products"]).part(range(rows))
    assert changes.pieces(replace(track, labels=None), CEILING) == [range(rows)]
