"""Judge looks by all invariants; what a second look confirms is a violation.

A page may be as old as a scrape and an evaluation of the rules, together at most SETTLE_SECONDS. So each contradiction
is looked at again after this time, and counts if the same invariant is broken at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from watchkeeper.drill.consistency.invariants import (
    incidents,
    jobs,
    moments,
    money,
    places,
    repairs,
    same_numbers,
    table,
)
from watchkeeper.drill.consistency.looks import Look, RunCommand, take_look
from watchkeeper.drill.consistency.product import RunningProduct

# Scrapes come every 15 s; the rules of jobs, usage and capacity are evaluated once a minute.
SETTLE_SECONDS = 75.0
READY_WITHIN_SECONDS = 120
# Importing a subject registers its invariants.
SUBJECTS = (same_numbers, incidents, jobs, money, repairs, places, moments)
INVARIANTS: tuple[table.Invariant, ...] = tuple(table.REGISTERED)


@dataclass(frozen=True, slots=True)
class Violation:
    """A contradiction that was still there after SETTLE_SECONDS; `values` by their source."""

    invariant: str
    sentence: str
    story: str
    moment: str
    at: datetime
    where: str
    values: Mapping[str, Any]


@dataclass(slots=True)
class Watch:
    """Looks at one product again and again, and collects the violations of one story."""

    product: RunningProduct
    run_command: RunCommand
    story: str
    looks: int = 0
    violations: dict[tuple[str, str], Violation] = field(default_factory=dict)
    _previous: Look | None = None

    async def look(self, moment: str, *, with_commands: bool = True) -> Look:
        """Look, and again after a while if something contradicts; a hub that is not ready says unknown."""
        await self.wait_until_ready()
        look = await self._take(moment, with_commands)
        broken = judge(look, self._previous)
        if broken:
            await self.product.advance(SETTLE_SECONDS)
            look = await self._take(moment, with_commands)
            confirmed = judge(look, self._previous)
            for key in broken.keys() & confirmed.keys():
                invariant, contradiction = confirmed[key]
                values = {name: shorten(value) for name, value in contradiction.values.items()}
                violation = Violation(invariant.id, invariant.sentence, self.story, moment, look.at, key[1], values)
                self.violations.setdefault(key, violation)
        self._previous = look
        return look

    async def _take(self, moment: str, with_commands: bool) -> Look:
        self.looks += 1
        return await take_look(self.product, moment, self.run_command if with_commands else None)

    async def wait_until_ready(self) -> None:
        for _ in range(READY_WITHIN_SECONDS):
            if "is ready" in str(await self.product.get("/-/ready")) and self.product.panel and self.product.frame:
                return
            await self.product.advance(1)


def judge(look: Look, previous: Look | None) -> dict[tuple[str, str], tuple[table.Invariant, table.Contradiction]]:
    """What this look contradicts, by invariant and place."""
    return {
        (invariant.id, contradiction.where): (invariant, contradiction)
        for invariant in INVARIANTS
        for contradiction in invariant.check(look, previous)
    }


def shorten(value: Any, length: int = 400) -> Any:
    text = str(value)
    return value if len(text) <= length else f"{text[:length]}…"
