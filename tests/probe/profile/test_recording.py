"""Files that are recordings, and files that are not: each problem with its line."""

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
        (HEAD, "no row below the header"),
        ("label,gpu_util\na,1\n", "file.csv:1: there is no column `t`"),
        ("t,label,temp\n1,a,40\n", "file.csv:1: none of the columns gpu_util, graphics_util, sm_util"),
        ("t,gpu_util,gpu_util\n1,2,3\n", "gpu_util stands twice"),
        (HEAD + "0,a,abc,1\n", "line 2: gpu_util 'abc' is not a number"),
        (HEAD + "0,a,1\n", "line 2: 3 cells where the header has 4"),
        (HEAD + "yesterday,a,1,2\n", "line 2: t 'yesterday' is neither seconds nor a time"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(RecordingError) as caught:
        read(text)
    assert words in str(caught.value)


def test_half_a_row_at_the_end_is_left_out_with_its_line() -> None:
    found = read(HEAD + ROWS + "3.0,wo")
    assert len(found.tracks[0]) == 30
    assert found.notes == ("left out: line 32: 2 cells where the header has 4: half a row",)


def test_rows_out_of_order_are_put_in_order_and_noted_with_their_line() -> None:
    found = read(HEAD + ROWS + "0.05,work,1,600\n")
    assert list(found.tracks[0].times) == sorted(found.tracks[0].times)
    assert "line 32: 0.050 is earlier" in found.notes[0]


def test_a_cell_without_a_number_is_unknown_and_not_zero() -> None:
    found = read(HEAD + "0,a,nan,\n1,a,N/A,[Not Supported]\n2,a,0,0\n3,a,250,5\n")
    assert list(found.tracks[0].numbers["gpu_util"]) == [None, None, 0.0, None]
    assert list(found.tracks[0].numbers["power_w"]) == [None, None, 0.0, 5.0]
    assert "1 values of gpu_util are no percentage" in found.notes[0]


def test_times_may_be_written_as_people_do_and_masks_as_drivers_do() -> None:
    found = read("t;gpu_util;throttle\n2026-11-15T09:00:00Z;5;0x4\n2026-11-15T09:00:01Z;5;4\n")
    assert found.tracks[0].times[1] - found.tracks[0].times[0] == 1.0
    assert list(found.tracks[0].numbers["throttle"]) == [4.0, 4.0]


def test_a_file_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        recording.read(tmp_path / "none.csv")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    track = loads.record(loads.LOADS["training"], label="work")
    recording.write_csv(Recording((track,)), tmp_path / "one.csv")
    back = recording.read(tmp_path / "one.csv").tracks[0]
    assert (list(back.times), list(back.labels or ())) == (list(track.times), list(track.labels or ()))
    assert {name: list(values) for name, values in back.numbers.items()} == {
        name: list(values) for name, values in track.numbers.items()
    }


def test_parquet_is_read_back_with_every_number_and_label(tmp_path: Path) -> None:
    track = loads.record(loads.LOADS["products"])
    gaps = [None if at % 3 else value for at, value in enumerate(track.numbers["power_w"])]
    named = GpuTrack(
        "GPU-ü", track.times, {**track.numbers, "power_w": gaps}, [f"step {at % 2}" for at in range(len(track))]
    )
    path = recording.save(Recording((named,)), tmp_path)
    assert path.suffix == ".parquet"
    (found,) = recording.read(path).tracks
    assert (found.gpu, list(found.times), found.labels) == (named.gpu, list(named.times), named.labels)
    assert {name: list(values) for name, values in found.numbers.items()} == {
        name: list(values) for name, values in named.numbers.items()
    }


def test_without_pyarrow_a_recording_is_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    track = loads.record(loads.LOADS["products"])
    path = recording.save(Recording((track,)), tmp_path)
    assert path.suffix == ".csv"
    assert list(recording.read(path).tracks[0].times) == list(track.times)


@given(st.text(alphabet="0123456789.,\n\t;abtgpu_ilnNe-\"'x \x00é", max_size=300))
def test_no_text_makes_anything_but_a_recording_or_a_recording_error(text: str) -> None:
    try:
        judged = segments.judge_recording(read("t,gpu_util,label\n" + text))
    except RecordingError:
        return
    assert all(0 < segment.verdict.confidence < 1 for segment in judged.segments)


def test_a_file_whose_gpu_never_says_whether_it_works_is_refused_and_never_idle() -> None:
    rows = "\n".join(f"{at},N/A,{at + 80}" for at in range(30))
    with pytest.raises(recording.RecordingError, match="nothing says whether the GPU works"):
        recording.read_text(f"t,gpu_util,power_w\n{rows}", where="mig.csv")


def test_a_gpu_that_says_nothing_is_left_out_beside_one_that_does() -> None:
    rows = "\n".join(f"{at},{gpu},{'N/A' if gpu else 99}" for at in range(30) for gpu in (0, 1))
    read = recording.read_text(f"t,gpu,gpu_util\n{rows}", where="two.csv")
    assert [track.gpu for track in read.tracks] == ["0"]
    assert read.notes == ("gpu 1: left out, because nothing says whether it works",)


def test_a_single_column_is_enough() -> None:
    read = recording.read_text("t,gpu_util\n0,5\n1,99.5\n2,\n", where="one.csv")
    assert list(read.tracks[0].numbers["gpu_util"]) == [5.0, 99.5, None]
