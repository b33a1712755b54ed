"""Scraped samples with their labels written before: the same bytes as samples written one by one, in any part."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.query.remote.remote_writing import AT_MS, TAKEN, arrived, label_sets, points, refusing, writing
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import remote_write
from watchkeeper.query.remote.sender import BATCH_SAMPLES, ScrapeBatch


def scraped(count: int, first: int = 0) -> ScrapeBatch:
    names = [remote_write.encode_labels(Labels({"__name__": "x", "gpu": str(first + at)})) for at in range(count)]
    return ScrapeBatch.from_scrape(names, AT_MS, [float(first + at) for at in range(count)])


@given(st.lists(st.tuples(label_sets, points), max_size=6))
def test_a_scrape_batch_is_the_same_request_as_its_samples(rows: list[tuple[Labels, tuple[int, float]]]) -> None:
    names = [remote_write.encode_labels(labels) for labels, _ in rows]
    times, values = [at for _, (at, _) in rows], [value for _, (_, value) in rows]
    parcel = ScrapeBatch(names, np.array(times, dtype=np.int64), np.array(values, dtype=np.float64))
    assert parcel.encode() == remote_write.encode([(labels, [at], [value]) for labels, (at, value) in rows])


def test_scrapes_of_several_targets_go_together_and_a_large_one_in_parts() -> None:
    with writing(TAKEN) as (server, sender):
        for first in (0, 10, 20):
            sender.enqueue(scraped(10, first))
        sender.enqueue(scraped(2 * BATCH_SAMPLES + 1, 30))
        assert sender.flush(10)
    assert arrived(server) == [float(at) for at in range(30 + 2 * BATCH_SAMPLES + 1)]


def test_only_the_samples_that_a_server_refuses_are_lost_of_a_scrape() -> None:
    with writing(refusing(3.0, 700.0)) as (_, sender):
        sender.enqueue(scraped(1000))
        assert sender.flush(10)
        assert (sender.kept, sender.dropped) == (998, {"out_of_order": 2})
