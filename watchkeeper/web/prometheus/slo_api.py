"""GET /api/slos and POST /-/reload: the error budgets of all SLOs, and the reload of rule files.

Used by the console's page Objectives and rules, `watchkeeper slo` and `watchkeeper rules reload`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.config import settings
from watchkeeper.hub import services
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model.incidents import Incident
from watchkeeper.rules import budgets, reload
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import get, json_response, ok_response, post


class SloList(TypedDict):
    now: datetime
    slos: list[shapes.SloStatus]


class SloApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._journal, self._rules = hub.runtime, hub.queries, hub.journal, hub.rules

    @get("/api/slos", response=SloList)
    async def list_slos(self, _: Request) -> Response:
        """List SLOs with their remaining error budget and burn rates."""
        now = self._runtime.clock.now()
        answer = await self._queries.instant(budgets.RECORDED_SERIES, clock.to_ms(now))
        error_budgets = budgets.list_budgets(self._rules.slos, answer.latest(), self._rules.alerts())
        open_incidents = await self._journal.read(self._journal.incidents)
        return ok_response(now=now, slos=[self._slo_status(budget, open_incidents) for budget in error_budgets])

    def _slo_status(self, budget: budgets.ErrorBudget, open_incidents: list[Incident]) -> dict[str, Any]:
        refs = {str(labels) for labels in budget.alerts}
        incident_ids = [
            incident.id for incident in open_incidents if any(member.ref in refs for member in incident.members)
        ]
        return {**wire.to_plain(budget), "covered": self._covered_window(budget.window), "incidents": incident_ids}

    def _covered_window(self, window: str) -> str | None:
        """The part of the window that retention covers; None for a remote engine, whose retention is unknown."""
        query = self._runtime.settings.query
        if query.engine is not settings.QueryEngine.EMBEDDED:
            return None
        return durations.format_seconds(min(durations.parse_seconds(window), query.retention_seconds))

    @post("/-/reload", role=Role.ADMIN, response=shapes.ReloadOutcome)
    async def reload_rules(self, _: Request) -> Response:
        """Reload the rule files; 422 with all problems if they are invalid."""
        outcome = await self._rules.reload()
        if outcome.is_successful:
            return ok_response(**reload_outcome(outcome))
        count = len(outcome.problems)
        problem = (
            f"reload failed: {count} problem{'s' * (count > 1)} in the rule files; "
            f"the {outcome.rules} previous rules stay active"
        )
        content = {"ok": False, "error": problem, "errors": outcome.problems, "status": 422, **reload_outcome(outcome)}
        return json_response(content, status=422)


def reload_outcome(outcome: reload.Reload) -> dict[str, Any]:
    """The outcome of the last reload of rule files, for /api/status and /-/reload."""
    return {**wire.to_plain(outcome), "is_successful": outcome.is_successful}
