"""GET /api/slos and POST /-/reload: what is left of each error budget, and rules that are read once more.

The console's page of objectives, `watchkeeper slo` and `watchkeeper rules reload` ask here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.config import settings
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model.incidents import Incident
from watchkeeper.rules import budgets, reload
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, json_response, ok_response


@dataclass(frozen=True, slots=True)
class SloList:
    now: datetime
    slos: list[shapes.SloStatus]


class SloApi:
    def __init__(
        self, runtime: Runtime, queries: Queries, *, journal: services.JournalProtocol, rules: services.RulesProtocol
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._rules = rules

    async def slos(self, _: Request) -> Response:
        """Every objective as it is now; a number without samples is null."""
        now = self._runtime.clock.now()
        answer = await self._queries.instant(budgets.RECORDED_SERIES, clock.to_ms(now))
        found = budgets.list_budgets(self._rules.slos, answer.latest(), self._rules.alerts())
        open_now = await self._journal.read(self._journal.incidents)
        return ok_response(now=now, slos=[self._plain(budget, open_now) for budget in found])

    def _plain(self, budget: budgets.ErrorBudget, open_now: list[Incident]) -> dict[str, Any]:
        refs = {str(labels) for labels in budget.alerts}
        told = [one.id for one in open_now if any(member.ref in refs for member in one.members)]
        return {**wire.to_plain(budget), "covered": self._covered(budget.window), "incidents": told}

    def _covered(self, window: str) -> str | None:
        """How much of the window the samples reach back at most; a server keeps its own, which is unknown here."""
        query = self._runtime.settings.query
        if query.engine is not settings.QueryEngine.EMBEDDED:
            return None
        return durations.format_seconds(min(durations.parse_seconds(window), query.retention_seconds))

    async def reload(self, _: Request) -> Response:
        found = await self._rules.reload()
        if found.is_successful:
            return ok_response(**reload_outcome(found))
        count = len(found.problems)
        problem = (
            f"{count} problem{'s' * (count > 1)} in the rule files; the {found.rules} rules of before stay in force"
        )
        content = {"ok": False, "error": problem, "errors": found.problems, "status": 422, **reload_outcome(found)}
        return json_response(content, status=422)


def reload_outcome(found: reload.Reload) -> dict[str, Any]:
    """The last reading of the rule files as /api/status and /-/reload show it."""
    return {**wire.to_plain(found), "is_successful": found.is_successful}


def endpoints(api: SloApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/slos",
            Role.VIEWER,
            api.slos,
            summary="What is left of each error budget, and how fast it burns",
            response=SloList,
        ),
        Endpoint(
            ("POST",),
            "/-/reload",
            Role.ADMIN,
            api.reload,
            changes=True,
            summary="Read the rule files again; 422 with every problem if they cannot be used",
            response=shapes.ReloadOutcome,
        ),
    ]
