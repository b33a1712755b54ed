"""Seals of work orders: only the right key, the right purpose and the untouched text go together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.kit import wire
from watchkeeper.model import orders
from watchkeeper.model.actions import Result

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
KEY = orders.node_key(b"k" * 32, "main", "n1")
ORDER = orders.Order(
    orders.OrderId("WO-1"), "main", "n1", "scan", NOON, NOON + timedelta(minutes=10), "nonce", {"seconds": "5"}
)
RECEIPT = orders.Receipt(orders.OrderId("WO-1"), NOON, Result.DONE, "done")


def test_a_sealed_order_comes_back_as_it_was() -> None:
    envelope = orders.seal(ORDER, KEY)
    assert orders.is_sealed(envelope, KEY, purpose=orders.SealPurpose.ORDER)
    assert wire.loads(orders.Order, envelope.text) == ORDER


@given(st.integers(min_value=0), st.characters(codec="utf-8"))
def test_any_other_character_anywhere_breaks_the_seal(place: int, other: str) -> None:
    envelope = orders.seal(ORDER, KEY)
    place %= len(envelope.text)
    text = envelope.text[:place] + other + envelope.text[place + 1 :]
    is_whole = orders.is_sealed(replace(envelope, text=text), KEY, purpose=orders.SealPurpose.ORDER)
    assert is_whole == (text == envelope.text)


@given(st.text())
def test_no_invented_seal_is_accepted(seal: str) -> None:
    envelope = orders.seal(ORDER, KEY)
    assert not orders.is_sealed(replace(envelope, seal=seal), KEY, purpose=orders.SealPurpose.ORDER)


@pytest.mark.parametrize(("cluster", "node"), [("main", "n2"), ("other", "n1"), ('main","n1', "")])
def test_the_key_of_another_node_is_refused(cluster: str, node: str) -> None:
    other = orders.node_key(b"k" * 32, cluster, node)
    assert not orders.is_sealed(orders.seal(ORDER, KEY), other, purpose=orders.SealPurpose.ORDER)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_no_two_nodes_share_a_key(first: tuple[str, str], other: tuple[str, str]) -> None:
    assert (orders.node_key(b"k" * 32, *first) == orders.node_key(b"k" * 32, *other)) == (first == other)


def test_an_order_does_not_pass_for_a_receipt() -> None:
    assert not orders.is_sealed(orders.seal(ORDER, KEY), KEY, purpose=orders.SealPurpose.RECEIPT)
    assert orders.is_sealed(orders.seal(RECEIPT, KEY), KEY, purpose=orders.SealPurpose.RECEIPT)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"id": ""}, "1 to 100 visible"),
        ({"id": "x" * 101}, "it has 101"),
        ({"node": ""}, "1 to 253 visible"),
        ({"cluster": "a b"}, "visible characters, this one has 3"),
        ({"expires_at": NOON}, "the lifetime is 0:00:00"),
        ({"expires_at": NOON + timedelta(hours=25)}, "the limit is 1 day"),
        ({"arguments": {str(n): "" for n in range(17)}}, "17 arguments, the limit is 16"),
        ({"arguments": {"by": "x" * 257}}, "257 characters, the limit is 256"),
    ],
)
def test_an_order_beyond_a_limit_cannot_be_made(changed: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(ORDER, **changed)  # type: ignore[arg-type]


def test_the_state_of_an_order_follows_from_what_is_known_of_it() -> None:
    given = orders.TrackedOrder(ORDER, "ann", "")
    late = ORDER.expires_at + timedelta(seconds=1)
    assert (given.state(NOON), given.state(late)) == (orders.OrderState.WAITING, orders.OrderState.EXPIRED)
    fetched = replace(given, fetched_at=NOON)
    assert (fetched.state(NOON), fetched.state(late)) == (orders.OrderState.FETCHED, orders.OrderState.EXPIRED)
    assert replace(fetched, receipt=RECEIPT).state(late) is orders.OrderState.ANSWERED
