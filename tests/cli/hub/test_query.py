"""`watchkeeper query` prints results to standard output, and warnings to standard error."""

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


def test_warnings_and_infos_go_to_standard_error(site: Site) -> None:
    result = query(site, "quantile(2, rate(temp[5m]))")
    assert result.exit_code == 0
    assert result.stdout.split() == ["series", "value", "{}", "+Inf"]
    warning, info = result.stderr.splitlines()
    assert warning == "PromQL warning: quantile value should be between 0 and 1, got 2 (1:10)"
    assert info.startswith("PromQL info: metric might not be a counter")


def test_json_output_contains_infos(site: Site) -> None:
    result = query(site, "rate(temp[5m])", "--json")
    assert set(json.loads(result.stdout)) == {"resultType", "result", "infos"}
    assert result.stderr == ""


def test_a_native_histogram_is_printed_as_one_text(site: Site) -> None:
    histogram = histograms.Histogram(0, 4.0, 5.0, 0.1, 1.0, positive=((1, 2.0),), negative=((0, 1.0),))
    sample = histograms.HistogramSample(Labels({"__name__": "latency"}), site.hub.now_ms, histogram)
    site.hub.engine.appender.append([sample])
    expected = "{count:4, sum:5, [-1,-0.5):1, [-0.1,0.1]:1, (1,2]:2}"
    assert query(site, "latency").stdout.splitlines()[-1].split(maxsplit=1) == ["latency", expected]
    *_, row = query(site, "latency", "--from", "-1m", "--to", "now", "--step", "1s", "--csv").stdout.splitlines()
    assert row.endswith(f'"{expected}"')
    assert query(site, "latency", "--from", "-1m", "--chart").exit_code == 0


def test_a_legend_shows_shared_labels_once(site: Site) -> None:
    for gpu, value in (("0", 1.0), ("1", 2.0)):
        site.hub.add("load", site.hub.now_ms, value, gpu=gpu, node="n1")  # type: ignore[attr-defined]
    expected = query(site, "load", "--from", "-1m", "--chart").stdout.splitlines()
    assert expected[-3:] == ['  * {gpu="0"}', '  o {gpu="1"}', '  all: load{node="n1"}']


@pytest.mark.parametrize("mistake", [("--step", "5s"), ("--to", "now"), ("--chart",)])
def test_options_of_a_range_query_need_from(site: Site, mistake: tuple[str, ...]) -> None:
    result = query(site, "temp", *mistake)
    assert (result.exit_code, "needs --from" in result.stderr) == (2, True)


def test_an_invalid_time_is_refused_with_the_accepted_formats(site: Site) -> None:
    result = query(site, "temp", "--at", "yesterday")
    assert (result.exit_code, "RFC 3339, seconds since 1970, `now`" in result.stderr) == (2, True)
