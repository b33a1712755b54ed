"""Whether a hub is ready, and which parts are degraded, for /-/ready and /api/status.

The hub passes the services that know; a recording waits for nothing and has no problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain


class HubHealth:
    def __init__(
        self, waits_for: Iterable[Callable[[], str | None]] = (), problems: Iterable[Callable[[], Iterable[str]]] = ()
    ) -> None:
        self._waits_for, self._problems = tuple(waits_for), tuple(problems)

    @property
    def is_ready(self) -> bool:
        return self.not_ready_reason is None

    @property
    def not_ready_reason(self) -> str | None:
        return next((reason for get_reason in self._waits_for if (reason := get_reason())), None)

    def problems(self) -> list[str]:
        """What does not work now, one sentence each; empty if all is well."""
        return list(chain.from_iterable(get_problems() for get_problems in self._problems))
