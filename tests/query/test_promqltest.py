"""The runner of Prometheus' test notation reads it right, and can tell right from wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.query import notation, promqltest
from tests.query.promqltest import Status
from tests.support.paths import ROOT, SHARED
from watchkeeper.model import samples
from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import Labels
from watchkeeper.query.evaluate import evaluator
from watchkeeper.query.promql import functions

CORPUS = SHARED / "corpus/promqltest"
REFERENCE = ROOT / "docs/reference/promql.md"


@pytest.mark.parametrize(
    ("word", "points"),
    [
        ("2+3x2", (2, 5, 8)),
        ("10-2.5x2", (10, 7.5, 5)),
        ("7x2", (7, 7, 7)),
        ("52+0x1", (52, 52)),
        ("-1e3", (-1000,)),
        ("1e+2+1x1", (100, 101)),
        ("+Inf", (math.inf,)),
        ("_", (None,)),
        ("_x3", (None, None, None)),
    ],
)
def test_points_expand_as_in_prometheus(word: str, points: notation.Points) -> None:
    assert notation.read_points(word) == points


def test_a_stale_point_is_the_marker_and_not_just_any_nan() -> None:
    stale, nan = notation.read_points("stale") + notation.read_points("NaN")
    assert isinstance(stale, float)
    assert isinstance(nan, float)
    assert (samples.is_stale(stale), samples.is_stale(nan)) == (True, False)
    assert promqltest.is_close(nan, math.nan)
    assert not promqltest.is_close(stale, nan)


def test_series_are_read_with_every_kind_of_name() -> None:
    assert notation.read_series('a:b{x="1 }", y=`2`} 1 _').labels == Labels({"__name__": "a:b", "x": "1 }", "y": "2"})
    assert notation.read_series('{"my.metric", "l.x"="v"} 1').labels == Labels({"__name__": "my.metric", "l.x": "v"})
    assert notation.read_series("{} 1 2").points == (1, 2)
    one = Histogram(count=1.0)
    assert notation.read_series("a {{schema:0 count:1}}x2 3").points == (one, one, one, 3)
    assert notation.read_series("a@st 1").unreadable == notation.START_TIMES


@pytest.mark.parametrize(
    "text", ["nonsense", "load 5m\n a 1 two", "eval instants at 0 a", "load 5m\n {a=1", "load x\n a 1"]
)
def test_a_line_that_is_no_notation_is_refused_with_its_number(text: str) -> None:
    with pytest.raises(notation.NotationError, match="line 2"):
        list(notation.read(f"# comment\n{text}"))


QUESTIONS = """
eval range from 0 to 1m30s step 30s sum(a)
    expect ordered
    expect no_warn
    {} 1 _ 3x1

eval_fail instant at 5m a

eval instant at 10 "x"
    expect string `x`

eval instant at 0 1 / 0
    +Inf
"""


def test_a_question_carries_everything_it_expects() -> None:
    wanted = notation.Series(Labels(), (1, None, 3, 3))
    expects = frozenset({"ordered", "no_warn"})
    assert list(notation.read(QUESTIONS)) == [
        notation.Eval(2, "sum(a)", 0, 90_000, 30_000, series=(wanted,), expects=expects),
        notation.Eval(7, "a", 300_000, 300_000, expects=frozenset({"fail"})),
        notation.Eval(9, '"x"', 10_000, 10_000, string="x", expects=frozenset({"string"})),
        notation.Eval(12, "1 / 0", 0, 0, scalar=math.inf),
    ]


SCRIPT = """
load 1m
    a{x="1"} 1+1x10
    a{x="2"} 5x10
    h {{schema:0 count:1}}

eval instant at 5m a
    a{x="2"} 5
    a{x="1"} 6.000001

eval instant at 5m a
    a{x="1"} 6.1
    a{x="2"} 5

eval instant at 5m sort(a)
    expect ordered
    a{x="1"} 6
    a{x="2"} 5

eval instant at 5m a
    a{x="1"} 6

eval range from 0 to 2m step 1m sum(a)
    {} 6 7 8

eval instant at 1m h
    h {{count:1 sum:0.5}}

eval instant at 1m h
    h {{count:1}}

eval instant at 5m rate(a[5m] anchored)

eval instant at 5m rate(a)
    expect fail msg: expected type range vector

eval instant at 5m a
    expect fail

eval instant at 5m rate(a)
    expect fail regex: no such words

eval instant at 5m rate(a{x="2"}[5m])
    expect info regex: PromQL info: metric might not be a counter, .*: "a" .1:6.
    expect no_warn
    {x="2"} 0

eval instant at 5m rate(a{x="2"}[5m])
    expect no_info
    {x="2"} 0

eval instant at 5m quantile(2, a)
    expect warn regex: got 3
    {} +Inf

clear

eval instant at 5m a
"""


def test_every_question_gets_the_outcome_it_deserves(tmp_path: Path) -> None:
    file = tmp_path / "script.test"
    file.write_text(SCRIPT)
    passed, failed, skipped = Status.PASSED, Status.FAILED, Status.SKIPPED
    wanted = [passed, failed, failed, failed, passed, failed, passed, skipped, passed, failed]
    wanted += [failed, passed, failed, failed, passed]
    outcomes = list(promqltest.run_file(file))
    assert [outcome.status for outcome in outcomes] == wanted
    counts = promqltest.summary(outcomes)
    assert (counts["passed"], counts["failed"], counts["skipped"]) == (6, 8, 1)
    assert counts["by_file"] == {"script": {"passed": 6, "failed": 8, "skipped": 1}}


def test_the_command_fails_on_a_miss_and_on_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert promqltest.main([str(tmp_path)]) == 1
    (tmp_path / "one.test").write_text("eval instant at 0 1 + 1\n  3\n")
    assert promqltest.main([str(tmp_path), "-v"]) == 1
    shown = capsys.readouterr()
    assert "one.test:1: 1 + 1\n  wanted: scalar 3.0\n  got:    scalar {} 2@0" in shown.err
    (tmp_path / "one.test").write_text("eval instant at 0 1 + 1\n  2\n")
    assert promqltest.main([str(tmp_path)]) == 0


@pytest.mark.slow
def test_the_reference_names_every_miss_of_prometheus_own_tests() -> None:
    files = sorted(CORPUS.glob("*.test"))
    if not files:
        pytest.skip("no copy of Prometheus' promqltest files in ../shared/corpus/promqltest")
    outcomes = [outcome for file in files for outcome in promqltest.run_file(file)]
    missed = [(f"{each.file}.test:{each.line}", each.text) for each in outcomes if each.status is Status.FAILED]
    page = REFERENCE.read_text()
    assert re.findall(r"^\| `(\w+\.test:\d+)` `(.*?)` \|", page, re.MULTILINE) == missed
    counts = promqltest.summary(outcomes)
    asked = counts["passed"] + counts["failed"]
    assert f"have {asked} queries of stable PromQL; {counts['passed']} pass" in page
    assert all(f"({number})" in page for number in counts["skipped_because"].values())


def test_the_reference_names_every_function() -> None:
    known = {*evaluator.FUNCTIONS, *evaluator.SPECIAL_FUNCTIONS}
    rows = dict(re.findall(r"^\| (Functions|Experimental functions) \| (.*) \|$", REFERENCE.read_text(), re.MULTILINE))
    for title, is_experimental in (("Functions", False), ("Experimental functions", True)):
        wanted = {name for name in known if functions.FUNCTIONS[name].is_experimental is is_experimental}
        assert set(re.findall(r"`(\w+)`", rows[title])) == wanted
