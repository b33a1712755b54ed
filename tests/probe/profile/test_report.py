"""Reports of recordings: class, advice, possible gain, and comparison."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.probe.profile import loads
from watchkeeper.probe.profile import advice, recorder, report, report_page, report_text, verdict
from watchkeeper.probe.profile.recording import GpuTrack, Recording
from watchkeeper.probe.profile.verdict import Bound


def recorded(*names: str, seconds: float = 30.0, seed: int = 1) -> Recording:
    """One GPU for each name."""
    tracks = [
        GpuTrack(str(place), track.times, track.numbers)
        for place, name in enumerate(names)
        for track in (loads.record(loads.LOADS[name], seconds=seconds, seed=seed + place),)
    ]
    return Recording(tuple(tracks), model="NVIDIA H200")


def test_every_class_has_advice_and_a_profiler_command() -> None:
    assert set(advice.bottleneck_advice()) == {bound.value for bound in Bound}
    for bound in Bound:
        assert "python train.py" in advice.profiler_command(bound, ["python", "train.py"]) or bound is Bound.IDLE


def test_the_gain_of_a_starved_gpu_follows_from_its_waiting_time() -> None:
    built = report.build_report(recorded("slow_loader"))
    assert built.main.verdict.bound is Bound.DATA_STARVED
    # A tenth of the time is work.
    assert built.gain.at_most == pytest.approx(10, rel=0.1)
    assert "DataLoader" in built.bottleneck.first_change


def test_the_gain_of_fp32_products_is_the_speedup_of_tensor_cores() -> None:
    built = report.build_report(recorded("fp32_products"))
    # packs/gpu_expectations.csv: 799 against 51 TFLOP/s; 96 % of the time is on the pipe.
    assert built.gain.at_most == pytest.approx(10, rel=0.15)


def test_achieved_rates_match_measurements_on_an_h200() -> None:
    track = loads.record(loads.LOADS["products"])
    clocked = replace(report.build_report(Recording((track,))).main.features, tensor=0.931, sm_clock=1470.0, dram=0.876)
    model = verdict.find_model("NVIDIA H200")
    assert model is not None
    rates = advice.achieved_rates(clocked, model)
    # 799 TFLOP/s and 4,200 GB/s were measured with these counters.
    assert rates.tensor_tflops == pytest.approx(799, rel=0.1)
    assert rates.memory_gb == pytest.approx(4200, rel=0.02)


def test_start_up_is_excluded_from_the_class() -> None:
    quiet = loads.record(loads.LOADS["nothing"], seconds=30)
    work = loads.record(loads.LOADS["copies_on_the_gpu"], seconds=10, since=30)
    built = report.build_report(Recording((loads.joined(quiet, work),), model="NVIDIA H200"))
    assert built.main.verdict.bound is Bound.MEMORY
    assert built.start_up_seconds == pytest.approx(30, abs=1.5)
    assert any("started after 3" in note for note in built.notes)


def phases(*parts: tuple[str, float]) -> GpuTrack:
    """Loads one after another, each for so many seconds."""
    tracks, at = [], 0.0
    for seed, (name, seconds) in enumerate(parts):
        tracks.append(loads.record(loads.LOADS[name], seconds=seconds, since=at, seed=seed))
        at += seconds
    return loads.joined(*tracks)


def main_class(track: GpuTrack) -> str:
    return report.build_report(Recording((track,), model="NVIDIA H200")).main.verdict.bound.value


@pytest.mark.parametrize("name", sorted(set(loads.LOADS) - {"nothing"}))
@pytest.mark.parametrize("rows", [1, 2])
def test_a_program_that_only_holds_memory_is_idle_whatever_its_start_did(name: str, rows: int) -> None:
    """As recorded on an H200: 18 s with 20 GiB allocated, after one or two samples of copies or kernels."""
    assert main_class(phases(("nothing", 4), (name, 0.1 * rows), ("nothing", 18))) == "idle"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([("products", 5), ("nothing", 20)], "idle", id="work, then memory is held"),
        pytest.param([("products", 12), ("nothing", 4)], "compute_bound", id="a short end"),
        pytest.param([("nothing", 19), ("products", 3)], "compute_bound", id="a long start"),
        pytest.param([("products", 4), ("nothing", 7), ("products", 4)], "compute_bound", id="a pause"),
        pytest.param([("pinned_copies", 2), ("products", 10)], "compute_bound", id="weights, then training"),
        pytest.param([("pinned_copies", 1.7), ("nothing", 16)], "idle", id="weights, then nothing"),
        pytest.param([("products", 0.5), ("nothing", 6)] * 5, "data_starved", id="bursts that return are a rhythm"),
        pytest.param([("products", 0.1), ("nothing", 9)] * 2, "idle", id="two spikes are none"),
    ],
)
def test_the_longest_phase_counts(parts: list[tuple[str, float]], expected: str) -> None:
    assert main_class(phases(("nothing", 2), *parts)) == expected


def test_uneven_gpus_are_named_with_both_numbers() -> None:
    built = report.build_report(recorded("products", "slow_loader"))
    assert built.kind == "multi_gpu"
    assert built.imbalance is not None
    assert "GPU 0 is active 98 % of the time and GPU 1 10 %" in built.imbalance


def test_evenly_loaded_gpus_have_no_imbalance() -> None:
    assert report.build_report(recorded("products", "products")).imbalance is None


def test_only_the_gpus_of_the_workload_are_in_the_report() -> None:
    built = report.build_report(recorded("nothing", "products", "tiny_kernels"), used_gpus={"2"})
    assert [gpu.gpu for gpu in built.gpus] == ["2"]
    assert [gpu.gpu for gpu in report.build_report(recorded("nothing", "products")).gpus] == ["1"]


def test_the_same_workload_again_is_the_same_within_noise() -> None:
    built = report.build_report(recorded("training", seed=5), baseline=recorded("training", seed=9))
    assert {row.change.value for row in built.compared_columns} == {"same"}
    assert built.baseline_bound == "mixed"


def test_a_value_that_is_worse_beyond_noise_has_both_numbers() -> None:
    built = report.build_report(recorded("slow_loader"), baseline=recorded("products"))
    worse = {row.column: row for row in built.compared_columns if row.change.value == "worse"}
    assert {"graphics_util", "sm_util", "any_tensor_util"} <= set(worse)
    assert (worse["sm_util"].before or 0) > 90 > 15 > (worse["sm_util"].now or 0)
    assert any("which was compute_bound" in line for line in report_text.report_lines(built))


def test_the_json_of_a_report_has_class_and_confidence() -> None:
    plain = json.loads(json.dumps(report.report_as_json(report.build_report(recorded("tiny_kernels")))))
    assert (plain["class"], plain["confidence"] > 0.6, plain["baseline"]) == ("launch_bound", True, None)
    assert plain["gpus"][0]["segments"][0]["class"] == "launch_bound"


def test_the_page_is_self_contained_and_escapes_its_input() -> None:
    taken = recorded("training", "slow_loader")
    built = report.build_report(taken, baseline=recorded("training"))
    page = report_page.render_page(built, taken, title="python <train>.py")
    assert not re.findall(r"(?:src|href)=|https?://|@[A-Z]+@|<script", page)
    assert "python &lt;train&gt;.py" in page
    assert page.count("<polyline") >= 8
    assert "prefers-color-scheme: dark" in page


def test_a_chart_of_a_long_recording_has_a_limited_number_of_points() -> None:
    taken = recorded("training", seconds=400)
    page = report_page.render_page(report.build_report(taken), taken, title="long")
    longest = max(len(points.split()) for points in re.findall(r'points="([^"]*)"', page))
    assert longest <= report_page.POINTS


def test_a_recorder_with_too_many_rows_drops_every_second_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_ROWS", 100)
    running = recorder.Recorder(0.1)
    running.facts = {0: {"model": "NVIDIA H200"}}
    for row in range(1000):
        running._add_row({"gpu": 0, "t": row / 10, "values": {"gpu_util": 1}})
    track = running.finish().tracks[0]
    assert 50 <= len(track) <= 101
    assert track.times[-1] > 95
    assert "rows: only every" in running.notes[0]


def test_a_thread_that_is_always_busy_is_noted_as_the_limit() -> None:
    track = loads.record(loads.LOADS["tiny_kernels"], seconds=20)
    for busiest, words in ((98.0, "busy 98 % of the time: the GPU waits for this thread"), (3.0, "(at most 3 %)")):
        numbers = {**track.numbers, "busiest_thread": [busiest if row % 5 == 0 else None for row in range(len(track))]}
        built = report.build_report(Recording((GpuTrack("0", track.times, numbers),), model="NVIDIA H200"))
        assert any(words in note for note in built.notes)
