"""Checks that the node itself makes: ordered once, and unknown until it has said that it is well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.node_orders import HUB_KEY, KEY, NOON, minutes, waiting
from watchkeeper.model import orders
from watchkeeper.model.actions import Result
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.orders import OrderQueue
from watchkeeper.remediate.validation import MAX_TRIES, CheckState, NodeCheck, node_validators
from watchkeeper.store.journal.journal import Journal

NODE = Place("main", node="n1")


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[OrderQueue]:
    with closing(Journal(tmp_path / "journal.db")) as opened:
        yield OrderQueue(opened, HUB_KEY, now=NOON)


def check_of(outbox: OrderQueue | None, name: str) -> NodeCheck:
    return next(validator for validator in node_validators(lambda: outbox) if validator.name == name)


def answer(outbox: OrderQueue, output: str, at: float, result: Result = Result.DONE) -> None:
    (order,) = waiting(outbox, at=minutes(at))
    receipt = orders.Receipt(order.id, minutes(at), result, "this node is so", output)
    outbox.accept_receipt(order.id, orders.seal(receipt, KEY), now=minutes(at))


@pytest.mark.parametrize(
    ("name", "kind", "verdict", "state"),
    [
        ("scan", "scan", "healthy", CheckState.PASSED),
        ("scan", "scan", "degraded", CheckState.FAILED),
        ("diag_2", "diag", "passed", CheckState.PASSED),
        ("diag_3", "diag", "failed", CheckState.FAILED),
        ("diag_3", "diag", "cannot tell", CheckState.UNKNOWN),
    ],
)
def test_a_node_is_checked_once(outbox: OrderQueue, name: str, kind: str, verdict: str, state: CheckState) -> None:
    check = check_of(outbox, name)
    assert check.check(NODE, NOON, NOON).state is CheckState.UNKNOWN
    assert check.check(NODE, NOON, NOON).text == f"{kind} of n1: the work order is waiting"
    (order,) = waiting(outbox)
    assert (order.kind, order.arguments.get("level", "scan")) == (kind, name.removeprefix("diag_"))
    answer(outbox, json.dumps({"verdict": verdict}), 0.1)
    result = check.check(NODE, NOON, minutes(0.2))
    assert (result.check, result.state) == (name, state)
    assert waiting(outbox, at=minutes(0.3)) == []


def test_a_scan_without_a_verdict_is_retried_and_never_passes(outbox: OrderQueue) -> None:
    check = check_of(outbox, "scan")
    for number in range(MAX_TRIES):
        assert check.check(NODE, NOON, minutes(2 * number)).state is CheckState.UNKNOWN
        answer(outbox, "not JSON", 2 * number)
    last = check.check(NODE, NOON, minutes(60))
    assert (last.state, last.text) == (
        CheckState.UNKNOWN,
        "this node is so; its report has no verdict; 5 tries failed, the limit is 5",
    )


def test_another_repair_orders_a_new_check_and_a_refusal_is_final(outbox: OrderQueue) -> None:
    check = check_of(outbox, "diag_2")
    check.check(NODE, NOON, NOON)
    answer(outbox, "", 0.1, Result.REFUSED)
    assert check.check(NODE, NOON, minutes(9)).text == "refused: this node is so"
    check.check(NODE, NOON + timedelta(hours=1), minutes(60))
    assert len(waiting(outbox, at=minutes(60))) == 1


def test_without_a_key_a_check_is_unknown() -> None:
    assert check_of(None, "scan").check(NODE, NOON, NOON).state is CheckState.UNKNOWN
