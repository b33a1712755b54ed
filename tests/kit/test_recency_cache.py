"""A key that repeats is computed once, and dropped after a generation without it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from watchkeeper.kit.recency_cache import RecencyCache


def test_a_key_of_every_generation_is_computed_once() -> None:
    computed: list[int] = []

    def doubled(key: int) -> int:
        computed.append(key)
        return key * 2

    cache = RecencyCache(doubled)
    for _ in range(5):
        cache.start_generation()
        assert [cache(key) for key in (1, 2, 1)] == [2, 4, 2]
    assert computed == [1, 2]


def test_a_key_that_was_not_used_for_a_generation_is_dropped() -> None:
    cache = RecencyCache(str)
    cache(1)
    cache.start_generation()
    cache(2)
    cache.start_generation()
    assert (len(cache), cache(2), len(cache)) == (1, "2", 2)


@given(some.lists(some.integers(0, 50)), some.integers(1, 10))
def test_results_equal_the_computation_and_at_most_two_generations_are_kept(keys: list[int], max_entries: int) -> None:
    cache: RecencyCache[int, int] = RecencyCache(lambda key: key + 1, max_entries=max_entries)
    for key in keys:
        assert cache(key) == key + 1
        assert len(cache) <= 2 * max_entries
