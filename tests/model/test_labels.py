"""Label sets: Prometheus' laws."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tests.model.strategies import label_sets, words
from watchkeeper.model.labels import Labels

pair_lists = st.lists(st.tuples(words, words | st.just("")), max_size=6, unique_by=lambda pair: pair[0])


@given(pair_lists, st.randoms())
def test_the_order_of_labels_is_irrelevant(pairs: list[tuple[str, str]], random: st.random_module) -> None:
    shuffled = pairs.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Labels(pairs) == Labels(shuffled) == Labels(dict(shuffled))
    assert hash(Labels(pairs)) == hash(Labels(shuffled))
    assert str(Labels(pairs)) == str(Labels(shuffled))


@example(Labels(), "self")
@given(label_sets, words)
def test_an_empty_value_means_absent(labels: Labels, name: str) -> None:
    emptied = labels.with_labels(**{name: ""})
    assert name not in emptied
    assert emptied == labels.without(name)


@given(label_sets, words, words)
def test_having_sets_one_label_and_leaves_the_others(labels: Labels, name: str, value: str) -> None:
    changed = labels.with_labels(**{name: value})
    assert changed[name] == value
    assert changed.without(name) == labels.without(name)


@given(label_sets, label_sets)
def test_equal_sets_hash_alike_and_sets_have_a_total_order(first: Labels, other: Labels) -> None:
    assert (first == other) == (dict(first) == dict(other))
    assert (first < other) + (other < first) + (first == other) == 1
    if first == other:
        assert hash(first) == hash(other)


@given(label_sets, st.sets(words))
def test_only_and_without_divide_a_set(labels: Labels, names: set[str]) -> None:
    kept, left = labels.only(names), labels.without(*names)
    assert dict(kept) | dict(left) == dict(labels)
    assert not set(kept) & set(left)


@given(pair_lists, words)
def test_a_name_put_to_sorted_labels_gives_the_same_set_as_sorting_them_all(
    pairs: list[tuple[str, str]], name: str
) -> None:
    others = Labels({"Hostname": "n1", "zone": "z", **dict(pairs)}).pairs_without_name
    assert Labels.with_metric_name(name, others) == Labels({**dict(others), "__name__": name})
    assert hash(Labels.with_metric_name(name, others)) == hash(Labels({**dict(others), "__name__": name}))
    assert Labels.with_metric_name(name, others).pairs_without_name == others


def test_a_series_is_written_as_promql_writes_it() -> None:
    assert str(Labels({"__name__": "up", "node": 'n "1"\n', "a": "b"})) == r'up{a="b", node="n \"1\"\n"}'
    assert str(Labels({"__name__": "up"})) == "up"
    assert str(Labels()) == "{}"
