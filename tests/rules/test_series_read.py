from __future__ import annotations

from watchkeeper.rules import evaluate, rulefile, series_read

PREFIXES = ("watchkeeper_node_", "watchkeeper_fabric_")


def read(*exprs: str) -> series_read.SeriesRead:
    rules = "\n".join(f"  - {{alert: A{at}, expr: '{expr}'}}" for at, expr in enumerate(exprs))
    return series_read.of_rules(rulefile.read_rules({"r.yaml": f"groups:\n- name: g\n  rules:\n{rules}\n"}))


def test_rules_tell_what_they_read_what_they_write_and_how_far_back() -> None:
    text = """groups: [{name: g, rules: [
      {record: r, expr: 'rate(a[10m] offset 5m) + sum(b)'},
      {alert: A, expr: 'r > 1 and max_over_time(c[1h:1m]) > 2'}]}]"""
    series = series_read.of_rules(rulefile.read_rules({"r.yaml": text}))
    assert (series.names, series.patterns, series.reads_everything) == ({"a", "b", "c"}, frozenset(), False)
    assert series.written == {"r", "ALERTS", "ALERTS_FOR_STATE", evaluate.KEPT_SINCE}
    assert series.lookback_ms == 65 * 60_000
    assert series.selectors() == ['{__name__="a"}', '{__name__="b"}', '{__name__="c"}']


def test_a_pattern_of_names_is_read_beside_the_names() -> None:
    series = read('{__name__=~"(vllm:|x_)waiting"} > 1', "up == 0", '{__name__="quoted name"} > 1')
    assert [name for name in ("vllm:waiting", "x_waiting", "up", "quoted name") if not series.reads(name)] == []
    assert not series.reads("waiting")
    assert series.selectors() == ['{__name__="quoted name"}', '{__name__="up"}', '{__name__=~"(vllm:|x_)waiting"}']


def test_a_selector_without_a_name_reads_everything() -> None:
    for expr in ('count({job="x"}) > 1', '{__name__!~"a.*",job="x"} > 1', '{__name__!="a",job="x"} > 1'):
        assert read(expr).reads("anything")
        assert read(expr).selectors() == []
        assert read(expr).prefixed_selectors(PREFIXES) == ['{__name__=~"(watchkeeper_node_|watchkeeper_fabric_).+"}']


def test_only_selectors_that_can_match_a_prefix_are_scraped_from_the_hub() -> None:
    assert read("up == 0", '{__name__=~"vllm:(a|b)"} > 0').prefixed_selectors(PREFIXES) == []
    series = read("watchkeeper_node_a > 1", "watchkeeper_fabric_b > 1", '{__name__=~".+_c"} > 1')
    assert series.prefixed_selectors(PREFIXES) == [
        '{__name__=~"watchkeeper_fabric_b|watchkeeper_node_a"}',
        '{__name__=~"(watchkeeper_node_|watchkeeper_fabric_).+",__name__=~".+_c"}',
    ]
