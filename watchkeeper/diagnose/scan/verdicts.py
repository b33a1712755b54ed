"""Verdicts, facts and limits of a scan, for the checks, `examine` and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.readers.logs import kernel_log
from watchkeeper.readers.node.node import NodeFacts

# DCGM's health systems, and HOST for the rest of the node.
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
    """A row of packs/health_limits.csv: `verdict` applies at or beyond the limit."""

    check: str
    system: str
    limit: float
    unit: str
    verdict: ScanVerdict
    source: str

    def result(self, check: str, detail: str, *, is_exceeded: bool) -> ScanResult:
        return ScanResult(check, self.system, self.verdict if is_exceeded else ScanVerdict.HEALTHY, detail)


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The verdict of a check and the values behind it; `gpu` is None for the whole node."""

    check: str
    system: str
    verdict: ScanVerdict
    detail: str = field(metadata={"json_key": "looked_at"})
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Readings of a GPU by metric family, and the increases of its counters during the scan."""

    uuid: str
    index: int
    pci: str | None
    values: Mapping[str, float | Mapping[str, float]]
    increases: Mapping[str, float] = field(default_factory=dict)
    # MIG instance id by UUID.
    slices: Mapping[str, int] = field(default_factory=dict)

    def value(self, family: str) -> float | None:
        value = self.values.get(family)
        return None if value is None or isinstance(value, Mapping) else value

    def state(self, family: str, name: str) -> float | None:
        value = self.values.get(family)
        return value.get(name) if isinstance(value, Mapping) else None


@dataclass(frozen=True, slots=True)
class ScanFault:
    """A fault that occurred while GPUs were read, such as driver_not_loaded; `gpu` is None for the whole node."""

    cause: str
    evidence: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """The input of a scan; `kernel` is None if the kernel log could not be read, for the reason in `kernel_problem`."""

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
    """Health system and verdict of the Xids that DCGM's health check watches."""
    return dict(pack.load("health_xids.csv", _read_xid))


def judge(name: str, value: float | None, *, detail: str) -> ScanResult | None:
    """Return the verdict of the limit if the value is at or above it, otherwise healthy; None without a value."""
    if value is None:
        return None
    row = limits()[name]
    return row.result(name, detail, is_exceeded=value >= row.limit)


def _read_limit(cells: Mapping[str, str]) -> ScanLimit:
    system, verdict = pack.choice(cells["system"], SYSTEMS), ScanVerdict(cells["verdict"])
    check, unit, source = (pack.required(cells[name]) for name in ("check", "unit", "source"))
    return ScanLimit(check, system, float(cells["limit"]), unit, verdict, source)


def _read_xid(cells: Mapping[str, str]) -> tuple[int, tuple[str, ScanVerdict]]:
    return int(cells["xid"]), (pack.choice(cells["system"], SYSTEMS), ScanVerdict(cells["verdict"]))
