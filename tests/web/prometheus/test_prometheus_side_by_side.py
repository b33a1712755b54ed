"""The same requests to Debian's Prometheus and to us: the same status, the same error type, the same keys."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests import servers
from tests.support.web.stored_hub import FORM, StoredHub
from tests.web.running import Site, ask_json, serving

pytestmark = pytest.mark.servers
RANGE = "start=1700000000&end=1700000030&step=5"
# What is asked, with what Prometheus 2.42 has of it.
QUERIES = [
    *("query?query=up", "query?query=1%2B1", "query?query=%22x%22", "query?query=up[10s]", "query", "query?query=up{"),
    *("query?query=1&time=x", "query?query=1&time=2023-11-14T22:13:20.123456789%2B02:00", "query?query=1&time=1e9"),
    *("query?query=1&time=-292273086-05-16T16:47:06Z", "query?query=up&timeout=1s", "query?query=up&timeout=x"),
    *("query?query=up&lookback_delta=1m", "query?query=foo(1)"),
    *("query?query=up{a=~%22((%22}", f"query_range?query=up&{RANGE}", f"query_range?query=up[1m]&{RANGE}"),
    *(f"query_range?query=%22x%22&{RANGE}", "query_range?query=1", "query_range?query=1&start=0&end=60&step=1m"),
    *("query_range?query=1&start=9&end=0&step=1", "query_range?query=1&start=0&end=9&step=0"),
    *("query_range?query=1&start=0&end=9&step=-1", "query_range?query=1&start=0&end=9&step=x"),
    *("query_range?query=1&start=0&end=11000&step=1", "query_range?query=1&start=0&end=11001&step=1"),
    *(f"query_exemplars?query=up&{RANGE}", f"query_exemplars?query=((&{RANGE}", "query_exemplars?query=up"),
    *(
        "series",
        "series?match[]=up&match[]=x",
        "series?match[]={}",
        "series?match[]=sum(up)",
        "series?match[]=up+offset+5m",
        "labels?match[]=up+@+5",
        "series?match[]={a=%22%22}",
    ),
    *("labels", "labels?match[]={", "labels?start=x", "label/job/values", "label/job/values?match[]=up&match[]=x"),
    *("metadata?metric=no", "metadata?limit=-1&metric=no", "metadata?limit=0", "metadata?limit=x"),
    *("targets?state=active", "targets?state=dropped", "targets/metadata?metric=no", "targets/metadata?match_target={"),
    *("targets/metadata?limit=x", "rules?type=Alert", "rules?type=x", "rules?type=record&rule_name[]=no", "alerts"),
    *("alertmanagers", "format_query?query=sum(up)by(a)", "format_query?query=((", "status/buildinfo", "status/config"),
    *("status/flags", "status/runtimeinfo", "status/tsdb", "status/walreplay", "nothing"),
    *("targets?state=ACTIVE", "query?query=1&lookback_delta=0"),
    *("query?query=1&time=1_000", "query?query=1&time=%D9%A1", "query?query=1&time=+5", "query?query=1&time=1e9999"),
    *("query?query=1&time=2023-11-14+22:13:20Z", "query?query=1&time=20231114T221320Z", "query?query=1&time=.5e1"),
    *("query?query=1&time=2023-W46-2T00:00:00Z", "query?query=1&time=2023-11-14T22:13:20", "labels?start=2023-11-14"),
    *("query?query=1&time=2023-02-30T00:00:00Z", "query?query=1&timeout=1_0", "query?query=1&timeout=%D9%A1"),
]
# What 2.42 has not yet, or does not look at, and what 3.5 answers.
NEWER = [
    *(("status/tsdb?limit=0", 400), ("status/tsdb?limit=1", 200), ("metadata?limit_per_metric=x", 400)),
    *(("metadata?limit_per_metric=-1", 200), ("metadata?limit_per_metric=1", 200), ("rules?group_limit=0", 400)),
    *(("rules?match[]=", 400), ("targets/metadata?match_target=", 200)),
]
# Where clients look into `data` by name; ours may have more keys than Prometheus, never fewer.
WITH_KEYS = ("query", "targets?", "rules", "alerts", "status/buildinfo", "status/config", "status/walreplay")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    line = [servers.require("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/x"]
    with servers.running(
        [*line, f"--web.listen-address=127.0.0.1:{port}"], ready_url=f"{url}/-/ready", log=folder / "log"
    ):
        yield url


@pytest.fixture(scope="module")
def ours() -> Iterator[Site]:
    with serving(StoredHub()) as site:
        yield site


def ask(url: str) -> tuple[int, Any]:
    status, body = ask_json(url)
    return status, {"errorType": "not_found"} if body is None else body


@pytest.mark.parametrize("query", QUERIES)
def test_a_request_has_the_status_and_the_shape_that_it_has_in_prometheus(theirs: str, ours: Site, query: str) -> None:
    path, _, form = query.partition("?")
    expected = ask(f"{theirs}/api/v1/{query}")
    differences = ask(f"{ours.url}/api/v1/{query}")
    assert (differences[0], differences[1].get("errorType")) == (expected[0], expected[1].get("errorType"))
    if query.startswith(WITH_KEYS) and expected[0] == 200 and isinstance(expected[1]["data"], dict):
        assert expected[1]["data"].keys() <= differences[1]["data"].keys()
    if path in ("query", "query_range", "series", "labels", "format_query"):
        assert ours.ask(f"/api/v1/{path}", method="POST", body=form, headers=FORM).status == differences[0]


@pytest.mark.parametrize(("query", "status"), NEWER)
def test_a_request_has_the_status_that_it_has_in_newer_versions(ours: Site, query: str, status: int) -> None:
    assert ask(f"{ours.url}/api/v1/{query}")[0] == status


def test_health_is_asked_for_as_in_prometheus(theirs: str, ours: Site) -> None:
    for path in ("/-/healthy", "/-/ready"):
        with urllib.request.urlopen(theirs + path, timeout=60) as answer:
            assert ours.ask(path).status == answer.status == 200
    assert ours.ask(f"/federate?{urlencode({'match[]': '{'})}").status == 400
