"""What `fabric_api` answers with: the fabric row by row, links in a list, and one link in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.web.fleet.topology import State
from watchkeeper.web.fleet.who import Brief

# A cell is [id, state, errs, waits, load, errors, times the usual wait].
Cell = tuple[str, int, int, int, float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Counts:
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
    state: State
    links: int
    trouble: Sequence[str]


@dataclass(frozen=True, slots=True)
class Row:
    """A leaf or a rack with its cells."""

    name: str | None
    is_switch: bool
    state: State
    why: Sequence[str]
    cells: Sequence[Cell]
    trunks: int


@dataclass(frozen=True, slots=True)
class FabricMap:
    """`states` are what the second part of a cell counts in."""

    now: datetime
    window: str
    source: str | None
    swept_at: datetime | None
    problem: str
    counts: Counts
    spines: Sequence[Spine]
    states: Sequence[State]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Link:
    id: str
    kind: str
    row: str | None
    switch: str | None
    switch_port: int | None
    peer: str
    device: str | None
    port: int
    state: State
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
class Links:
    now: datetime
    total: int
    links: list[Link]


@dataclass(frozen=True, slots=True)
class Grown:
    name: str
    grown: float
    meaning: str | None
    action: str | None


@dataclass(frozen=True, slots=True)
class Lines:
    """PromQL of the lines of a link."""

    traffic: str
    errors: str
    wait: str


@dataclass(frozen=True, slots=True)
class Port:
    now: datetime
    window: str
    link: Link
    counters: list[Grown]
    series: Lines
    incidents: list[Brief]
