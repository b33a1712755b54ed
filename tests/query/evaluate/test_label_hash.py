"""The hash that `limit_ratio` chooses by is Prometheus', bit for bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.loading import instant, loaded
from watchkeeper.query.evaluate import label_hash
from watchkeeper.query.evaluate.values import DROPPED_NAME


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxh64(text: bytes, digest: int) -> None:
    assert label_hash.hash_texts([text]).tolist() == [digest]


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_texts_of_many_lengths_are_hashed_together_as_each_alone(texts: list[bytes]) -> None:
    alone = [label_hash.hash_texts([text])[0] for text in texts]
    assert label_hash.hash_texts(texts).tolist() == alone


def test_labels_are_packed_with_their_lengths_and_without_a_name_that_was_taken_away() -> None:
    kept = (("node", "n1"), ("why", "é" * 130))
    assert label_hash.encode_pairs(kept) == b"\x04node\x02n1\x03why\xff\x04\x01\x00" + "é".encode() * 130
    assert label_hash.encode_pairs(((DROPPED_NAME, "temp"), *kept)) == label_hash.encode_pairs(kept)


def test_limit_ratio_chooses_the_series_that_prometheus_chooses() -> None:
    engine = loaded(*(f'x{{a="{at}"}} 1' for at in range(12)))
    # The answers of Prometheus 3.5 to the same samples.
    assert [*instant(engine, "limit_ratio(0.3, x)")] == [f'x{{a="{at}"}}' for at in (4, 6, 8, 9)]
    assert [*instant(engine, "limit_ratio(0.3, -x)")] == [f'{{a="{at}"}}' for at in (3, 4)]
