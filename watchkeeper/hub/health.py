"""Whether a hub answers for its fleet, and what does not work now, as /-/ready and /api/status say it.

The hub names the services that know; a recording waits for nothing and has no problems.
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
        return next((why for each in self._waits_for if (why := each())), None)

    def problems(self) -> list[str]:
        """What does not work now, in sentences; nothing while all is well."""
        return list(chain.from_iterable(each() for each in self._problems))
