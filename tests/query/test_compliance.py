"""The queries of prometheus/compliance have the answers of Debian's Prometheus, where a copy of them lies beside us.

The file names queries and no answers; its placeholders are filled as the project's own tester fills them. Samples lie
off the edges of windows and counters start high, for the reasons in `test_embedded_against_prometheus`.
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests import servers
from tests.query import prometheus_server as against
from tests.support.paths import SHARED
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.store.head.head import Head

CORPUS = SHARED / "corpus/promqltest/compliance-promql-test-queries.yml"
pytestmark = [
    *against.needs_prometheus,
    pytest.mark.skipif(not CORPUS.exists(), reason="no copy of the queries beside us"),
]
ARITHMETIC, COMPARISONS = ("+", "-", "*", "/", "%", "^"), ("==", "!=", "<", ">", "<=", ">=")
SIMPLE = ("sum", "avg", "max", "min", "count", "stddev", "stdvar")
FILLS = {
    "range": ("1s", "15s", "1m", "5m", "15m", "1h"),
    "offset": ("1m", "5m", "10m"),
    "simpleAggrOp": SIMPLE,
    "simpleTimeAggrOp": (*SIMPLE, "absent", "last", "present"),
    "topBottomOp": ("topk", "bottomk"),
    "quantile": ("-0.5", "0.1", "0.5", "0.75", "0.95", "0.90", "0.99", "1", "1.5"),
    "arithBinOp": ARITHMETIC,
    "compBinOp": COMPARISONS,
    "binOp": (*ARITHMETIC, *COMPARISONS),
    "simpleMathFunc": ("abs", "ceil", "floor", "exp", "sqrt", "ln", "log2", "log10", "sgn"),
    "extrapolatedRateFunc": ("delta", "rate", "increase"),
    "clampFunc": ("clamp_min", "clamp_max"),
    "instantRateFunc": ("idelta", "irate"),
    "dateFunc": ("day_of_month", "day_of_week", "days_in_month", "hour", "minute", "month", "year"),
    "smoothingFactor": ("0.1", "0.5", "0.8"),
    "trendFactor": ("0.1", "0.5", "0.8"),
}
# Prometheus 3 has another name for holt_winters, takes any text as a label name, and opens subqueries on the left too.
LEFT_OUT = re.compile(r"holt_winters|~invalid|\[2m:10s\]")


def queries() -> list[str]:
    if not CORPUS.exists():
        return []
    found: dict[str, None] = {}
    for case in yaml.safe_load(CORPUS.read_text())["test_cases"]:
        names = case.get("variant_args", [])
        for values in itertools.product(*(FILLS[name] for name in names)):
            query = case["query"]
            for name, value in zip(names, values, strict=True):
                query = query.replace("{{." + name + "}}", value)
            found[query] = None
    return [query for query in found if not LEFT_OUT.search(query)]


def demo() -> dict[Labels, list[tuple[int, float]]]:
    chance = random.Random(5)
    times = [against.START * 1000 + at * 15_000 + chance.choice((317, 431)) for at in range(200)]

    def gauge(low: float) -> list[tuple[int, float]]:
        return [(at, round(chance.uniform(low, 3 * low), 3)) for at in times]

    def counter(pace: float) -> list[tuple[int, float]]:
        return [(at, 1e7 + pace * place + chance.random()) for place, at in enumerate(times)]

    out: dict[Labels, list[tuple[int, float]]] = {}
    for port in ("10000", "10001", "10002"):
        own = {"instance": f"demo.promlabs.com:{port}", "job": "demo"}
        for kind in ("free", "used", "cached"):
            out[Labels({"__name__": "demo_memory_usage_bytes", "type": kind, **own})] = gauge(2e9)
        for mode in ("user", "system", "idle"):
            out[Labels({"__name__": "demo_cpu_usage_seconds_total", "mode": mode, **own})] = counter(3.0)
        for le, pace in (("0.1", 1.0), ("1", 9.0), ("+Inf", 12.0)):
            out[Labels({"__name__": "demo_api_request_duration_seconds_bucket", "le": le, **own})] = counter(pace)
        out[Labels({"__name__": "demo_num_cpus", **own})] = [(at, 4.0) for at in times]
        out[Labels({"__name__": "demo_disk_usage_bytes", **own})] = counter(5e6)
        out[Labels({"__name__": "demo_batch_last_success_timestamp_seconds", **own})] = [
            (at, float(at // 60_000 * 60)) for at in times
        ]
        out[Labels({"__name__": "demo_intermittent_metric", **own})] = [
            (at, 1.0) for place, at in enumerate(times) if place % 40 < 12
        ]
    return out


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("compliance")
    (home / "prometheus.yml").write_text("{}\n")
    (home / "demo.om").write_text(against.openmetrics(demo()))
    load = [str(against.PROMTOOL), "tsdb", "create-blocks-from", "openmetrics", home / "demo.om", home / "tsdb"]
    subprocess.run(load, check=True, capture_output=True)
    place = f"127.0.0.1:{servers.free_port()}"
    with against.running(home, place):
        yield f"http://{place}"


def test_the_queries_of_the_compliance_project_have_the_answers_of_prometheus(address: str) -> None:
    engine = EmbeddedEngine(Head(retention_ms=10**10))
    for labels, row in demo().items():
        engine.appender.append(Sample(labels, at, value) for at, value in row)
    asked = queries()
    found = [against.difference(engine, query, against.asked(address, query)) for query in asked]
    assert [line for line in found if line] == []
    assert len(asked) > 500
