"""`watchkeeper query` prints what was asked for, and on the standard error what is doubtful about it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.web.stored_hub import StoredHub
from tests.web.running import Site, serving
from watchkeeper.cli.hub.query import command
from watchkeeper.model import histograms
from watchkeeper.model.labels import Labels


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(StoredHub()) as running:
        yield running


def query(site: Site, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--hub", site.url], catch_exceptions=False)


def test_warnings_and_infos_do_not_get_between_the_rows(site: Site) -> None:
    found = query(site, "quantile(2, rate(temp[5m]))")
    assert found.exit_code == 0
    assert found.stdout.split() == ["series", "value", "{}", "+Inf"]
    warning, info = found.stderr.splitlines()
    assert warning == "PromQL warning: quantile value should be between 0 and 1, got 2 (1:10)"
    assert info.startswith("PromQL info: metric might not be a counter")


def test_json_carries_them_beside_the_result(site: Site) -> None:
    found = query(site, "rate(temp[5m])", "--json")
    assert set(json.loads(found.stdout)) == {"resultType", "result", "infos"}
    assert found.stderr == ""


def test_a_native_histogram_is_shown_as_one_text(site: Site) -> None:
    written = histograms.Histogram(0, 4.0, 5.0, 0.1, 1.0, positive=((1, 2.0),), negative=((0, 1.0),))
    sample = histograms.HistogramSample(Labels({"__name__": "latency"}), site.hub.now_ms, written)
    site.hub.engine.appender.append([sample])
    shown = "{count:4, sum:5, [-1,-0.5):1, [-0.1,0.1]:1, (1,2]:2}"
    assert query(site, "latency").stdout.splitlines()[-1].split(maxsplit=1) == ["latency", shown]
    *_, row = query(site, "latency", "--from", "-1m", "--to", "now", "--step", "1s", "--csv").stdout.splitlines()
    assert row.endswith(f'"{shown}"')
    assert query(site, "latency", "--from", "-1m", "--chart").exit_code == 0


def test_a_legend_names_what_tells_series_apart_and_says_the_rest_once(site: Site) -> None:
    for gpu, value in (("0", 1.0), ("1", 2.0)):
        site.hub.add("load", site.hub.now_ms, value, gpu=gpu, node="n1")  # type: ignore[attr-defined]
    shown = query(site, "load", "--from", "-1m", "--chart").stdout.splitlines()
    assert shown[-3:] == ['  * {gpu="0"}', '  o {gpu="1"}', '  all: load{node="n1"}']


@pytest.mark.parametrize("mistake", [("--step", "5s"), ("--to", "now"), ("--chart",)])
def test_what_belongs_to_a_range_is_refused_without_one(site: Site, mistake: tuple[str, ...]) -> None:
    found = query(site, "temp", *mistake)
    assert (found.exit_code, "needs --from" in found.stderr) == (2, True)


def test_a_time_that_is_none_is_refused_with_the_forms_there_are(site: Site) -> None:
    found = query(site, "temp", "--at", "yesterday")
    assert (found.exit_code, "RFC 3339, seconds since 1970, `now`" in found.stderr) == (2, True)
