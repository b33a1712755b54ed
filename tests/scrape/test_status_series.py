"""Series that stand for what is so, and end when it is no longer so."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from watchkeeper.kit import own_metrics
from watchkeeper.model import events, fleet, samples
from watchkeeper.model.labels import Labels
from watchkeeper.query import embedded
from watchkeeper.scrape import status_series
from watchkeeper.store.head import head

FIRST, TWO = Labels({"__name__": "x", "node": "n1"}), Labels({"__name__": "x", "node": "n2"})


def test_a_series_that_is_gone_ends_with_the_stale_marker_once() -> None:
    family = status_series.StatusSeries()
    family.samples({FIRST: 1.0, TWO: 1.0}, 1000)
    second = family.samples({FIRST: 1.0}, 2000)
    assert [(sample.labels, samples.is_stale(sample.value)) for sample in second] == [(FIRST, False), (TWO, True)]
    assert [sample.labels for sample in family.samples({FIRST: 1.0}, 3000)] == [FIRST]


def test_a_pod_and_a_slurm_job_hold_gpus_and_a_free_gpu_has_no_series() -> None:
    gpu = {"cluster": "c", "Hostname": "n1", "UUID": "GPU-1", "gpu": "0"}
    pod = Labels({**gpu, "namespace": "research", "pod": "llm-0"})
    job = Labels({**gpu, "UUID": "GPU-2", "hpc_job": "4711"})
    series = list(status_series.workload_series([pod, job, Labels({**gpu, "UUID": "GPU-3"})]))
    assert [(labels["workload_kind"], labels["workload"], labels.get("team", "")) for labels in series] == [
        ("pod", "llm-0", "research"),
        ("slurm_job", "4711", ""),
    ]


def test_the_holder_of_a_slice_is_known_by_an_exporter_that_has_no_utilisation_for_slices() -> None:
    engine = embedded.EmbeddedEngine(head.Head(retention_ms=60_000))
    gpu = {"__name__": "DCGM_FI_DEV_FB_USED", "cluster": "c", "Hostname": "n1", "UUID": "GPU-1", "gpu": "0"}
    cut = {"7": {"namespace": "vision", "pod": "a"}, "8": {"namespace": "nlp", "pod": "b"}, "9": {}}
    engine.appender.append(
        samples.Sample(Labels({**gpu, "GPU_I_ID": slice, "GPU_I_PROFILE": "1g.18gb", **holder}), 1000, 40.0)
        for slice, holder in cut.items()
    )
    engine.appender.append([samples.Sample(Labels({**gpu, "__name__": "DCGM_FI_DEV_GPU_UTIL"}), 1000, 0.0)])
    series = status_series.workload_series(engine.instant(status_series.WORKLOAD_SOURCES, 1000).frame.labels)
    held = sorted(
        (labels["GPU_I_ID"], labels["GPU_I_PROFILE"], labels["team"], labels["workload"]) for labels in series
    )
    assert held == [("7", "1g.18gb", "vision", "a"), ("8", "1g.18gb", "nlp", "b")]


def test_events_are_counted_by_place_kind_and_code() -> None:
    counts = status_series.EventCounts()
    place = fleet.Place("c", node="n1", gpu="GPU-1")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    counts.count(events.Event(f"e{n}", events.EventKind.XID, 31, place, at, "text") for n in range(3))
    assert [(labels["kind"], labels["code"], value) for labels, value in counts.series.items()] == [("xid", "31", 3.0)]


def test_beyond_so_many_places_and_codes_those_that_are_known_are_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_series, "MAX_EVENT_SERIES", 1)
    counts, place = status_series.EventCounts(), fleet.Place("c", node="n1")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for code in (31, 48, 31):
        counts.count([events.Event(f"e{code}", events.EventKind.XID, code, place, at, "text")])
    assert [(labels["code"], value) for labels, value in counts.series.items()] == [("31", 2.0)]


def test_own_metrics_become_series_with_the_labels_of_a_scrape() -> None:
    registry = own_metrics.Registry()
    registry.counter("watchkeeper_x_total", "x").add(2, loop="rules")
    series = status_series.own_metric_series(registry, job="watchkeeper", instance="hub")
    labels = Labels({"__name__": "watchkeeper_x_total", "job": "watchkeeper", "instance": "hub", "loop": "rules"})
    assert series == {labels: 2.0}
