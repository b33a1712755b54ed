"""Types of the responses of `fabric_api`: the map of the fabric, a list of links, and one link in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from watchkeeper.web.fleet.topology import HealthState
from watchkeeper.web.fleet.who import IncidentSummary

# [id, index in `states`, has errors, is congested, utilisation, errors, wait time as a multiple of the median].
FabricCell = tuple[str, int, int, int, float | None, float | None, float | None]


class FabricCounts(TypedDict):
    links: int
    down: int
    slow: int
    unknown: int
    errs: int
    waits: int
    uncounted: int
    jobs: int
    # Nodes that do not answer or have no InfiniBand ports: the state of their links is unknown.
    mute_nodes: int


class Spine(TypedDict):
    name: str
    state: HealthState
    links: int
    trouble: Sequence[str]


@dataclass(frozen=True, slots=True)
class FabricRow:
    """A leaf switch or a rack, with one cell per port."""

    name: str | None
    is_switch: bool
    state: HealthState
    why: Sequence[str]
    cells: Sequence[FabricCell]
    trunks: int


@dataclass(frozen=True, slots=True)
class FabricMap:
    """The map of the fabric; the second element of a cell is an index into `states`."""

    now: datetime
    window: str
    source: str | None
    swept_at: datetime | None
    problem: str
    counts: FabricCounts
    spines: Sequence[Spine]
    states: Sequence[HealthState]
    rows: Sequence[FabricRow]


class FabricLink(TypedDict):
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


class FabricLinkList(TypedDict):
    now: datetime
    total: int
    links: list[FabricLink]


class CounterGrowth(TypedDict):
    name: str
    grown: float
    meaning: str | None
    action: str | None


@dataclass(frozen=True, slots=True)
class LinkQueries:
    """The PromQL queries of a link's charts."""

    traffic: str
    errors: str
    wait: str


class LinkDetail(TypedDict):
    now: datetime
    window: str
    link: FabricLink
    counters: list[CounterGrowth]
    series: LinkQueries
    incidents: list[IncidentSummary]
