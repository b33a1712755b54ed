"""Prometheus' HTTP API over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.web.canned_engine import UNREADABLE
from tests.web.running import Reply, Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.model.alerts import Alert
from watchkeeper.model.labels import Labels
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import jobs, scrape
from watchkeeper.web.prometheus import prometheus_status


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        yield running


def get(site: Site, path: str, **form: str) -> Reply:
    return site.ask(f"/api/v1/{path}?{urlencode(form)}")


def test_an_instant_query_answers_a_vector_of_texts(site: Site) -> None:
    reply = get(site, "query", query="DCGM_FI_DEV_GPU_TEMP", time="1435781451.781").json
    assert reply["status"] == "success"
    assert reply["data"]["resultType"] == "vector"
    first = reply["data"]["result"][0]
    assert first["metric"]["UUID"] == "GPU-r01-01-0"
    assert first["value"][0] == 1435781451.781
    assert float(first["value"][1]) > 0


def test_a_posted_form_is_the_same_as_a_query_string(site: Site) -> None:
    body = urlencode({"query": "DCGM_FI_DEV_GPU_TEMP", "time": "100"})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    posted = site.ask("/api/v1/query", method="POST", body=body, headers=headers)
    assert posted.json == get(site, "query", query="DCGM_FI_DEV_GPU_TEMP", time="100").json


def test_a_range_query_answers_a_matrix(site: Site) -> None:
    reply = get(site, "query_range", query="avg(DCGM_FI_DEV_GPU_TEMP)", start="0", end="60", step="15s").json
    assert [at for at, _ in reply["data"]["result"][0]["values"]] == [0, 15, 30, 45, 60]


@pytest.mark.parametrize(
    ("path", "form", "status", "kind"),
    [
        ("query", {"query": "sum("}, 400, "bad_data"),
        ("query", {}, 400, "bad_data"),
        ("query", {"query": "up", "time": "soon"}, 400, "bad_data"),
        ("query", {"query": "sum(up)) "}, 400, "bad_data"),
        ("query_range", {"query": "up"}, 400, "bad_data"),
        ("query_range", {"query": "up[5m]", "start": "0", "end": "60", "step": "15"}, 400, "bad_data"),
        ("query_range", {"query": "'up'", "start": "0", "end": "60", "step": "15"}, 400, "bad_data"),
        ("series", {}, 400, "bad_data"),
        ("series", {"match[]": "sum(up)"}, 400, "bad_data"),
        ("series", {"match[]": "up offset 5m"}, 400, "bad_data"),
        ("nothing", {}, 404, "not_found"),
    ],
)
def test_a_wrong_request_gets_prometheus_error_shape(
    site: Site, path: str, form: dict[str, str], status: int, kind: str
) -> None:
    reply = get(site, path, **form)
    assert (reply.status, reply.json["status"], reply.json["errorType"]) == (status, "error", kind)
    assert reply.json["error"]


def test_a_query_that_fails_while_it_runs_is_an_execution_error() -> None:
    hub = SmallHub()
    hub.queries.failing = True
    with serving(hub) as site:
        reply = get(site, "query", query="up")
    assert (reply.status, reply.json["errorType"]) == (422, "execution")
    assert UNREADABLE in reply.json["error"]


def test_labels_values_and_series_come_from_the_same_series(site: Site) -> None:
    assert get(site, "labels").json["data"] == ["Hostname", "UUID", "__name__", "gpu", "namespace", "pod"]
    assert get(site, "label/gpu/values").json["data"] == ["0", "1", "2", "3"]
    assert len(get(site, "series", **{"match[]": "DCGM_FI_DEV_GPU_TEMP"}).json["data"]) == 4


def test_a_limit_cuts_with_a_warning(site: Site) -> None:
    reply = get(site, "label/gpu/values", limit="2").json
    assert reply["data"] == ["0", "1"]
    assert reply["warnings"] == ["results truncated due to limit"]


def test_metadata_build_and_alerts_have_prometheus_fields(site: Site) -> None:
    assert get(site, "metadata").json["data"]["DCGM_FI_DEV_GPU_TEMP"][0]["type"] == "gauge"
    assert get(site, "status/buildinfo").json["data"]["version"] == "0.0.test"
    alert = get(site, "alerts").json["data"]["alerts"][0]
    assert (alert["labels"]["alertname"], alert["state"], alert["value"]) == ("GpuHot", "firing", "91.5")


def test_an_expression_is_formatted(site: Site) -> None:
    assert get(site, "format_query", query="sum  by(a)(rate(up[5m]))").json["data"] == "sum by (a) (rate(up[5m]))"


def test_a_target_that_was_never_scraped_is_unknown_since_never() -> None:
    target = jobs.Target("127.0.0.1:1", "http://127.0.0.1:1/metrics", Labels({"job": "gpu"}), "main")
    shown = prometheus_status.write_target(scrape.TargetState(target))
    assert (shown["health"], shown["lastScrape"], shown["scrapePool"]) == ("unknown", "0001-01-01T00:00:00Z", "gpu")


def test_a_rule_is_as_bad_as_its_worst_alert() -> None:
    text = "groups: [{name: g, rules: [{alert: Hot, expr: up == 0, for: 5m}, {record: 'a:b', expr: up}]}]"
    group = rulefile.read_rules({"r.yaml": text}).groups[0]
    alert: Alert = SmallHub().rules.active[0]
    state = {evaluate.rule_key(group, group.rules[0]): evaluate.RuleState(alerts={alert.labels: alert})}
    shown = prometheus_status.write_group(group, state, default_seconds=15)
    assert [rule["type"] for rule in shown["rules"]] == ["alerting", "recording"]
    assert (shown["rules"][0]["state"], shown["rules"][0]["duration"], shown["interval"]) == ("firing", 300.0, 15)
