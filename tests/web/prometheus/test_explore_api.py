"""Completion of PromQL: what may stand at the cursor, from the parser's own functions and the engine's own series."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.web.prometheus import explore_api
from watchkeeper.web.prometheus.explore_api import CursorContext


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        yield running


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("DCGM_FI", CursorContext("name", "DCGM_FI")),
        ("sum(rat", CursorContext("name", "rat")),
        ("up{", CursorContext("label", "", "up")),
        ('up{job="a",ins', CursorContext("label", "ins", "up")),
        ('up{job=~"no', CursorContext("value", "no", "up", "job")),
        ('up{job="a}b', CursorContext("value", "a}b", "up", "job")),
        ('up{job="a"} + sum', CursorContext("name", "sum")),
        ("rate(up[5", CursorContext("duration", "5")),
        ("sum by (Host", CursorContext("label", "Host")),
        ('{__name__="up"', CursorContext("label", "")),
    ],
)
def test_the_text_before_the_cursor_decides_what_is_completed(text: str, context: CursorContext) -> None:
    assert explore_api.read_cursor(text) == context


def test_words_that_start_with_the_text_come_before_words_that_contain_it() -> None:
    assert explore_api.rank_words(["max", "clamp_max", "min", "MAXIMUM"], "max") == ["MAXIMUM", "clamp_max"]


def ask(site: Site, query: str, **more: int) -> dict[str, object]:
    answer: dict[str, object] = site.ask(f"/api/explore/complete?{urlencode({'query': query, **more})}").json
    return answer


def test_metrics_come_with_their_help_and_functions_with_their_arguments(site: Site) -> None:
    answer = ask(site, "DCGM")
    assert (answer["begins"], answer["ends"], answer["kind"]) == (0, 4, "name")
    assert answer["words"] == [{"word": "DCGM_FI_DEV_GPU_TEMP", "kind": "metric", "detail": "gauge · GPU temperature"}]
    first = ask(site, "rat")["words"][0]  # type: ignore[index]
    assert (first["word"], first["kind"]) == ("rate", "function")


def test_labels_and_values_are_those_of_the_metric(site: Site) -> None:
    assert "Hostname" in [completion["word"] for completion in ask(site, "DCGM_FI_DEV_GPU_TEMP{Host")["words"]]  # type: ignore[attr-defined]
    values = ask(site, 'DCGM_FI_DEV_GPU_TEMP{Hostname="gpu')["words"]
    assert values[0]["word"].startswith("gpu-r01")  # type: ignore[index]


def test_the_cursor_may_stand_in_the_middle(site: Site) -> None:
    answer = ask(site, "su(up)", at=2)
    assert (answer["begins"], answer["ends"]) == (0, 2)
    assert "sum" in [completion["word"] for completion in answer["words"]]  # type: ignore[attr-defined]


def test_nothing_typed_offers_nothing_and_a_wrong_cursor_is_refused(site: Site) -> None:
    assert ask(site, "")["words"] == []
    assert site.ask("/api/explore/complete?query=up&at=x").status == 400
