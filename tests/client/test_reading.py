"""How the client decodes a hub's answer: types must match, fields may be new or missing."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.client import answers, reading
from watchkeeper.errors import HubError
from watchkeeper.model import fleet

CARD: dict[str, Any] = {"id": "INC-1", "severity": "warning", "opened_at": "2026-01-31T09:00:00Z", "confidence": None}


def card(plain: dict[str, Any]) -> answers.IncidentCard:
    return reading.read_answer(answers.IncidentList, {"ok": True, "incidents": [plain]}).incidents[0]


def test_unknown_and_missing_fields_are_accepted() -> None:
    assert card(CARD).confidence is None
    assert card({"id": "INC-1"}).id == "INC-1"
    newer = {**CARD, "mood": ["good"], "severity": "grave"}
    assert (card(newer).severity, card(newer).plain) == ("grave", newer)


def test_a_missing_field_raises_when_it_is_read() -> None:
    with pytest.raises(HubError, match="the hub's answer has no `why`: the hub is older than this client"):
        _ = card(CARD).why


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", 5), ("severity", None), ("opened_at", "noon"), ("confidence", "0.9"), ("confidence", True), ("plan", "x")],
)
def test_a_value_of_the_wrong_type_is_refused(field: str, value: object) -> None:
    with pytest.raises(HubError, match="is this a Watchkeeper hub") as caught:
        card({**CARD, field: value})
    message = str(caught.value)
    assert f"`incidents[0].{field}` of the answer should be " in message
    assert f" and is {value!r}: " in message


@pytest.mark.parametrize("kind", [answers.FullIncidentDetail, answers.ExplainAnswer, fleet.Gpu])
def test_a_list_is_not_an_answer(kind: type) -> None:
    with pytest.raises(HubError, match=r"the answer should be an object and is \[\]"):
        reading.read_answer(kind, [])


def test_an_attribute_that_no_answer_has_is_an_attribute_error() -> None:
    assert not hasattr(card(CARD), "no_such_field")
