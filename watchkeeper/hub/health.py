"""Whether a hub is ready, and which parts are degraded, for /-/ready and /api/status.

The hub passes checks of its services; a replayed recording has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain


class HubHealth:
    def __init__(
        self,
        readiness_checks: Iterable[Callable[[], str | None]] = (),
        problems: Iterable[Callable[[], Iterable[str]]] = (),
    ) -> None:
        self._readiness_checks, self._problems = tuple(readiness_checks), tuple(problems)

    @property
    def is_ready(self) -> bool:
        return self.not_ready_reason is None

    @property
    def not_ready_reason(self) -> str | None:
        return next((reason for get_reason in self._readiness_checks if (reason := get_reason())), None)

    def problems(self) -> list[str]:
        """The degraded parts, one sentence each; empty if none is."""
        return list(chain.from_iterable(get_problems() for get_problems in self._problems))
