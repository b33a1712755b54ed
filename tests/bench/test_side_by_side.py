"""The benches that run beside other servers, in their smallest size: what they print, and that answers are equal."""

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
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.servers
@pytest.mark.slow
def test_the_rules_bench_finds_the_answers_of_prometheus_in_all_expressions() -> None:
    servers.require("prometheus")
    found = bench("rules", "--gpus", "16", "--slots", "250", "--rounds", "1")
    assert found["unequal"] == []
    assert len(found["milliseconds"]) == 17
    assert all(set(times) == {"watchkeeper", "prometheus"} for times in found["milliseconds"].values())
    assert 0 < found["slowest_ratio"] <= found["ratio"]


@pytest.mark.servers
@pytest.mark.slow
def test_the_range_bench_compares_with_both_servers() -> None:
    servers.require("prometheus")
    servers.require("victoria-metrics")
    found = bench("range", "--gpus", "344", "--slots", "40", "--rounds", "1")
    assert found["unequal"] == []
    assert len(found["milliseconds"]) == 5
    assert min(found["ratio"], found["victoria_ratio"]) > 0


@pytest.mark.servers
@pytest.mark.slow
def test_the_ingest_bench_counts_what_every_scraper_read() -> None:
    servers.require("prometheus")
    servers.require("victoria-metrics")
    found = bench("ingest", "--gpus", "16", "--seconds", "4", "--slots", "3", "--warm", "5")
    assert found["samples_per_second"] > 0
    assert {name for name in found if name.endswith("_cpu_second")} == {
        f"{name}_samples_per_cpu_second" for name in ("watchkeeper", "prometheus", "victoria-metrics")
    }
    assert min(found["ratio"], found["victoria_ratio"]) > 0
    assert set(found["failed_scrapes"]) == {"watchkeeper", "prometheus", "victoria-metrics"}


def answer(*rows: tuple[dict[str, str], str]) -> bytes:
    result = [{"metric": labels, "value": [1.5, value]} for labels, value in rows]
    return json.dumps({"data": {"result": result}}).encode()


def test_answers_are_the_same_in_any_order_and_but_for_the_last_digits() -> None:
    ours = answer(({"a": "1"}, "0.3"), ({"a": "2"}, "NaN"))
    assert _peers.same(ours, answer(({"a": "2"}, "NaN"), ({"a": "1"}, "0.30000000000000004")))


@pytest.mark.parametrize("other", [answer(({"a": "1"}, "0.31")), answer(({"a": "2"}, "0.3")), answer()])
def test_another_value_another_series_and_none_are_not_the_same(other: bytes) -> None:
    assert not _peers.same(answer(({"a": "1"}, "0.3")), other)


def test_a_fleet_is_written_to_servers_as_remote_write_has_it() -> None:
    labels = [Labels({"__name__": "up", "node": f"n{number}"}) for number in range(3)]
    times, values = np.arange(120) * 15_000 + 1_760_000_000_000, np.arange(360.0).reshape(3, 120)
    body = _peers.request([_peers.series_head(one) for one in labels], times, values)
    rows = zip(labels, values.tolist(), strict=True)
    assert body == remote_write.encode([(one, times.tolist(), row) for one, row in rows])
