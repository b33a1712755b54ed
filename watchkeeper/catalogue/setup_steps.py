"""Steps from bare machines to the running stack, and the ports that a firewall has to open for them.

`doctor.stack.steps` checks each step, in the order of the table. The how-to bare-metal.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from watchkeeper.catalogue import pack

PLACES = frozenset({"node", "cluster", "prometheus"})


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step; `by_hand` shows its state without Watchkeeper, `where` is what can answer."""

    step: str = pack.cell(pack.required)
    title: str = pack.cell(pack.required)
    where: str = pack.cell(partial(pack.choice, choices=PLACES))
    by_hand: str = pack.cell(pack.required)
    fix: str = pack.cell(pack.required)


@dataclass(frozen=True, slots=True)
class PortRow:
    """Ports that the nodes open to each other; `when` is node, control-plane, listening or a network interface."""

    component: str = pack.cell(pack.required)
    protocol: str = pack.cell(partial(pack.choice, choices=frozenset({"tcp", "udp"})))
    first: int = pack.cell(int)
    last: int = pack.cell(int)
    when: str = pack.cell(pack.required)
    purpose: str = pack.cell(pack.required)

    def __str__(self) -> str:
        ports = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{ports}/{self.protocol} ({self.component} {self.purpose})"


@cache
def steps() -> tuple[StepRow, ...]:
    return pack.load("stack_steps.csv", pack.row_reader(StepRow, "source", "checked"))


@cache
def ports() -> tuple[PortRow, ...]:
    return pack.load("stack_ports.csv", pack.row_reader(PortRow, "source", "checked"))
