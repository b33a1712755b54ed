"""What the client holds a hub's answers against: what is there must be of its kind, what is new or missing may be."""

from __future__ import annotations

from typing import Any

import pytest

from watchkeeper.client import promise

CARD: dict[str, Any] = {"id": "INC-1", "severity": "warning", "opened_at": "2026-01-31T09:00:00Z", "confidence": None}


def of_incidents(card: dict[str, Any]) -> str | None:
    return promise.broken("GET", "/api/incidents?open=1", {"ok": True, "incidents": [card]})


def test_what_is_new_or_missing_is_no_hubs_fault() -> None:
    assert of_incidents(CARD) is None
    assert of_incidents({"id": "INC-1"}) is None
    assert of_incidents({**CARD, "mood": ["good"], "severity": "grave"}) is None
    assert promise.broken("GET", "/api/of-next-year", [5]) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", 5), ("severity", None), ("opened_at", "noon"), ("confidence", "0.9"), ("confidence", True), ("plan", "x")],
)
def test_what_is_there_is_of_its_kind(field: str, value: object) -> None:
    told = of_incidents({**CARD, field: value})
    assert told is not None
    assert told.startswith(f"`incidents[0].{field}` of the answer should be ")
    assert told.endswith(f" and is {value!r}")


def test_a_name_in_a_path_may_have_slashes_where_the_hub_takes_them() -> None:
    for path in (
        "/api/jobs/4711",
        "/api/jobs/research/llm-70b",
        "/api/explain/pod/web/api-0",
        "/api/explain/pod/api-0",
    ):
        assert promise.broken("GET", path, []) == "the answer should be an object and is []"
