"""The embedded engine and Debian's Prometheus agree on the PromQL of public GPU dashboards.

The corpus is read where it lies beside the checkout, and is no part of it. Samples lie off the edges of windows and
counters start high, because 2.42 closes windows on the left and extrapolates short counters differently.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.query import contract, dashboards
from tests.support import engines
from watchkeeper import errors
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import Engine, QueryRange
from watchkeeper.store.head.head import Head
from watchkeeper.store.interfaces import Appended

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(300)]
SPAN = QueryRange(dashboards.BEGIN_MS + 330_000, dashboards.BEGIN_MS + 870_000, 60_000)
AT_MS = dashboards.BEGIN_MS + 810_000
MOST_SERIES = 6000
# 1,201 of the corpus' expressions were PromQL in November 2026; the others need MetricsQL, or are none.
LEAST = 1100
# Prometheus 3 has quoted names inside braces, sort_by_label and histogram_avg.
NEWER = (
    'unexpected string "',
    *(f'unknown function with name "{name}"' for name in ("sort_by_label", "histogram_avg")),
)
FINE = ("equal", "both empty", "both refused", "newer than 2.42")


def compare(expr: str, ours: Engine, theirs: Engine) -> str:
    """One of FINE, or what is different."""
    said: list[str] = []
    for engine in (ours, theirs):
        try:
            engine.instant(expr, AT_MS)
        except errors.QueryError as error:
            said.append(str(error))
    if len(said) == 2:
        return "both refused"
    if said:
        return "newer than 2.42" if any(words in said[0] for words in NEWER) else f"one refused: {said[0]}"
    found = contract.differences(ours.instant(expr, AT_MS), theirs.instant(expr, AT_MS))
    mine = ours.range(expr, SPAN)
    found += contract.differences(mine, theirs.range(expr, SPAN))
    return found[0] if found else "equal" if contract.rows_of(mine) else "both empty"


@pytest.mark.skipif(not dashboards.CORPUS.exists(), reason="the corpus of dashboards is not beside this checkout")
def test_dashboards_show_the_same_on_both_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees = dashboards.parsed(dashboards.expressions())
    sent = list(dashboards.samples(dashboards.series(trees, most=MOST_SERIES)))
    ours = EmbeddedEngine(Head(retention_ms=10**12))
    assert ours.appender.append(sent) == Appended(len(sent), {})
    with engines.prometheus(tmp_path) as url, engines.engine_of(url) as theirs:
        assert theirs.appender.append(sent) == Appended(len(sent), {})
        outcome = {expr: compare(expr, ours, theirs) for expr in trees}
    counts = Counter(found if found in FINE else "different" for found in outcome.values())
    with capsys.disabled():
        sys.stdout.write(json.dumps({"expressions": len(outcome), "samples": len(sent), **counts}) + "\n")
    assert [f"{expr}: {found}" for expr, found in outcome.items() if found not in FINE] == []
    assert counts["equal"] > len(outcome) // 2
    assert len(outcome) >= LEAST
