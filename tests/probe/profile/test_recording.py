"""Valid and invalid recordings: each problem is reported with its line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.profile import loads
from watchkeeper.probe.profile import recording, segments
from watchkeeper.probe.profile.recording import GpuTrack, Recording, RecordingError

HEAD = "t,label,gpu_util,power_w\n"
ROWS = "".join(f"{row / 10},work,99,600\n" for row in range(30))


def read(text: str) -> Recording:
    return recording.read_text(text, where="file.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "file.csv: the file is empty"),
        (HEAD, "no row after the header"),
        ("label,gpu_util\na,1\n", "file.csv:1: no column `t`"),
        ("t,label,temp\n1,a,40\n", "file.csv:1: no column gpu_util, graphics_util, sm_util"),
        ("t,gpu_util,gpu_util\n1,2,3\n", "gpu_util is twice in the header"),
        (HEAD + "0,a,abc,1\n", "line 2: gpu_util 'abc' is not a number"),
        (HEAD + "0,a,1\n", "line 2: 3 cells, the header has 4"),
        (HEAD + "yesterday,a,1,2\n", "line 2: t 'yesterday' is not seconds or a time"),
    ],
)
def test_an_invalid_recording_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(RecordingError) as caught:
        read(text)
    assert words in str(caught.value)


def test_an_incomplete_row_at_the_end_is_dropped_with_its_line() -> None:
    parsed = read(HEAD + ROWS + "3.0,wo")
    assert len(parsed.tracks[0]) == 30
    assert parsed.notes == ("dropped: line 32: 2 cells, the header has 4",)


def test_rows_out_of_order_are_sorted_and_noted_with_their_line() -> None:
    parsed = read(HEAD + ROWS + "0.05,work,1,600\n")
    assert list(parsed.tracks[0].times) == sorted(parsed.tracks[0].times)
    assert "line 32: 0.050 is earlier" in parsed.notes[0]


def test_a_cell_without_a_number_is_unknown_and_not_zero() -> None:
    parsed = read(HEAD + "0,a,nan,\n1,a,N/A,[Not Supported]\n2,a,0,0\n3,a,250,5\n")
    assert list(parsed.tracks[0].numbers["gpu_util"]) == [None, None, 0.0, None]
    assert list(parsed.tracks[0].numbers["power_w"]) == [None, None, 0.0, 5.0]
    assert "1 values of gpu_util are out of range" in parsed.notes[0]


def test_timestamps_and_hexadecimal_masks_are_parsed() -> None:
    parsed = read("t;gpu_util;throttle\n2026-11-15T09:00:00Z;5;0x4\n2026-11-15T09:00:01Z;5;4\n")
    assert parsed.tracks[0].times[1] - parsed.tracks[0].times[0] == 1.0
    assert list(parsed.tracks[0].numbers["throttle"]) == [4.0, 4.0]


def test_a_missing_file_is_a_recording_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        recording.read_recording(tmp_path / "none.csv")


def test_a_written_recording_is_read_back(tmp_path: Path) -> None:
    track = loads.record(loads.LOADS["training"], label="work")
    recording.write_csv(Recording((track,)), tmp_path / "one.csv")
    back = recording.read_recording(tmp_path / "one.csv").tracks[0]
    assert (list(back.times), list(back.labels or ())) == (list(track.times), list(track.labels or ()))
    assert {name: list(values) for name, values in back.numbers.items()} == {
        name: list(values) for name, values in track.numbers.items()
    }


def test_parquet_is_read_back_with_all_numbers_and_labels(tmp_path: Path) -> None:
    track = loads.record(loads.LOADS["products"])
    gaps = [None if at % 3 else value for at, value in enumerate(track.numbers["power_w"])]
    named = GpuTrack(
        "GPU-ü", track.times, {**track.numbers, "power_w": gaps}, [f"step {at % 2}" for at in range(len(track))]
    )
    path = recording.save(Recording((named,)), tmp_path)
    assert path.suffix == ".parquet"
    (track,) = recording.read_recording(path).tracks
    assert (track.gpu, list(track.times), track.labels) == (named.gpu, list(named.times), named.labels)
    assert {name: list(values) for name, values in track.numbers.items()} == {
        name: list(values) for name, values in named.numbers.items()
    }


def test_without_pyarrow_a_recording_is_saved_as_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    track = loads.record(loads.LOADS["products"])
    path = recording.save(Recording((track,)), tmp_path)
    assert path.suffix == ".csv"
    assert list(recording.read_recording(path).tracks[0].times) == list(track.times)


@given(st.text(alphabet="0123456789.,\n\t;abtgpu_ilnNe-\"'x \x00é", max_size=300))
def test_any_text_is_a_recording_or_a_recording_error(text: str) -> None:
    try:
        judged = segments.judge_recording(read("t,gpu_util,label\n" + text))
    except RecordingError:
        return
    assert all(0 < segment.verdict.confidence < 1 for segment in judged.segments)


def test_a_file_without_activity_values_is_refused_and_never_idle() -> None:
    rows = "\n".join(f"{at},N/A,{at + 80}" for at in range(30))
    with pytest.raises(recording.RecordingError, match="the activity of the GPU is unknown"):
        recording.read_text(f"t,gpu_util,power_w\n{rows}", where="mig.csv")


def test_a_gpu_without_activity_values_is_dropped_and_the_other_is_kept() -> None:
    rows = "\n".join(f"{at},{gpu},{'N/A' if gpu else 99}" for at in range(30) for gpu in (0, 1))
    read = recording.read_text(f"t,gpu,gpu_util\n{rows}", where="two.csv")
    assert [track.gpu for track in read.tracks] == ["0"]
    assert read.notes == ("gpu 1: dropped, no activity values",)


def test_a_single_column_is_enough() -> None:
    read = recording.read_text("t,gpu_util\n0,5\n1,99.5\n2,\n", where="one.csv")
    assert list(read.tracks[0].numbers["gpu_util"]) == [5.0, 99.5, None]
