"""An engine that was asked all along answers as one that is asked for the first time, whatever series come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryLimits
from watchkeeper.store.head.head import Head

TURN_MS = 15_000
QUESTIONS = (
    "use",
    "sum by (node) (use)",
    "avg without (pod, gpu) (use) + on (node) group_left (rack) node_rack",
    "use / on (node, gpu) limit",
    "use unless on (node) node_rack",
    "use * 2 or limit",
    'label_replace(use, "job", "$1", "pod", "(.).*") > 1',
    "count by (pod) (use and ignoring (pod) limit)",
    "sum by (__name__) ({node=~'n.'})",
    "topk(2, use)",
    "sum(sum_over_time(use[1m])) by (pod)",
)
# Which pod holds each of six GPUs; no pod stands for a GPU that is not there.
Turn = tuple[int, ...]


def samples(turn: Turn, at_ms: int) -> list[Sample]:
    found = []
    for gpu, pod in enumerate(turn):
        place = {"node": f"n{gpu // 2}", "gpu": str(gpu)}
        if pod:
            found.append(Sample(Labels({"__name__": "use", "pod": f"{pod}x", **place}), at_ms, 0.1 * gpu + pod))
        if pod != 2:
            found.append(Sample(Labels({"__name__": "limit", **place}), at_ms, 1.5 + gpu))
        if not gpu % 2 and pod != 1:
            found.append(
                Sample(Labels({"__name__": "node_rack", "node": place["node"], "rack": f"r{pod}"}), at_ms, 1.0)
            )
    return found


def engine() -> EmbeddedEngine:
    # Samples are gone after a minute, so that numbers of series are used again.
    return EmbeddedEngine(Head(retention_ms=60_000), QueryLimits(lookback_ms=10_000))


def answers(asked: EmbeddedEngine, at_ms: int) -> list[dict[Labels, float]]:
    return [asked.instant(question, at_ms).latest() for question in QUESTIONS]


@pytest.mark.slow
@examples(15)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 6), min_size=1, max_size=6))
def test_a_repeated_query_has_the_same_result(turns: list[Turn]) -> None:
    always = engine()
    for count in range(1, len(turns) + 1):
        always.appender.append(samples(turns[count - 1], count * TURN_MS), group_key="fleet")
        found = answers(always, count * TURN_MS)
    once = engine()
    for count, turn in enumerate(turns, 1):
        once.appender.append(samples(turn, count * TURN_MS), group_key="fleet")
    assert found == answers(once, len(turns) * TURN_MS)
