"""The words of a scan: verdicts, facts and limits. Checks speak them, `examine` and the command line read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.readers.logs import kernel_log
from watchkeeper.readers.node.node import NodeFacts

# DCGM's health systems, and ours for the machine around the GPUs.
SYSTEMS = frozenset({"PCIE", "NVLINK", "MEM", "INFOROM", "THERMAL", "POWER", "DRIVER", "NVSWITCH", "HOST"})


class ScanVerdict(StrEnum):
    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"

    @property
    def rank(self) -> int:
        return list(ScanVerdict).index(self)


@dataclass(frozen=True, slots=True)
class ScanLimit:
    """One row of packs/health_limits.csv: from this number on the verdict is another one."""

    check: str
    system: str
    limit: float
    unit: str
    verdict: ScanVerdict
    source: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What one check found. `looked_at` is what the verdict rests on; `gpu` None is the node."""

    check: str
    system: str
    verdict: ScanVerdict
    looked_at: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU: its numbers by family, and how much its counters grew while it was watched."""

    uuid: str
    index: int
    pci: str | None
    values: Mapping[str, float | Mapping[str, float]]
    grown: Mapping[str, float] = field(default_factory=dict)
    # UUID of each MIG slice to its instance.
    slices: Mapping[str, int] = field(default_factory=dict)

    def value(self, family: str) -> float | None:
        value = self.values.get(family)
        return None if value is None or isinstance(value, Mapping) else value

    def state(self, family: str, name: str) -> float | None:
        value = self.values.get(family)
        return value.get(name) if isinstance(value, Mapping) else None


@dataclass(frozen=True, slots=True)
class ScanFault:
    """Something the reader of GPUs names, such as driver_not_loaded; `gpu` None is the node."""

    cause: str
    evidence: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """Everything a scan judges. `kernel` None: the log could not be read, `kernel_problem` says why."""

    node: NodeFacts
    gpus: tuple[GpuFacts, ...] = ()
    faults: tuple[ScanFault, ...] = ()
    watched_seconds: float = 0.0
    expected_gpus: int | None = None
    kernel: Sequence[kernel_log.KernelFact] | None = None
    kernel_problem: str = ""


@cache
def limits() -> Mapping[str, ScanLimit]:
    return {row.check: row for row in pack.load("health_limits.csv", _read_limit)}


@cache
def xid_verdicts() -> Mapping[int, tuple[str, ScanVerdict]]:
    """System and verdict of the Xids that DCGM's health check watches."""
    return dict(pack.load("health_xids.csv", _read_xid))


def judge(name: str, value: float | None, *, looked_at: str) -> ScanResult | None:
    """The row's verdict for a number at or above its limit, healthy below it; None where there is no number."""
    if value is None:
        return None
    row = limits()[name]
    verdict = row.verdict if value >= row.limit else ScanVerdict.HEALTHY
    return ScanResult(name, row.system, verdict, looked_at)


def _read_limit(cells: Mapping[str, str]) -> ScanLimit:
    system = pack.choice(cells["system"], SYSTEMS)
    return ScanLimit(
        pack.required(cells["check"]),
        system,
        float(cells["limit"]),
        pack.required(cells["unit"]),
        ScanVerdict(cells["verdict"]),
        pack.required(cells["source"]),
    )


def _read_xid(cells: Mapping[str, str]) -> tuple[int, tuple[str, ScanVerdict]]:
    return int(cells["xid"]), (pack.choice(cells["system"], SYSTEMS), ScanVerdict(cells["verdict"]))
