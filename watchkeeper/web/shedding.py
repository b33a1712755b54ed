"""What is refused first when more is asked than can be answered: panels, then pages; rules and events go on.

Rules run beside the web server and are never refused; pushes of agents and remote writes have limits of their own in
`fleet_api` and `prometheus_exchange`. Here questions of people and dashboards are bounded: those of panels at the
lower limit, everything else that a viewer may read at the higher one. `app.Gate` asks before it answers.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException

from watchkeeper.kit import own_metrics
from watchkeeper.web.answers import Endpoint
from watchkeeper.web.auth import Role

# Two dozen dashboards of twenty panels that refresh at the same moment; a browser asks again after a refusal.
MOST_FOR_PANELS, MOST_FOR_PAGES = 500, 1000
RETRY_AFTER_SECONDS = 5
PANELS = ("/api/v1/query", "/api/v1/series", "/api/v1/label", "/federate", "/api/history", "/api/explore")


class Shedding:
    def __init__(self, metrics: own_metrics.Registry) -> None:
        self._in_flight = 0
        self._refused = metrics.counter("watchkeeper_web_refused_total", "Questions refused under load, by kind")

    def begin(self, endpoint: Endpoint) -> bool:
        """Count a question; 503 when there are too many of its kind. False for what is never refused here."""
        if endpoint.role is not Role.VIEWER or endpoint.changes:
            return False
        is_panel = endpoint.path.startswith(PANELS)
        most = MOST_FOR_PANELS if is_panel else MOST_FOR_PAGES
        if self._in_flight >= most:
            self._refused.add(kind="panel" if is_panel else "page")
            raise HTTPException(
                503,
                f"{self._in_flight} questions wait for an answer, the limit is {most}. Rules and events go first",
                {"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self._in_flight += 1
        return True

    def end(self) -> None:
        self._in_flight -= 1
