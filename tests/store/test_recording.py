"""Recordings: everything written is read back, and a truncated file is refused."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import native_strategies as native
from watchkeeper.errors import StoreError
from watchkeeper.model import fleet
from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, is_stale
from watchkeeper.query import embedded
from watchkeeper.store import recording
from watchkeeper.store.head import head

HEADER = recording.Header(1_000, 600_000, "blue", "0.1.0")


def written(path: Path, *rows: tuple[Labels, list[int], list[float]]) -> Path:
    writer = recording.RecordingWriter(HEADER)
    pieces = [writer.add("node", fleet.Node("blue", "n1", expected_gpus=8))]
    pieces += [writer.add_series(labels, np.array(times), np.array(values)) for labels, times, values in rows]
    path.write_bytes(b"".join([*pieces, writer.end()]))
    return path


def test_everything_that_was_written_is_read_back(tmp_path: Path) -> None:
    values = [1.5, math.nan, math.inf, -math.inf, STALE, 0.0]
    labels = Labels({"__name__": "x", "why": 'a "quoted" ümlaut\n'})
    read_back = recording.read(written(tmp_path / "r", (labels, [1, 2, 3, 4, 5, 700], values)))
    assert read_back.header == HEADER
    assert read_back.nodes == [fleet.Node("blue", "n1", expected_gpus=8)]
    ((read_labels, times, read_values),) = read_back.series
    assert (read_labels, times.tolist()) == (labels, [1, 2, 3, 4, 5, 700])
    assert is_stale(read_values.tolist()[4])
    assert not is_stale(read_values.tolist()[1])
    assert read_values.tolist()[2:4] == [math.inf, -math.inf]
    assert read_back.counts()["samples"] == 6


@given(native.histograms)
def test_native_histograms_among_numbers_are_read_back(histogram: Histogram) -> None:
    writer = recording.RecordingWriter(HEADER)
    labels = Labels({"__name__": "h"})
    content = writer.add_series(labels, np.array([5, 9, 70]), [1.5, histogram, STALE]) + writer.end()
    read_back = recording.Recording(HEADER)
    recording._add_line(read_back, json.loads(gzip.decompress(content).splitlines()[1]))
    [(own, times, values)] = read_back.native
    assert (own, times.tolist(), values[0]) == (labels, [5, 9, 70], 1.5)
    assert isinstance(values[1], Histogram)
    assert values[1].is_same(histogram)
    assert values[1].hint is histogram.hint
    assert isinstance(values[2], float)
    assert is_stale(values[2])
    assert read_back.counts() == {**dict.fromkeys(read_back.counts(), 0), "series": 1, "samples": 3}


def test_native_histograms_loaded_into_a_head_answer_like_the_original() -> None:
    series = Labels({"__name__": "h"})
    grown = [Histogram(count=float(n), sum=2.0 * n, positive=((1, float(n)),)) for n in range(1, 11)]
    kept = head.Head(retention_ms=3_600_000)
    times = np.arange(0, 165_000, 15_000)
    recording.load_histogram_series([(series, times, [*grown, STALE])], kept, until_ms=600_000)
    answers = embedded.EmbeddedEngine(kept)
    assert [*answers.instant("histogram_count(rate(h[2m]))", 135_000).latest().values()] == [pytest.approx(1 / 15)]
    assert answers.instant("h", 151_000).latest_histograms() == {}
    [(_, _, values)] = answers.raw_samples((), -1, 600_000)
    assert len(values) == 11


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_numbers_survive_to_the_last_bit(values: list[float]) -> None:
    writer = recording.RecordingWriter(HEADER)
    content = writer.add_series(Labels({"__name__": "x"}), np.arange(len(values)), np.array(values)) + writer.end()
    lines = gzip.decompress(content).splitlines()
    read_back = recording.Recording(HEADER)
    recording._add_line(read_back, json.loads(lines[1]))
    assert read_back.series[0][2].tolist() == values


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "r", (Labels({"__name__": "x"}), [1], [1.0]))
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:-1])))
    with pytest.raises(StoreError, match="its last line is missing"):
        recording.read(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(StoreError, match="cannot be read"):
        recording.read(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{}", "line 1 is invalid: .not a recording of version 1"),
        (b'{"watchkeeper_recording": 2}', "not a recording of version 1"),
        (b"hello", "line 1 is invalid"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "r"
    path.write_bytes(gzip.compress(line + b"\n"))
    with pytest.raises(StoreError, match=problem):
        recording.read(path)


def test_an_impossible_time_is_reported_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "r", (Labels({"__name__": "x"}), [1], [1.0]))
    text = gzip.decompress(path.read_bytes()).replace(b'"t": [1]', b'"t": [1000000000000000000000]')
    path.write_bytes(gzip.compress(text))
    with pytest.raises(StoreError, match="line 3 is invalid"):
        recording.read(path)


def test_a_file_that_is_not_compressed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("hello")
    with pytest.raises(StoreError, match="cannot be read"):
        recording.read(path)


def test_a_recording_loaded_into_a_head_answers_like_the_original() -> None:
    times = np.arange(0, 600_000, 15_000)
    series = [(Labels({"__name__": "x", "n": str(n)}), times + 7 * n, np.arange(40.0) * n) for n in range(4)]
    gone = np.array([*range(20), *[STALE]], dtype=np.float64)
    series.append((Labels({"__name__": "y"}), times[:21], gone))
    kept = head.Head(retention_ms=3_600_000)
    recording.load_series(series, kept, until_ms=600_000)
    answers = embedded.EmbeddedEngine(kept)
    assert [value for _, _, values in answers.instant("rate(x[5m])", 590_000).frame.rows() for value in values] == [
        pytest.approx(n / 15) for n in range(4)
    ]
    assert answers.instant("y", 302_000).latest() == {}
    assert len(answers.instant("y", 290_000).latest()) == 1
    assert [len(values) for _, _, values in answers.raw_samples((), -1, 600_000)] == [40, 40, 40, 40, 21]
