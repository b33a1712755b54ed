"""What `fabric_api` answers with: the fabric row by row, links in a list, and one link in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.web.fleet.topology import HealthState
from watchkeeper.web.fleet.who import IncidentSummary

# A cell is [id, state, errs, waits, load, errors, times the usual wait].
FabricCell = tuple[str, int, int, int, float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class FabricCounts:
    links: int
    down: int
    slow: int
    unknown: int
    errs: int
    waits: int
    uncounted: int
    jobs: int
    # A node that is silent, or has no such ports, tells of no link; none of them is known to be up.
    mute_nodes: int


@dataclass(frozen=True, slots=True)
class Spine:
    name: str
    state: HealthState
    links: int
    trouble: Sequence[str]


@dataclass(frozen=True, slots=True)
class FabricRow:
    """A leaf or a rack with its cells."""

    name: str | None
    is_switch: bool
    state: HealthState
    why: Sequence[str]
    cells: Sequence[FabricCell]
    trunks: int


@dataclass(frozen=True, slots=True)
class FabricMap:
    """`states` are what the second part of a cell counts in."""

    now: datetime
    window: str
    source: str | None
    swept_at: datetime | None
    problem: str
    counts: FabricCounts
    spines: Sequence[Spine]
    states: Sequence[HealthState]
    rows: Sequence[FabricRow]


@dataclass(frozen=True, slots=True)
class FabricLink:
    id: str
    kind: str
    row: str | None
    switch: str | None
    switch_port: int | None
    peer: str
    device: str | None
    port: int
    state: HealthState
    why: str
    gbps: float | None
    down_since: datetime | None
    load: float | None
    errors: float | None
    errs: bool
    waits: bool
    wait_per_second: float | None
    wait_times: float | None
    discards: float | None
    jobs: Sequence[str]


@dataclass(frozen=True, slots=True)
class FabricLinkList:
    now: datetime
    total: int
    links: list[FabricLink]


@dataclass(frozen=True, slots=True)
class CounterGrowth:
    name: str
    grown: float
    meaning: str | None
    action: str | None


@dataclass(frozen=True, slots=True)
class LinkQueries:
    """PromQL of the lines of a link."""

    traffic: str
    errors: str
    wait: str


@dataclass(frozen=True, slots=True)
class LinkDetail:
    now: datetime
    window: str
    link: FabricLink
    counters: list[CounterGrowth]
    series: LinkQueries
    incidents: list[IncidentSummary]
