"""The benchmarks against other servers in their smallest size: their output, and equality of results."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bench import _peers
from tests import servers
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import remote_write


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench", *arguments, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=55, check=True)
    numbers: dict[str, Any] = json.loads(ran.stdout)
    return numbers


@pytest.mark.servers
@pytest.mark.slow
def test_the_rules_benchmark_gets_the_results_of_prometheus_for_all_expressions() -> None:
    servers.require("prometheus")
    numbers = bench("rules", "--gpus", "16", "--slots", "250", "--rounds", "1")
    assert numbers["unequal"] == []
    assert len(numbers["milliseconds"]) == 17
    assert all(set(times) == {"watchkeeper", "prometheus"} for times in numbers["milliseconds"].values())
    assert 0 < numbers["slowest_ratio"] <= numbers["ratio"]


@pytest.mark.servers
@pytest.mark.slow
def test_the_range_benchmark_compares_with_both_servers() -> None:
    servers.require("prometheus")
    servers.require("victoria-metrics")
    numbers = bench("range", "--gpus", "344", "--slots", "40", "--rounds", "1")
    assert numbers["unequal"] == []
    assert len(numbers["milliseconds"]) == 5
    assert min(numbers["ratio"], numbers["victoria_ratio"]) > 0


@pytest.mark.servers
@pytest.mark.slow
def test_the_ingest_benchmark_counts_the_samples_of_every_scraper() -> None:
    servers.require("prometheus")
    servers.require("victoria-metrics")
    numbers = bench("ingest", "--gpus", "16", "--seconds", "4", "--slots", "3", "--warm", "5")
    assert numbers["samples_per_second"] > 0
    assert {name for name in numbers if name.endswith("_cpu_second")} == {
        f"{name}_samples_per_cpu_second" for name in ("watchkeeper", "prometheus", "victoria-metrics")
    }
    assert min(numbers["ratio"], numbers["victoria_ratio"]) > 0
    assert set(numbers["failed_scrapes"]) == {"watchkeeper", "prometheus", "victoria-metrics"}


def answer(*rows: tuple[dict[str, str], str]) -> bytes:
    result = [{"metric": labels, "value": [1.5, value]} for labels, value in rows]
    return json.dumps({"data": {"result": result}}).encode()


def test_results_are_equal_in_any_order_and_within_rounding() -> None:
    ours = answer(({"a": "1"}, "0.3"), ({"a": "2"}, "NaN"))
    assert _peers.are_equal(ours, answer(({"a": "2"}, "NaN"), ({"a": "1"}, "0.30000000000000004")))


@pytest.mark.parametrize("other", [answer(({"a": "1"}, "0.31")), answer(({"a": "2"}, "0.3")), answer()])
def test_another_value_another_series_and_no_series_are_not_equal(other: bytes) -> None:
    assert not _peers.are_equal(answer(({"a": "1"}, "0.3")), other)


def test_a_vectorised_write_request_equals_that_of_remote_write() -> None:
    labels = [Labels({"__name__": "up", "node": f"n{number}"}) for number in range(3)]
    times, values = np.arange(120) * 15_000 + 1_760_000_000_000, np.arange(360.0).reshape(3, 120)
    body = _peers.request([_peers.series_head(series) for series in labels], times, values)
    rows = zip(labels, values.tolist(), strict=True)
    assert body == remote_write.encode([(series, times.tolist(), row) for series, row in rows])
