"""Small tables of the doctor and of `explain`: SXid codes, completion errors, counters, settings, exit codes.

Each function reads its file in packs/ once. A code without a row is None: it is undocumented.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.model.clock_reasons import BITS

ANY_STATUS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SxidRow:
    """One error of an NVSwitch; `is_fatal` is None and `severity` empty if the log line decides."""

    code: int
    name: str
    is_fatal: bool | None
    severity: str
    action: str
    needs_drain: bool
    note: str
    source: str


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """One ibv_wc_status."""

    status: int
    name: str
    meaning: str
    cause: str
    confidence: float


@dataclass(frozen=True, slots=True)
class CounterRow:
    """One InfiniBand counter; `total_limit` is the limit of a single reading, None if only growth counts."""

    name: str
    sysfs_name: str
    total_limit: int | None
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of NCCL that is worth a remark; `cause` is empty for advice only."""

    variable: str
    concern: str
    value: re.Pattern[str]
    problem: str
    change: str
    cause: str
    confidence: float


@dataclass(frozen=True, slots=True)
class ExitRow:
    """One exit code of a process or container."""

    code: int
    signal: str
    meaning: str
    first_look: str
    cause: str


@dataclass(frozen=True, slots=True)
class NvlinkFault:
    """What one bit of an NVLink 5 error status (Xid 144 to 150) means."""

    xid: int
    units: tuple[str, ...]
    error_status: int
    resolution: str
    severity: str
    local_effect: str


@dataclass(frozen=True, slots=True)
class ClockReason:
    """One bit of the clocks event reasons; `cause` is empty for a harmless one."""

    bit: int
    name: str
    meaning: str
    cause: str


@dataclass(frozen=True, slots=True)
class DcgmIncident:
    """One incident code of DCGM's health checks and diagnostics; `cause` is empty if only the test failed."""

    code: int
    name: str
    older_name: str
    meaning: str
    cause: str
    action: str


def find_nvlink_fault(code: int, unit: str, status: int) -> NvlinkFault | None:
    """The row of an NVLink 5 Xid; drivers before R575 and later ones name some units differently."""
    rows = (row for row in _nvlink_faults() if row.xid == code and unit in row.units)
    return next((row for row in rows if row.error_status & status or row.error_status == ANY_STATUS), None)


@cache
def clock_reasons() -> tuple[ClockReason, ...]:
    return pack.load("throttle_reasons.csv", _clock_reason)


def find_dcgm_incident(name: str) -> DcgmIncident | None:
    """The row of a name such as DCGM_FR_PENDING_ROW_REMAP, or of a number such as 85."""
    return _incidents().get(name)


def find_sxid(code: int) -> SxidRow | None:
    return _sxids().get(code)


def find_completion(status: int) -> CompletionRow | None:
    return _completions().get(status)


def find_counter(name: str) -> CounterRow | None:
    """The row of a counter, by the name that perfquery prints or that its file in sysfs has."""
    return _counters().get(name)


def find_exit_code(code: int) -> ExitRow | None:
    """The row of an exit code; a negative code, as torchrun prints it, is a signal."""
    return _exits().get(128 - code if code < 0 else code)


@cache
def nccl_settings() -> tuple[SettingRow, ...]:
    return pack.load("nccl_settings.csv", _setting)


@cache
def _nvlink_faults() -> tuple[NvlinkFault, ...]:
    return pack.load("xid_nvlink5.csv", _nvlink_fault)


@cache
def _incidents() -> dict[str, DcgmIncident]:
    rows = pack.load("dcgm_incidents.csv", _incident)
    return {name: row for row in rows for name in (row.name, row.older_name, str(row.code)) if name}


@cache
def _sxids() -> dict[int, SxidRow]:
    return {row.code: row for row in pack.load("sxid.csv", _sxid)}


@cache
def _completions() -> dict[int, CompletionRow]:
    return {row.status: row for row in pack.load("ib_completion.csv", _completion)}


@cache
def _counters() -> dict[str, CounterRow]:
    rows = pack.load("ib_counters.csv", _counter)
    return {name: row for row in rows for name in (row.name, row.sysfs_name) if name}


@cache
def _exits() -> dict[int, ExitRow]:
    return {row.code: row for row in pack.load("exit_codes.csv", _exit)}


def _sxid(cells: Mapping[str, str]) -> SxidRow:
    fatal = {"fatal": True, "always_fatal": True, "potentially_fatal": None, "non_fatal": False, "notable": False}
    return SxidRow(
        code=int(cells["code"]),
        name=pack.required(cells["name"]),
        is_fatal=fatal.get(cells["fatality"]),
        severity=cells["severity"],
        action=cells["immediate_action"],
        needs_drain=cells["needs_drain"] == "yes",
        note=cells["note"],
        source=pack.required(cells["source"]),
    )


def _completion(cells: Mapping[str, str]) -> CompletionRow:
    return CompletionRow(
        status=int(cells["status"]),
        name=pack.required(cells["name"]),
        meaning=pack.required(cells["meaning"]),
        cause=pack.required(cells["cause"]),
        confidence=float(cells["confidence"]),
    )


def _counter(cells: Mapping[str, str]) -> CounterRow:
    limit = cells["total_limit"]
    return CounterRow(
        name=cells["name"],
        sysfs_name=cells["sysfs_name"] or cells["hw_counter"],
        total_limit=int(limit) if limit else None,
        meaning=cells["meaning"],
        action=cells["action"],
    )


def _setting(cells: Mapping[str, str]) -> SettingRow:
    return SettingRow(
        variable=pack.required(cells["variable"]),
        concern=pack.choice(cells["concern"], frozenset({"rdma", "tuning", "gid", "dead_name"})),
        value=re.compile(cells["value_pattern"]),
        problem=pack.required(cells["problem"]),
        change=pack.required(cells["change"]),
        cause=cells["cause"],
        confidence=float(cells["confidence"]),
    )


def _exit(cells: Mapping[str, str]) -> ExitRow:
    return ExitRow(
        int(cells["code"]), cells["signal"], pack.required(cells["meaning"]), cells["first_look"], cells["cause"]
    )


def _nvlink_fault(cells: Mapping[str, str]) -> NvlinkFault:
    status = cells["error_status"]
    return NvlinkFault(
        xid=int(cells["xid"]),
        units=tuple(cells["unit"].split("/")),
        # `0x00000000/0xFFFFFFFF` stands for any status.
        error_status=int(status.split("/")[-1], 16) if status.startswith("0x") else 0,
        resolution=cells["resolution"],
        severity=cells["severity"],
        local_effect=cells["local_effect"],
    )


def _clock_reason(cells: Mapping[str, str]) -> ClockReason:
    return ClockReason(
        BITS[pack.choice(cells["label"], frozenset(BITS))],
        name=pack.required(cells["name"]),
        meaning=pack.required(cells["meaning"]),
        cause=cells["cause"],
    )


def _incident(cells: Mapping[str, str]) -> DcgmIncident:
    return DcgmIncident(
        code=int(cells["code"]),
        name=pack.required(cells["name"]),
        older_name=cells["older_name"],
        meaning=pack.required(cells["meaning"]),
        cause=cells["cause"],
        action=pack.required(cells["action"]),
    )
