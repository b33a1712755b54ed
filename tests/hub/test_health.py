"""What a hub says of itself: ready once nothing is waited for, degraded by whatever its services name."""

from __future__ import annotations

import pytest

from watchkeeper.errors import HubError
from watchkeeper.hub.services import HubHealth
from watchkeeper.hub.stages import CurrentStages


def test_the_first_failing_check_gives_the_reason_why_the_hub_is_not_ready() -> None:
    reasons: list[str | None] = [None, "discovery has not finished yet", "later"]
    health = HubHealth([lambda: reasons[0], lambda: reasons[1], lambda: reasons[2]])
    assert (health.is_ready, health.not_ready_reason) == (False, "discovery has not finished yet")
    reasons[:] = [None, None, None]
    assert (health.is_ready, health.not_ready_reason) == (True, None)


def test_problems_of_all_services_are_listed_in_their_order() -> None:
    health = HubHealth(problems=[lambda: ["a"], lambda: iter(["b", "c"]), lambda: filter(None, [""])])
    assert health.problems() == ["a", "b", "c"]
    assert (HubHealth().is_ready, HubHealth().problems()) == (True, [])


def test_requests_before_the_journal_is_read_get_503() -> None:
    with pytest.raises(HubError, match="the journal is not read yet") as refused:
        _ = CurrentStages().stages
    assert refused.value.status == 503
