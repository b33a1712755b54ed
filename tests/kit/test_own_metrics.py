"""Our own metrics, as a Prometheus server would read them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import ROOT
from watchkeeper.kit import own_metrics

# watchkeeper_scrapes_total{node="n \"1\"",outcome="ok"} 3
LINE = re.compile(r'([a-z_:]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
PAIR = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def read(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """A strict reader of the text format, written from its description and not from our writer."""
    series = {}
    for line in page.removesuffix("\n").split("\n"):
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        assert match, line
        pairs = [(name, re.sub(r"\\.", lambda m: ESCAPES[m[0]], text)) for name, text in PAIR.findall(match[2] or "")]
        series[match[1], frozenset(pairs)] = float(match[3])
    return series


@given(st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False, width=32), min_size=1, max_size=5))
def test_a_page_is_read_back_with_every_label_and_value(values: dict[str, float]) -> None:
    registry = own_metrics.Registry()
    gauge = registry.gauge("watchkeeper_test_celsius", "a gauge")
    for node, value in values.items():
        gauge.set(value, node=node)
    assert read(registry.render()) == {
        ("watchkeeper_test_celsius", frozenset({("node", node)})): value for node, value in values.items()
    }


def test_a_metric_without_values_reads_zero() -> None:
    registry = own_metrics.Registry()
    registry.counter("watchkeeper_tests_total", "never counted")
    assert registry.render().splitlines() == [
        "# HELP watchkeeper_tests_total never counted",
        "# TYPE watchkeeper_tests_total counter",
        "watchkeeper_tests_total 0",
    ]


def test_counting_adds_up_whatever_the_order_of_the_labels() -> None:
    counter = own_metrics.Registry().counter("watchkeeper_tests_total", "counted")
    counter.add(node="n1", outcome="ok")
    counter.add(2.0, outcome="ok", node="n1")
    assert counter.get(node="n1", outcome="ok") == 3.0
    assert counter.get(node="n2", outcome="ok") == 0.0


def test_declaring_a_metric_twice_gives_the_same_metric() -> None:
    registry = own_metrics.Registry()
    assert registry.counter("watchkeeper_tests_total", "one") is registry.counter("watchkeeper_tests_total", "two")


def test_a_large_counter_is_not_rounded() -> None:
    registry = own_metrics.Registry()
    registry.counter("watchkeeper_tests_total", "counted").add(123_456_789_012_345)
    assert "watchkeeper_tests_total 123456789012345\n" in registry.render()


def test_a_renamed_metric_is_exposed_under_its_deprecated_name_too() -> None:
    registry = own_metrics.Registry()
    registry.counter("watchkeeper_hub_logins_total", "Login attempts").add(2, result="{}")
    assert registry.render().splitlines() == [
        "# HELP watchkeeper_hub_logins_total Login attempts",
        "# TYPE watchkeeper_hub_logins_total counter",
        'watchkeeper_hub_logins_total{result="{}"} 2',
        "# HELP watchkeeper_hub_sign_ins_total Deprecated: use watchkeeper_hub_logins_total.",
        "# TYPE watchkeeper_hub_sign_ins_total counter",
        'watchkeeper_hub_sign_ins_total{result="{}"} 2',
    ]


def test_each_deprecated_name_belongs_to_a_metric_that_is_declared() -> None:
    source = "".join(path.read_text() for path in (ROOT / "watchkeeper").rglob("*.py") if path.name != "own_metrics.py")
    assert [new for new in own_metrics.DEPRECATED_NAMES if new.removeprefix("watchkeeper_agent") not in source] == []
