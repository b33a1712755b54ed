"""What is remembered about label sets: bounded by bytes, and of use even when not everything fits in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.query.remote.bounded_cache import MIN_LIMIT_BYTES, BoundedCache, default_limit_bytes


class Worked:
    """Doubles numbers, counts how often, and remembers so many of them."""

    def __init__(self, room: int) -> None:
        self.made: Counter[int] = Counter()
        self.remembered = BoundedCache(self._double, lambda _, __: 10, limit_bytes=10 * room)

    def _double(self, number: int) -> int:
        self.made[number] += 1
        return 2 * number

    def turn(self, count: int, first: int = 0) -> int:
        """Ask for all, one after the other; how many had to be worked out."""
        before = self.made.total()
        for number in range(first, first + count):
            assert self.remembered.get(number) == 2 * number
        return self.made.total() - before


def test_cached_values_are_computed_once() -> None:
    worked = Worked(room=100)
    assert [worked.turn(100) for _ in range(3)] == [100, 0, 0]


def test_most_entries_stay_cached_if_slightly_too_many_repeat() -> None:
    worked = Worked(room=100)
    worked.turn(110)
    # The least recently used would go first in an LRU, and then none of the 110 would ever be found.
    assert sum(worked.turn(110) for _ in range(40)) < 40 * 30


def test_unused_entries_are_evicted() -> None:
    worked = Worked(room=100)
    worked.turn(100)
    for _ in range(6):
        worked.turn(100, first=1000)
    assert worked.turn(100, first=1000) == 0


@given(st.lists(st.integers(0, 30), max_size=200))
def test_the_cache_never_exceeds_its_limit_and_returns_correct_values(asked: list[int]) -> None:
    remembered: BoundedCache[int, str] = BoundedCache(str, lambda number, _: 1 + number, limit_bytes=60)
    for number in asked:
        assert remembered.get(number) == str(number)
        assert remembered.peek(number) in (None, str(number))
        assert remembered.used_bytes <= 60
    assert remembered.used_bytes == sum(1 + number for number in range(31) if remembered.peek(number) is not None)


def test_the_default_limit_is_enough_for_a_fleet() -> None:
    assert default_limit_bytes() >= MIN_LIMIT_BYTES
