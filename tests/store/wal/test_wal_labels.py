"""Label sets are read from the WAL unchanged, with any characters, and share their pairs."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.model.labels import Labels
from watchkeeper.store.wal import wal_records

# Above all what JSON's own marks are made of.
TEXTS = st.one_of(st.text('[]",\\: a', max_size=8), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
NAMES = st.one_of(TEXTS, st.sampled_from(["__name__", "x__name__", "Node", "gpu"]))
LABEL_SETS = st.dictionaries(NAMES, TEXTS, max_size=4).map(Labels)


def written(definitions: dict[int, Labels]) -> bytes:
    """As the log writes them."""
    return orjson.dumps([(id, labels.pairs) for id, labels in definitions.items()])


@given(st.dictionaries(st.integers(0, 2**63 - 1), LABEL_SETS, max_size=5))
def test_label_sets_are_read_as_they_were_written(definitions: dict[int, Labels]) -> None:
    decoded = wal_records.decode_label_sets(written(definitions), wal_records.SharedPairs())
    assert {id: Labels.from_sorted_pairs(pairs) for id, pairs in decoded.items()} == definitions


def test_a_pair_of_many_series_is_stored_once_over_records_with_escapes() -> None:
    shared = wal_records.SharedPairs()
    plain = {id: Labels({"__name__": name, "node": "n1"}) for id, name in enumerate(["temp", "power"])}
    odd = {7: Labels({"node": "n1", "path": 'C:\\"x"'})}
    decoded = wal_records.decode_label_sets(written(plain), shared) | wal_records.decode_label_sets(
        written(odd), shared
    )
    nodes = [pair for pairs in decoded.values() for pair in pairs if pair[0] == "node"]
    assert len(nodes) == 3
    assert all(pair is nodes[0] for pair in nodes)


@given(LABEL_SETS)
def test_a_label_set_of_shared_pairs_equals_the_original(labels: Labels) -> None:
    again = Labels.from_sorted_pairs(labels.pairs)
    assert again == labels
    assert hash(again) == hash(labels)
    assert (again.name, list(again), str(again)) == (labels.name, list(labels), str(labels))
