"""Two strangers read the same expressions: promql_parser in this process, and Prometheus' own promtool."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import promql_parser
import pytest

from tests import servers
from tests.query.promql.refusals import REFUSALS
from tests.support.paths import SHARED
from watchkeeper import errors
from watchkeeper.query.promql import parser, printer

DASHBOARDS = SHARED / "corpus/dashboards/expressions.txt"
# What every Prometheus since 2.42, the oldest promtool we meet, reads.
ACCEPTED = [
    "a + b * c ^ d ^ e - f / g % h",
    "a atan2 b * c",
    "-a ^ b + -c * +d",
    "-2 ^ -3 ^ 2",
    "a and b or c unless d and e",
    "a > b == bool c >= bool 1",
    "a * on (x, y) group_left (z) b",
    "a / ignoring (x) group_right b",
    "a == bool on () b",
    "sum by (x, y,) (a) / count(a) without (z)",
    "topk(3, a) or bottomk by (x) (1, b) or quantile(0.5, c)",
    'count_values without (x) ("v", a)',
    "group(a) + stddev(b) + stdvar(c) + min(d) + max(e) + avg(f)",
    "rate(a[5m]) / increase(b[1h30m] offset 1d)",
    "rate(a[5m] @ end() offset -1m) + b @ 1609746000.5 offset 1w",
    "max_over_time(rate(a[5m])[1h:5m] @ start()) - min_over_time(a[1d:])",
    "histogram_quantile(0.99, sum by (le, job) (rate(a_bucket[5m])))",
    r'label_replace(a, "d", "$1", "s", "(.*)\\.x")',
    'label_join(a, "d", "-", "x", "y", "z")',
    "predict_linear(a[1h], 4 * 3600) < 0 and hour() > 8",
    "absent(a{x=\"1\"}) or absent_over_time(b{y='2'}[5m]) or vector(1)",
    "clamp(a, -1, Inf) + round(b, 0.5) + scalar(c) * time() - pi()",
    '{__name__=~"a:.*", x!="1", y=~"b|c", z!~".+d"}',
    'a{x="",y="é\\n\\u00e9"}',
    "a # comment ) \n + b",
    "sum{by=\"x\"} + by{on='y'} + offset offset 5m + and",
    "sum by (sum, by, on, group_left, bool, offset) (start + end)",
    "((a)) + (b + (c))",
    "0x1F + 1e3 + .5 + 010 + NaN - Inf",
    "day_of_week(a) + days_in_month() + sgn(b) + deg(c)",
    "last_over_time(a[5m]) + present_over_time(a[5m]) + quantile_over_time(0.5, a[5m])",
]
# Go keeps bytes that are no text in a string; our label values are text.
LET_THROUGH_BY_PROMTOOL = {r'"\xff"'}
# It knows `fill`, but not where it may not stand.
LET_THROUGH_BY_PROMQL_PARSER = {r'"\xff"', 'a{""="1"}', "1e400", "a and fill(1) b", "a + fill(1) 2"}


def dashboards() -> list[str]:
    """Queries of public GPU dashboards, with Grafana's variables filled in; none without the shared corpus."""
    if not DASHBOARDS.exists():
        return []
    rows = [line.split("\t")[3] for line in DASHBOARDS.read_text().splitlines()[1:]]
    # promql_parser prints strings unescaped, so one with braces in it cannot be compared.
    kept = (row for row in rows if not row.startswith("TEMPLATE") and "\\{" not in row)
    return [re.sub(r"\$\{?\w+(?::\w+)?\}?", "5m", re.sub(r"\$\{?g_metrics_prefix\}?", "", row)) for row in kept]


def oracle_reads(text: str) -> str | None:
    """promql_parser's own spelling, matchers sorted; never give it deep nesting, it has no stack guard."""
    try:
        spelling = str(promql_parser.parse(text))
    except ValueError:
        return None
    # Without labels to name, these say nothing; we do not keep them.
    spelling = spelling.replace(" by ()", "").replace(" on () group_left ()", "")
    return re.sub(r"\{([^}]*)\}", lambda braces: ",".join(sorted(braces[1].split(","))), spelling)


@pytest.mark.parametrize("text", ACCEPTED)
def test_our_spelling_means_the_same_to_promql_parser(text: str) -> None:
    wanted = oracle_reads(text)
    assert wanted is not None
    assert oracle_reads(printer.to_text(parser.parse(text))) == wanted


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_promql_parser_refuses_what_we_refuse(text: str, message: str) -> None:
    del message
    assert (oracle_reads(text) is None) is (text not in LET_THROUGH_BY_PROMQL_PARSER)


def test_the_dashboards_of_others_mean_the_same_to_both() -> None:
    texts = dashboards()
    if not texts:
        pytest.skip("no copy of the dashboards in ../shared/corpus/dashboards")
    differences = []
    for text in texts:
        try:
            printed = printer.to_text(parser.parse(text))
        except errors.QueryError as error:
            printed, ours = "", str(error)
        else:
            ours = oracle_reads(printed) or f"refuses {printed}"
        theirs = oracle_reads(text)
        if (theirs is None) != (printed == "") or (theirs is not None and theirs != ours):
            differences.append((text, theirs, ours))
    assert differences == []


@pytest.mark.servers
def test_promtool_accepts_and_refuses_the_same_expressions(tmp_path: Path) -> None:
    promtool = servers.require("promtool")
    # A rule without an expression is another mistake to promtool.
    texts = [*ACCEPTED, *(text for text, _ in REFUSALS if text and text not in LET_THROUGH_BY_PROMTOOL)]
    rules = [{"record": f"r{at}", "expr": text} for at, text in enumerate(texts)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    ran = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = {int(at) for at in re.findall(r'rule \d+, "r(\d+)": could not parse', ran.stdout + ran.stderr)}
    assert [texts[at] for at in range(len(texts)) if (at in complaints) == (at < len(ACCEPTED))] == []
