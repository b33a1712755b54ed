"""One contract for every engine: the embedded one, Debian's Prometheus and VictoriaMetrics give the same answers.

The samples go in through `Engine.append` everywhere. A difference that a server is known for stands in KNOWN with
its reason, and is checked to be there: a server that mends it makes the list shorter.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import pytest

from tests.query import contract
from tests.support import engines
from watchkeeper import errors
from watchkeeper.kit import durations
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import engine as interface
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.prometheus import PrometheusEngine
from watchkeeper.store import interfaces
from watchkeeper.store.head.head import Head

LONG_MS = 100 * 366 * 86_400_000
# Where Prometheus and MetricsQL look at windows differently, a rule over them may mean something else; see KNOWN.
WINDOWS = re.compile(r"\b(?:rate|increase|delta|changes)\(")
KEPT_NAME = re.compile(r"(?:avg|min|max|quantile|last)_over_time\(")
SUBQUERY = re.compile(r"\[(\w+):")
SERVERS = [pytest.param(name, marks=pytest.mark.servers) for name in ("prometheus", "victoria-metrics")]
EVERYONE = ["embedded", *SERVERS]
ANY_NODE = [[interface.Matcher("__name__", interface.MatchOp.EQUAL, "node")]]

KEEPS_NAME = "MetricsQL keeps the metric name after functions that do not change what a value means"
NO_EXTRAPOLATION = "MetricsQL counts from the sample before the window and does not extrapolate to its edges"
FROM_ZERO = "MetricsQL takes a small first sample of a counter for growth from 0, and a first value for a change"
KNOWN: Mapping[str, Mapping[str, str]] = {
    "prometheus": {"temp atan2 3": "2.42 keeps the metric name after atan2; Prometheus 3 drops it"},
    "victoria-metrics": {
        **dict.fromkeys(
            (
                "predict_linear(temp[5m], 600)",
                "avg_over_time(temp[5m])",
                "min_over_time(temp[5m])",
                "max_over_time(temp[5m])",
                "quantile_over_time(0.75, temp[5m])",
                "round(temp, 5)",
                "clamp(temp, 60, 70)",
            ),
            KEEPS_NAME,
        ),
        **dict.fromkeys(
            (
                "rate(energy[5m])",
                "increase(energy[5m])",
                "sum by (Hostname) (rate(energy[3m]))",
                "delta(temp[5m])",
                "avg_over_time(rate(energy[2m])[6m:1m])",
            ),
            NO_EXTRAPOLATION,
        ),
        "changes(xid[10m])": FROM_ZERO,
        "increase(began[20m])": FROM_ZERO,
        "(temp > 70) or on (Hostname) node": "MetricsQL fills the gaps of a left series with values of the right side",
        "days_in_month(vector(time())) + day_of_month(vector(time())) + day_of_year(vector(time()))": (
            "1.79 does not know day_of_year"
        ),
    },
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, interface.Engine]]:
    """Engines by name, each started when it is first asked for and filled with the same samples."""
    with contextlib.ExitStack() as opened:
        yield _Started(opened, tmp_path_factory)


class _Started(dict[str, interface.Engine]):
    def __init__(self, opened: contextlib.ExitStack, folders: pytest.TempPathFactory) -> None:
        self._opened = opened
        self._folders = folders

    def __missing__(self, name: str) -> interface.Engine:
        sent = list(contract.samples())
        if name == "embedded":
            made: interface.Engine = EmbeddedEngine(Head(retention_ms=LONG_MS))
            assert made.appender.append(sent) == interfaces.Appended(len(sent), {})
        else:
            server = self._opened.enter_context(engines.started(name, self._folders.mktemp(name)))
            made = server.engine
            assert made.appender.append(sent) == interfaces.Appended(len(sent), {})
            server.settle()
        self[name] = made
        return made


def difference(name: str, expr: str, running: dict[str, interface.Engine]) -> list[str]:
    ours, theirs = running["embedded"], running[name]
    try:
        at_once = contract.differences(ours.instant(expr, contract.AT_MS), theirs.instant(expr, contract.AT_MS))
        over_time = contract.differences(ours.range(expr, contract.SPAN), theirs.range(expr, contract.SPAN))
    except errors.QueryError as error:
        return [str(error)]
    return at_once + over_time


@pytest.mark.parametrize("expr", contract.EXPRESSIONS)
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_answers_as_the_embedded_engine_does(
    name: str, expr: str, running: dict[str, interface.Engine]
) -> None:
    found, reason = difference(name, expr, running), KNOWN[name].get(expr)
    if reason is None:
        assert found == []
    else:
        assert found, f"{name} no longer differs: {reason}"


@pytest.mark.parametrize("expr", contract.rule_expressions())
@pytest.mark.parametrize("name", SERVERS)
def test_a_shipped_rule_means_the_same_on_a_server(name: str, expr: str, running: dict[str, interface.Engine]) -> None:
    if name == "victoria-metrics" and WINDOWS.search(expr):
        pytest.skip(NO_EXTRAPOLATION)
    if name == "victoria-metrics" and KEPT_NAME.match(expr):
        # A rule gives its result a name of its own, so a kept one makes no difference to it.
        expr = f"sum without () ({expr})"
    if name == "prometheus":
        # The steps of a subquery meet its left edge, which 2.42 includes: without a millisecond of it, nobody does.
        expr = SUBQUERY.sub(lambda found: f"[{durations.parse_ms(found[1]) - 1}ms:", expr)
    assert difference(name, expr, running) == []


@pytest.mark.servers
def test_values_are_equal_where_only_the_metric_name_is_kept(running: dict[str, interface.Engine]) -> None:
    for expr in (expr for expr, reason in KNOWN["victoria-metrics"].items() if reason == KEEPS_NAME):
        ours = contract.rows_of(running["embedded"].instant(expr, contract.AT_MS))
        theirs = contract.rows_of(running["victoria-metrics"].instant(expr, contract.AT_MS))
        bare = {labels.without("__name__"): points for labels, points in theirs.items()}
        assert bare.keys() == ours.keys()
        for labels, points in ours.items():
            assert list(bare[labels].values()) == pytest.approx(list(points.values()), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYONE)
def test_every_engine_keeps_the_axis_and_leaves_absent_absent(name: str, running: dict[str, interface.Engine]) -> None:
    frame = running[name].range("late", contract.SPAN).frame
    assert frame.times_ms.tolist() == contract.SPAN.times.tolist()
    assert frame.present[0].tolist() == [at >= contract.BEGIN_MS + 757_300 for at in contract.SPAN.times]


@pytest.mark.parametrize("name", EVERYONE)
def test_every_engine_ends_a_series_at_its_stale_marker(name: str, running: dict[str, interface.Engine]) -> None:
    ended_ms = contract.BEGIN_MS + 40 * contract.STEP_MS + 7_300
    before, after = (running[name].instant("gone", at_ms) for at_ms in (ended_ms - 1000, ended_ms + 1000))
    assert before.latest() == {Labels({"__name__": "gone"}): 1.0}
    assert after.latest() == {}


@pytest.mark.parametrize("name", EVERYONE)
def test_every_engine_answers_a_range_selector_with_raw_samples(
    name: str, running: dict[str, interface.Engine]
) -> None:
    answer = running[name].instant("late[40s]", contract.AT_MS)
    assert answer.kind is interface.ResultType.MATRIX
    [(_, times, values)] = list(answer.frame.rows())
    assert [at - contract.BEGIN_MS for at in times.tolist()] == [1_072_300, 1_087_300, 1_102_300]
    assert values.tolist() == [71.0, 72.0, 73.0]


@pytest.mark.parametrize("name", EVERYONE)
def test_every_engine_knows_its_series_and_labels(name: str, running: dict[str, interface.Engine]) -> None:
    engine = running[name]
    assert isinstance(engine, EmbeddedEngine | PrometheusEngine)
    start_ms, end_ms = contract.SPAN.start_ms, contract.SPAN.end_ms
    found = engine.series(ANY_NODE, start_ms, end_ms)
    assert [labels["Hostname"] for labels in sorted(found, key=str)] == ["n1", "n2", "n3"]
    assert engine.label_names(ANY_NODE, start_ms, end_ms) == ["Hostname", "__name__", "rack"]
    assert engine.label_values("rack", ANY_NODE, start_ms=start_ms, end_ms=end_ms) == ["r1"]
    both = [*ANY_NODE, [interface.Matcher("__name__", interface.MatchOp.REGEX, "la.*|go\\\\?ne")]]
    assert len(engine.series(both, start_ms, end_ms)) == 5


@pytest.mark.parametrize("name", EVERYONE)
def test_every_engine_says_where_an_expression_is_broken(name: str, running: dict[str, interface.Engine]) -> None:
    with pytest.raises(errors.QueryError) as caught:
        running[name].instant("sum(temp", contract.AT_MS)
    assert caught.value.line == 1


@pytest.mark.parametrize("name", EVERYONE)
def test_every_engine_refuses_ambiguous_matches(name: str, running: dict[str, interface.Engine]) -> None:
    with pytest.raises(errors.QueryError, match=r"duplicate|many-to-many|multiple"):
        running[name].instant("node / on () temp", contract.AT_MS)


@pytest.mark.parametrize("name", EVERYONE)
def test_every_engine_refuses_too_many_steps_with_both_numbers(name: str, running: dict[str, interface.Engine]) -> None:
    most = running[name].limits().max_steps
    assert most is not None
    with pytest.raises(errors.QueryLimit, match=f"{most + 1} steps, the limit is {most}"):
        running[name].range("temp", interface.QueryRange(0, most * 1000, 1000))


@pytest.mark.parametrize("name", ["embedded", pytest.param("prometheus", marks=pytest.mark.servers)])
def test_old_samples_are_counted_and_their_neighbours_kept(name: str, running: dict[str, interface.Engine]) -> None:
    old, new = Labels({"__name__": "late"}), Labels({"__name__": "neighbour"})
    at_ms = contract.AT_MS + 120_000
    taken = running[name].appender.append([Sample(new, at_ms, 1.0), Sample(old, contract.BEGIN_MS + 760_000, 1.0)])
    assert taken == interfaces.Appended(1, {"out_of_order": 1})
    assert running[name].instant("neighbour", at_ms).latest() == {new: 1.0}
