"""The calls that Grafana, promtool and remote writers make, against the application over a store of its own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests import servers
from tests.support.paths import ROOT
from tests.support.web.stored_hub import FORM, StoredHub
from tests.web.running import Reply, Site, serving
from watchkeeper.errors import StoreError
from watchkeeper.model import histograms
from watchkeeper.model.labels import Labels
from watchkeeper.query import embedded
from watchkeeper.query.remote import remote_write
from watchkeeper.scrape import page_formats
from watchkeeper.store.head import head
from watchkeeper.web.prometheus.prometheus_params import read_label_name

GRAFANA = ROOT / "docs/howto/grafana.md"
PROTOBUF = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(StoredHub()) as running:
        yield running


def get(site: Site, path: str, *pairs: tuple[str, str], **form: str) -> Any:
    reply = site.ask(f"/api/v1/{path}?{urlencode([*pairs, *form.items()])}")
    assert reply.status == 200, reply.body
    return reply.json["data"]


def test_warnings_and_infos_are_beside_the_result(site: Site) -> None:
    reply = site.ask(f"/api/v1/query?{urlencode({'query': 'quantile(2, rate(temp[5m]))'})}").json
    assert reply["warnings"] == ["PromQL warning: quantile value should be between 0 and 1, got 2 (1:10)"]
    [info] = reply["infos"]
    assert (info[:43], info[-13:]) == ("PromQL info: metric might not be a counter,", '"temp" (1:18)')
    assert not {"warnings", "infos"} & site.ask("/api/v1/query?query=temp").json.keys()


def grafana_calls() -> list[tuple[str, str, tuple[str, ...]]]:
    """Method, path and parameters of each call in the table of docs/howto/grafana.md."""
    rows = re.findall(r"^\|.*?\| `(GET|POST) (/api/v1/\S+)`(.*)\|$", GRAFANA.read_text(), re.MULTILINE)
    return [(method, path, tuple(re.findall(r"`([a-z_\[\]]+)`", rest))) for method, path, rest in rows]


VALUES = {
    "query": "temp",
    "time": "4",
    "start": "0",
    "end": "60",
    "step": "15",
    "timeout": "30s",
    "match[]": "temp",
    "limit": "40000",
    "metric": "temp",
    "type": "alert",
    "rule_name[]": "Hot",
    "rule_group[]": "heat",
    "file[]": "heat.yaml",
    "group_limit": "40",
}


@pytest.mark.parametrize(("method", "path", "parameters"), grafana_calls())
def test_every_call_that_grafana_makes_is_answered(
    site: Site, method: str, path: str, parameters: tuple[str, ...]
) -> None:
    path, form = path.replace("<label>", "node"), urlencode([(name, VALUES[name]) for name in parameters])
    reply = site.ask(f"{path}?{form}")
    assert (reply.status, reply.json["status"]) == (200, "success")
    if method == "POST":
        assert site.ask(path, method="POST", body=form, headers=FORM).json == reply.json


def test_the_calls_of_grafana_are_written_down() -> None:
    assert len(grafana_calls()) == 13


def test_a_label_name_beyond_ascii_comes_escaped(site: Site) -> None:
    assert get(site, "label/U__node/values") == get(site, "label/node/values") == ["n1", "n2"]
    assert read_label_name("U__service_2e_name__x") == "service.name_x"
    assert read_label_name("U___ffffff_") == "U___ffffff_"


def test_save_and_test_asks_one_plus_one_by_post(site: Site) -> None:
    reply = site.ask("/api/v1/query", method="POST", body="query=1%2B1&time=4", headers=FORM).json
    assert reply["data"] == {"resultType": "scalar", "result": [4, "2"]}


def test_the_version_is_asked_for_to_choose_features(site: Site) -> None:
    assert get(site, "status/buildinfo")["version"] == "0.0.test"


def test_a_panel_asks_for_a_range_by_post(site: Site) -> None:
    now = site.hub.now_ms // 1000
    body = urlencode({"query": 'temp{node="n1"}', "start": str(now - 60), "end": str(now), "step": "15"})
    reply = site.ask("/api/v1/query_range", method="POST", body=body, headers=FORM).json
    assert [value for _, value in reply["data"]["result"][0]["values"]] == ["54", "53", "52", "51", "51"]


def test_a_variable_asks_for_label_names_and_values_with_times_and_selectors(site: Site) -> None:
    now = site.hub.now_ms // 1000
    times = {"start": str(now - 3600), "end": str(now)}
    assert get(site, "labels", **times) == ["__name__", "node"]
    assert get(site, "label/__name__/values", **times, limit="40000") == ["temp", "watts"]
    assert get(site, "label/node/values", ("match[]", "watts"), **times) == ["n1"]
    assert get(site, "label/node/values", **{**times, "start": str(now - 30)}) == ["n1"]
    assert get(site, "label/no-such/values") == []
    always = {"start": "-292273086-05-16T16:47:06Z", "end": "292277025-08-18T07:12:54.999999999Z"}
    assert get(site, "label/node/values", **always) == ["n1", "n2"]


def test_the_metric_browser_asks_for_series_and_metadata(site: Site) -> None:
    assert get(site, "series", ("match[]", "watts"), ("match[]", 'temp{node="n1"}')) == [
        {"__name__": "temp", "node": "n1"},
        {"__name__": "watts", "node": "n1"},
    ]
    described = [{"type": "gauge", "help": "Temperature", "unit": "celsius"}]
    assert get(site, "metadata", limit="10") == {"temp": described}
    assert get(site, "metadata", metric="none") == get(site, "metadata", limit="0") == {}
    assert get(site, "metadata", limit="-1") == {"temp": described}


def test_exemplars_are_asked_for_by_any_expression_over_their_series(site: Site) -> None:
    body = urlencode({"query": 'rate(work_total{node="n1"}[5m]) / on (node) temp', "start": "1", "end": "10"})
    reply = site.ask("/api/v1/query_exemplars", method="POST", body=body, headers=FORM).json
    assert reply["data"] == [
        {
            "seriesLabels": {"__name__": "work_total", "node": "n1"},
            "exemplars": [{"labels": {"trace_id": "ab"}, "value": "2.5", "timestamp": 4.5}],
        }
    ]
    assert get(site, "query_exemplars", query="temp", start="0", end="10") == []
    assert get(site, "query_exemplars", query="work_total", start="5", end="10") == []


def test_rules_are_filtered_by_type_name_file_group_and_labels(site: Site) -> None:
    def names(*pairs: tuple[str, str]) -> list[str]:
        return [rule["name"] for group in get(site, "rules", *pairs)["groups"] for rule in group["rules"]]

    assert names() == ["Hot", "n:temp:max", "Thirsty"]
    assert names(("type", "alert")) == ["Hot", "Thirsty"]
    assert names(("type", "record")) == ["n:temp:max"]
    assert names(("rule_name[]", "Hot"), ("rule_name[]", "Thirsty")) == ["Hot", "Thirsty"]
    assert names(("rule_group[]", "power")) == ["Thirsty"]
    assert names(("file[]", "other.yaml")) == []
    assert names(("match[]", '{severity=~"crit.*"}')) == ["Hot"]
    [group] = get(site, "rules", exclude_alerts="true", **{"rule_name[]": "Hot"})["groups"]
    assert group["rules"][0]["alerts"] is None
    first = get(site, "rules", group_limit="1")
    assert [group["name"] for group in first["groups"]] == ["heat"]
    assert names(("group_limit", "1"), ("group_next_token", first["groupNextToken"])) == ["Thirsty"]


def test_targets_are_active_or_dropped_and_have_metadata(site: Site) -> None:
    targets = get(site, "targets")
    assert [target["scrapePool"] for target in targets["activeTargets"]] == ["dcgm"]
    assert targets["droppedTargets"][0]["discoveredLabels"] == {"__address__": "n9:9400"}
    assert get(site, "targets", state="dropped")["activeTargets"] == []
    assert get(site, "targets", scrapePool="none")["droppedTargetCounts"] == {}
    (metadata,) = get(site, "targets/metadata", match_target='{job="dcgm"}', metric="temp")
    assert (metadata["target"], metadata["type"], metadata["unit"]) == ({"job": "dcgm"}, "gauge", "celsius")
    assert get(site, "targets/metadata", match_target='{job="x"}') == []
    assert get(site, "scrape_pools") == {"scrapePools": ["dcgm"]}


def test_the_status_pages_show_the_active_settings(site: Site) -> None:
    assert "scrape_interval: 15s" in get(site, "status/config")["yaml"]
    assert get(site, "status/flags")["query.lookback-delta"] == "5m"
    assert get(site, "status/runtimeinfo")["storageRetention"] == site.hub.settings.query.retention
    assert get(site, "status/walreplay") == {"min": 0, "max": 0, "current": 0}
    assert get(site, "notifications") == []
    status = get(site, "status/tsdb", limit="1")
    assert status["headStats"]["numSeries"] == 3
    assert status["seriesCountByMetricName"] == [{"name": "temp", "value": 2}]


def test_a_query_honours_lookback_limit_and_stats(site: Site) -> None:
    assert len(get(site, "query", query="watts")["result"]) == 1
    assert get(site, "query", query="watts", lookback_delta="1m")["result"] == []
    reply = site.ask("/api/v1/query?query=count+by+(node)(last_over_time(temp%5B5m%5D))&limit=1&stats=all").json
    assert (len(reply["data"]["result"]), reply["warnings"]) == (1, ["results truncated due to limit"])
    assert reply["data"]["stats"]["timings"]["execTotalTime"] > 0


@pytest.mark.parametrize("form", ["timeout=x", "limit=-1", "timeout=0"])
def test_a_parameter_that_cannot_be_honoured_is_refused_with_words(site: Site, form: str) -> None:
    reply = site.ask(f"/api/v1/query?query=up&{form}")
    assert (reply.status, reply.json["errorType"]) == (400, "bad_data")
    assert form.partition("=")[0] in reply.json["error"]


def test_a_query_that_takes_longer_than_the_caller_waits_is_a_timeout(site: Site) -> None:
    a_minute_of_work = "double_exponential_smoothing(vector(time())[30d:1s], 0.5, 0.5)"
    reply = site.ask("/api/v1/query?" + urlencode({"query": a_minute_of_work, "timeout": "10ms"}))
    assert (reply.status, reply.json["errorType"]) == (503, "timeout")
    assert "after 0.01 s" in reply.json["error"]


def test_a_tree_is_written_as_prometheus_writes_it(site: Site) -> None:
    tree = get(site, "parse_query", query='sum by (a) (rate(x{b=~"c"}[5m] offset 1m)) > bool 2')
    assert (tree["type"], tree["op"], tree["bool"], tree["rhs"]) == (
        *("binaryExpr", ">", True),
        {"type": "numberLiteral", "val": "2"},
    )
    call = tree["lhs"]["expr"]
    assert call["func"] == {"name": "rate", "argTypes": ["matrix"], "variadic": 0, "returnType": "vector"}
    (selector,) = call["args"]
    assert (selector["type"], selector["range"], selector["offset"]) == ("matrixSelector", 300_000, 60_000)
    assert selector["matchers"][0] == {"name": "b", "value": "c", "type": "=~"}


def test_federation_hands_on_living_series_with_their_own_time(site: Site) -> None:
    reply = site.ask("/federate?" + urlencode([("match[]", "temp"), ("match[]", '{__name__="watts"}')]))
    now = site.hub.now_ms
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert reply.body.decode().splitlines() == [
        *("# TYPE temp untyped", f'temp{{node="n1",instance=""}} 51 {now - 15_000}'),
        *("# TYPE watts untyped", f'watts{{node="n1",instance=""}} 600 {now - 200_000}'),
    ]
    assert site.ask("/federate").status == 400


def test_federation_says_how_many_native_histograms_it_leaves_out(site: Site) -> None:
    series = Labels({"__name__": "took", "node": "n1"})
    sample = histograms.HistogramSample(series, site.hub.now_ms, histograms.Histogram(count=1.0))  # type: ignore[attr-defined]
    site.hub.engine.appender.append([sample])
    first, *others = site.ask("/federate?match[]=took&match[]=temp").body.decode().splitlines()
    assert first == "# 1 native histogram series omitted: text cannot hold them. Use protobuf or remote write."
    assert len(others) == 2


def test_a_scraper_that_asks_for_protobuf_gets_them_from_federation(site: Site) -> None:
    series = Labels({"__name__": "waited", "node": "n1"})
    observed = histograms.Histogram(count=3.0, sum=4.5, positive=((1, 3.0),))
    site.hub.engine.appender.append([histograms.HistogramSample(series, site.hub.now_ms, observed)])
    accept = {"Accept": page_formats.accept_header(wants_native=True)}
    reply = site.ask("/federate?match[]=waited&match[]=temp", headers=accept)
    pages = page_formats.PageParser(max_series=10)
    page = pages.parse(reply.body, reply.headers["content-type"])
    assert [(pages.labels[at], histogram, at_ms) for at, histogram, at_ms in page.histograms] == [
        (series, observed, site.hub.now_ms)  # type: ignore[attr-defined]
    ]
    assert list(page.values) == [51.0]


def write(site: Site, at_ms: int, value: float, *, headers: dict[str, str] = PROTOBUF) -> Reply:
    body = remote_write.encode([(Labels({"__name__": "written", "from": "afar"}), [at_ms], [value])])
    return site.ask("/api/v1/write", method="POST", body=body, headers=headers)


def test_remote_write_is_stored_and_can_be_queried() -> None:
    with serving(StoredHub()) as site:
        assert write(site, site.hub.now_ms, 7.0).status == 204
        series = get(site, "query", query="written")["result"]
    assert [(row["metric"]["from"], row["value"][1]) for row in series] == [("afar", "7")]


def test_a_native_histogram_is_stored_and_returned_as_in_prometheus() -> None:
    written = histograms.Histogram(0, 4.0, 5.0, 0.1, 1.0, positive=((0, 1.0), (1, 2.0)))
    with serving(StoredHub()) as site:
        at_ms = site.hub.now_ms
        sample = histograms.HistogramSample(Labels({"__name__": "latency", "job": "a"}), at_ms, written)
        body = remote_write.encode([], [sample])
        assert site.ask("/api/v1/write", method="POST", body=body, headers=PROTOBUF).status == 204
        [instant] = get(site, "query", query="latency")["result"]
        seconds = str(at_ms / 1000)
        [ranged] = get(site, "query_range", query="latency * 2", start=seconds, end=seconds, step="15")["result"]
        [first] = get(site, "query", query="{__name__=~'temp|latency'}", limit="1")["result"]
    buckets = [[3, "-0.1", "0.1", "1"], [0, "0.5", "1", "1"], [0, "1", "2", "2"]]
    assert instant["histogram"][1] == {"count": "4", "sum": "5", "buckets": buckets}
    assert instant["metric"] == {"__name__": "latency", "job": "a"}
    [(at, doubled)] = ranged["histograms"]
    assert (at * 1000, doubled["count"], "values" in ranged) == (at_ms, "8", False)
    assert first["metric"]["__name__"] in ("temp", "latency")


class FullDisk(head.Head):
    """A store whose disk takes nothing more."""

    def sync(self) -> int:
        raise StoreError("samples cannot be written: No space left on device")


def test_a_write_that_the_disk_refuses_is_to_be_sent_again() -> None:
    hub = StoredHub()
    hub.engine = embedded.EmbeddedEngine(FullDisk())
    with serving(hub) as running:
        body = remote_write.encode([(Labels({"__name__": "x"}), [hub.now_ms], [1.0])])
        reply = running.ask("/api/v1/write", method="POST", body=body, headers=PROTOBUF)
    assert (reply.status, reply.body) == (503, b"samples cannot be written: No space left on device")


def test_a_write_of_the_year_2200_is_left_out_and_said(site: Site) -> None:
    reply = write(site, 7_258_118_400_000, 1.0)
    assert (reply.status, reply.body.decode()) == (400, "0 samples were stored, others were dropped: 1 future")
    assert len(get(site, "query", query="temp")["result"]) == 1
    assert b'left_out_total{reason="future"} 1' in site.ask("/metrics").body


def test_a_label_of_a_megabyte_is_left_out_with_the_limits(site: Site) -> None:
    now = site.hub.now_ms
    rows = [
        (Labels({"__name__": name, "x": text}), [now], [1.0]) for name, text in (("big", "y" * 10**6), ("fine", ""))
    ]
    reply = site.ask("/api/v1/write", method="POST", body=remote_write.encode(rows), headers=PROTOBUF)
    assert reply.status == 400
    assert reply.body.decode().startswith(
        "1 samples were stored, others were dropped: 1 limit (more than 64 labels, more than"
    )
    assert len(get(site, "query", query="fine")["result"]) == 1


def test_an_expression_of_a_megabyte_is_refused_with_both_numbers(site: Site) -> None:
    body = urlencode({"query": "temp + " * 150_000 + "temp"})
    reply = site.ask("/api/v1/query", method="POST", body=body, headers=FORM)
    assert (reply.status, reply.json["errorType"]) == (413, "bad_data")
    assert "bytes or more, the limit is 262,144. Split the expression into recording rules" in reply.json["error"]
    reply = site.ask("/api/v1/query", method="POST", body=urlencode({"query": f'x{{a="{"y" * 10**5}"}}'}), headers=FORM)
    assert (reply.status, "100,007 bytes, the limit is 65,536" in reply.json["error"]) == (400, True)


def test_a_write_that_is_not_remote_write_is_refused(site: Site) -> None:
    json_body = {"Content-Type": "application/json"}
    assert write(site, 1, 1.0, headers=json_body).status == 415
    broken = site.ask("/api/v1/write", method="POST", body=b"\xff\xff", headers=PROTOBUF)
    assert (broken.status, b"snappy" in broken.body) == (400, True)
    foreign = {**PROTOBUF, "Origin": "http://elsewhere.example"}
    assert write(site, 1, 1.0, headers=foreign).status == 403


@pytest.mark.servers
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["instant", "URL", "max(temp)"], "{} => 51 @["),
        (["range", "--step=15s", "URL", "temp"], '{__name__="temp", node="n1"} =>'),
        (["series", "--match=watts", "URL"], '{__name__="watts", node="n1"}'),
        (["labels", "URL", "node"], "n1\nn2"),
    ],
)
def test_promtool_gets_its_answers(site: Site, command: list[str], expected: str) -> None:
    tool = servers.require("promtool")
    line = [str(tool), "query", *(site.url if part == "URL" else part for part in command)]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert expected in ran.stdout.replace('temp{node="n1"}', '{__name__="temp", node="n1"}').replace(
        'watts{node="n1"}', '{__name__="watts", node="n1"}'
    )


@pytest.mark.servers
def test_promtool_reads_json_answers_as_well(site: Site) -> None:
    line = [str(servers.require("promtool")), "query", "instant", "-o", "json", site.url, "watts"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(ran.stdout)[0]["metric"] == {"__name__": "watts", "node": "n1"}
