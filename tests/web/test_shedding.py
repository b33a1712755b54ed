"""Under load panels are refused first, pages later, and what agents and people change is not refused here at all."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.kit import own_metrics
from watchkeeper.web.answers import Endpoint
from watchkeeper.web.auth import Role
from watchkeeper.web.shedding import MOST_FOR_PAGES, MOST_FOR_PANELS, Shedding


async def nothing(_: Request) -> Response:
    return Response()


PANEL = Endpoint(("GET",), "/api/v1/query_range", Role.VIEWER, nothing)
PAGE = Endpoint(("GET",), "/api/incidents", Role.VIEWER, nothing)
CHANGE = Endpoint(("POST",), "/api/incidents/{id}/acknowledge", Role.OPERATOR, nothing, changes=True)
PUSH = Endpoint(("POST",), "/api/events", Role.AGENT, nothing, changes=True)


def test_panels_go_first_then_pages_and_changes_and_pushes_never() -> None:
    load = Shedding(own_metrics.Registry())
    for _ in range(MOST_FOR_PANELS):
        assert load.begin(PANEL)
    with pytest.raises(HTTPException) as refused:
        load.begin(PANEL)
    assert (refused.value.status_code, refused.value.headers) == (503, {"Retry-After": "5"})
    assert f"{MOST_FOR_PANELS} questions wait for an answer, the limit is {MOST_FOR_PANELS}" in refused.value.detail
    for _ in range(MOST_FOR_PAGES - MOST_FOR_PANELS):
        assert load.begin(PAGE)
    with pytest.raises(HTTPException):
        load.begin(PAGE)
    assert not load.begin(CHANGE)
    assert not load.begin(PUSH)


def test_what_was_answered_makes_room() -> None:
    load = Shedding(own_metrics.Registry())
    for _ in range(2 * MOST_FOR_PAGES):
        assert load.begin(PANEL)
        load.end()
