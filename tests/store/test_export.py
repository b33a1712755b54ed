"""Samples are exported as Parquet, or an error says what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.store.durables import BLOCK, MINUTE, SETTINGS, Rig, named
from watchkeeper import errors
from watchkeeper.model.histograms import Histogram, HistogramSample
from watchkeeper.model.samples import Sample
from watchkeeper.store import export


def observations(count: int) -> Histogram:
    return Histogram(count=float(count), sum=1.5 * count, positive=((1, float(count)),))


def cut(folder: Path) -> Rig:
    rig = Rig(folder)
    for minute in range(30):
        rig.scrape("node", [named("temp", gpu="0")], minute * MINUTE, [60.5 + minute])
        observed = HistogramSample(named("latency", value="v"), minute * MINUTE, observations(minute))
        rig.store.append([Sample(named("up"), minute * MINUTE, 1.0), observed])
    rig.now_ms = BLOCK + SETTINGS.late_ms
    rig.store.maintain(rig.now_ms)
    return rig


def test_every_sample_of_the_time_becomes_a_row(tmp_path: Path) -> None:
    rig = cut(tmp_path)
    target = tmp_path / "out.parquet"
    assert export.write_parquet(rig.path, target, start_ms=9 * MINUTE, end_ms=BLOCK) == (60, 20)
    rows = parquet.read_table(target).to_pylist()
    native, plain = rows[0], rows[20]
    labels = {"gpu": None, "label_value": "v"}
    buckets = [{"lower": 1.0, "upper": 2.0, "count": 10.0}]
    observed = {"count": 10.0, "sum": 15.0, "buckets": buckets}
    assert {**native, "time": native["time"].timestamp()} == {
        "time": 600.0,
        "value": None,
        "histogram": observed,
        "__name__": "latency",
        **labels,
    }
    assert (plain["value"], plain["histogram"], plain["gpu"]) == (70.5, None, "0")
    assert [row["gpu"] for row in rows if row["__name__"] == "up"] == [None] * 20
    rig.store.close()


def test_no_two_labels_have_the_same_column(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.store.append([Sample(named("taint", value="a", label_value="b"), minute * MINUTE, 1.0) for minute in range(30)])
    rig.now_ms = BLOCK + SETTINGS.late_ms
    rig.store.maintain(rig.now_ms)
    export.write_parquet(rig.path, tmp_path / "out.parquet", start_ms=0, end_ms=BLOCK)
    row = parquet.read_table(tmp_path / "out.parquet").to_pylist()[0]
    assert (row["label_value"], row["label_label_value"], row["value"]) == ("b", "a", 1.0)
    rig.store.close()


def test_without_pyarrow_the_next_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.StoreError, match="pip install pyarrow"):
        export.write_parquet(tmp_path, tmp_path / "out.parquet", start_ms=0, end_ms=1)
