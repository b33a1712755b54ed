"""The embedded engine gives the answers of a real Prometheus on the same samples.

Debian's 2.42 closes windows on the left and lets a rate reach to zero by another rule than Prometheus 3, so no
sample lies on the edge of a window here and counters start high.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator

import pytest

from tests import servers
from tests.query import generated
from tests.query.prometheus_server import PROMTOOL, START, asked, difference, needs_prometheus, openmetrics, running
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.store.head.head import Head

pytestmark = needs_prometheus
EXPRESSIONS = (
    "temp",
    "temp > 70",
    "temp > bool 70",
    "rate(energy[5m])",
    "increase(energy[90s])",
    "irate(energy[3m])",
    "delta(temp[4m])",
    "idelta(temp[4m])",
    "deriv(temp[10m])",
    "predict_linear(temp[10m], 3600)",
    "changes(temp[10m])",
    "resets(energy[10m])",
    "avg_over_time(temp[7m])",
    "stddev_over_time(temp[7m])",
    "quantile_over_time(0.9, temp[7m])",
    "min_over_time(temp[2m]) < max_over_time(temp[2m])",
    "last_over_time(temp[1m])",
    "count_over_time(temp[1m])",
    "max_over_time(rate(energy[2m])[10m:1m])",
    "sum by (node) (temp)",
    "avg without (gpu) (temp)",
    "stdvar by (node) (temp)",
    "quantile(0.3, temp)",
    "topk(3, temp)",
    "bottomk by (node) (1, temp)",
    "count_values('t', round(temp, 20))",
    "temp * on (node) group_left (rack) place",
    "temp / ignoring (gpu) group_left () sum by (node) (temp)",
    "temp and on (node) (place == 1)",
    "temp unless temp > 60",
    "temp > 90 or place",
    "temp offset 3m - temp",
    "temp @ 1700001000",
    "absent(temp{gpu='1', node='n3'})",
    "absent_over_time(temp{node='n9'}[5m])",
    "timestamp(temp)",
    "label_replace(temp, 'short', '$1', 'node', 'n(.*)')",
    "label_join(place, 'both', '/', 'rack', 'node')",
    "histogram_quantile(0.9, sum by (le) (rate(wait_bucket[5m])))",
    "histogram_quantile(0.5, wait_bucket)",
    "clamp(temp, 50, 60) ^ 2 % 7",
    "day_of_year(timestamp(temp))",
    "scalar(sum(temp)) + time()",
    "sgn(temp - 60) * atan(temp)",
    "-temp + vector(1) * on () group_right () temp",
)
PARTS = 20
GENERATED = generated.expressions(400)


def fleet() -> dict[Labels, list[tuple[int, float]]]:
    """Half an hour and more of scrapes with gaps, resets and a series that ends; times in odd milliseconds."""
    chance = random.Random(7)
    out: dict[Labels, list[tuple[int, float]]] = {}
    for node in ("n1", "n2", "n3"):
        first_ms = START * 1000 + chance.randrange(1, 15_000)
        times = [first_ms + at * 15_000 + chance.choice((317, 431)) for at in range(200) if chance.random() > 0.1]
        times = [at for at in times if at % 1000]
        out[Labels({"__name__": "place", "node": node, "rack": f"r{node[1:]}"})] = [(at, 1.0) for at in times]
        for gpu in ("0", "1"):
            energy, joules = [], 1e9
            for at in times:
                joules = 1e8 if chance.random() < 0.03 else joules + chance.randrange(9000, 12_000)
                energy.append((at, joules))
            labels = {"node": node, "gpu": gpu}
            out[Labels({"__name__": "energy", **labels})] = energy
            kept = times[:120] if (node, gpu) == ("n3", "1") else times
            out[Labels({"__name__": "temp", **labels})] = [(at, round(chance.uniform(30, 95), 4)) for at in kept]
        for bound, share in (("0.1", 1), ("1", 3), ("+Inf", 4)):
            counts = [(at, float(10_000 + place * share)) for place, at in enumerate(times)]
            out[Labels({"__name__": "wait_bucket", "node": node, "le": bound})] = counts
    return out


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that holds the fleet."""
    home = tmp_path_factory.mktemp("prometheus")
    (home / "prometheus.yml").write_text("{}\n")
    (home / "fleet.om").write_text(openmetrics(fleet()))
    load = [str(PROMTOOL), "tsdb", "create-blocks-from", "openmetrics", str(home / "fleet.om"), str(home / "tsdb")]
    subprocess.run(load, check=True, capture_output=True)
    address = f"127.0.0.1:{servers.free_port()}"
    with running(home, address):
        yield f"http://{address}"


@pytest.fixture(scope="module")
def embedded() -> EmbeddedEngine:
    engine = EmbeddedEngine(Head(retention_ms=10**10))
    for labels, row in fleet().items():
        engine.appender.append(Sample(labels, at, value) for at, value in row)
    return engine


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_the_answer_is_that_of_prometheus(prometheus: str, embedded: EmbeddedEngine, expr: str) -> None:
    theirs = asked(prometheus, expr)
    assert theirs
    assert difference(embedded, expr, theirs) is None


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_expressions_have_the_answers_of_prometheus(
    prometheus: str, embedded: EmbeddedEngine, part: int
) -> None:
    chosen = GENERATED[part::PARTS]
    answers = [asked(prometheus, expr) for expr in chosen]
    found = [difference(embedded, expr, theirs) for expr, theirs in zip(chosen, answers, strict=True)]
    assert [line for line in found if line] == []
    assert sum(bool(theirs) for theirs in answers) > len(chosen) / 2


def test_hundreds_of_expressions_are_generated() -> None:
    assert len({*GENERATED}) == 400
