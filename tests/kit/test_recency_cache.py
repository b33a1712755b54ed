"""What is asked for again is worked out once, and what is gone is forgotten with the turn after its last one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from watchkeeper.kit.recency_cache import RecencyCache


def test_what_comes_again_each_turn_is_worked_out_once() -> None:
    worked: list[int] = []

    def doubled(key: int) -> int:
        worked.append(key)
        return key * 2

    memory = RecencyCache(doubled)
    for _ in range(5):
        memory.start_generation()
        assert [memory(key) for key in (1, 2, 1)] == [2, 4, 2]
    assert worked == [1, 2]


def test_what_nobody_asked_for_during_a_turn_is_forgotten() -> None:
    memory = RecencyCache(str)
    memory(1)
    memory.start_generation()
    memory(2)
    memory.start_generation()
    assert (len(memory), memory(2), len(memory)) == (1, "2", 2)


@given(some.lists(some.integers(0, 50)), some.integers(1, 10))
def test_it_answers_as_the_work_itself_and_holds_at_most_two_turns(asked: list[int], most: int) -> None:
    memory: RecencyCache[int, int] = RecencyCache(lambda key: key + 1, most=most)
    for key in asked:
        assert memory(key) == key + 1
        assert len(memory) <= 2 * most
