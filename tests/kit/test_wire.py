"""The wire format: values survive a round trip, and all problems are reported together."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.errors import WireError
from watchkeeper.kit import wire


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Lamp:
    colour: Colour
    watts: float
    name: str | None = None


@dataclass(frozen=True)
class Street:
    lamps: tuple[Lamp, ...]
    built_at: datetime
    numbers: frozenset[int] = frozenset()
    corner: tuple[str, int] | None = None


PLAIN_STREET = {"lamps": [{"colour": "red", "watts": 5}], "built_at": "2026-01-31T09:00:00Z"}


def problems_of(plain: object, kind: type = Street) -> tuple[str, ...]:
    with pytest.raises(WireError) as caught:
        wire.from_plain(kind, plain)
    return caught.value.problems


def test_absent_fields_take_their_defaults_and_whole_numbers_are_numbers() -> None:
    street = wire.from_plain(Street, PLAIN_STREET)
    assert street == Street((Lamp(Colour.RED, 5.0),), datetime(2026, 1, 31, 9, tzinfo=UTC))


def test_every_problem_is_reported_with_its_path() -> None:
    plain = {
        "lamps": [{"colour": "blue", "watts": "5"}, {"watts": 1.0, "hight": 3}, 7],
        "built_at": "2026-01-31T09:00:00",
        "numbers": [1, True],
        "corner": ["a"],
    }
    assert [problem.partition(":")[0] for problem in problems_of(plain)] == [
        "lamps[0].colour",
        "lamps[0].watts",
        "lamps[1].hight",
        "lamps[1].colour",
        "lamps[2]",
        "built_at",
        "numbers[1]",
        "corner",
    ]


def test_an_unknown_key_is_answered_with_the_valid_keys() -> None:
    assert problems_of(PLAIN_STREET | {"lamp": []}) == (
        "lamp: unknown key; valid keys: lamps, built_at, numbers, corner",
    )


def test_a_wrong_choice_is_answered_with_the_choices() -> None:
    assert problems_of({"colour": "blue", "watts": 1}, Lamp) == ("colour: expected one of red, green, found 'blue'",)


@pytest.mark.parametrize("watts", [True, "1", None, float("nan"), float("inf")])
def test_a_number_is_never_guessed_from_something_else(watts: object) -> None:
    assert problems_of({"colour": "red", "watts": watts}, Lamp)[0].startswith("watts: expected a number")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff"])
def test_text_that_is_not_json_is_refused_without_a_crash(text: str | bytes) -> None:
    with pytest.raises(WireError, match="not JSON"):
        wire.loads(Street, text)


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        (PLAIN_STREET | {"built_at": "0001-01-01T00:00:00+23:00"}, "built_at: expected a time"),
        ({"lamps": [{"colour": "red", "watts": 10**400}], "built_at": "2026-01-31T09:00:00Z"}, "lamps[0].watts: exp"),
        ({"lamps": [{"colour": "red", "watts": 1, "name": "\ud800"}], "built_at": "x"}, "lamps[0].name: expected text"),
    ],
)
def test_values_that_python_or_a_database_cannot_hold_are_problems_and_not_crashes(plain: object, problem: str) -> None:
    assert problems_of(plain)[0].startswith(problem)


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(problems_of({"colour": "x" * 10_000, "watts": 1}, Lamp)[0]) < 250


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_survives_the_wire(at: datetime) -> None:
    assert wire.parse_time(wire.format_time(at)) == at


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_times_sort_as_text_in_the_order_of_time(first: datetime, second: datetime) -> None:
    assert (first < second) == (wire.format_time(first) < wire.format_time(second))


def test_a_time_of_another_zone_becomes_utc() -> None:
    nine_in_tokyo = datetime(2026, 1, 31, 9, tzinfo=timezone(timedelta(hours=9)))
    assert wire.format_time(nine_in_tokyo) == "2026-01-31T00:00:00.000000Z"


def test_equal_values_give_equal_text_whatever_the_order_of_their_keys() -> None:
    assert wire.dumps({"b": 1, "a": (1, 2)}) == wire.dumps({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4)))
def test_any_json_is_answered_with_a_value_or_with_problems(plain: object) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(wire.loads(Street, json.dumps(plain)), Street)


@dataclass(frozen=True)
class Renamed:
    status_text: str = wire.json_key("said")
    count: int = wire.json_key("number", default=0)


def test_a_field_keeps_its_json_key_under_a_better_name() -> None:
    assert wire.dumps(Renamed("waits", 2)) == '{"number":2,"said":"waits"}'
    assert wire.from_plain(Renamed, {"said": "waits"}) == Renamed("waits", 0)
    assert wire.fields_of(Renamed("waits")) == {"said": "waits", "number": 0}
    with pytest.raises(WireError) as caught:
        wire.from_plain(Renamed, {"status_text": "waits"})
    assert caught.value.problems == ("status_text: unknown key; valid keys: said, number", "said: is missing")
