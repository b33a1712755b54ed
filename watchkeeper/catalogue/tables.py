"""Small tables of the doctor and of `explain`: SXid codes, completion errors, counters, settings, exit codes.

Each function reads its file in packs/ once. A code without a row is None: it is undocumented.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

from watchkeeper.catalogue import pack
from watchkeeper.model.clock_reasons import BITS

ANY_STATUS = 0xFFFFFFFF
FATALITIES = {"fatal": True, "always_fatal": True, "non_fatal": False, "notable": False}
FOLDERS = frozenset({"counters", "hw_counters"})


@dataclass(frozen=True, slots=True)
class SxidRow:
    """One error of an NVSwitch; `is_fatal` is None and `severity` empty if the log line decides."""

    code: int = pack.cell(int)
    name: str = pack.cell(pack.required)
    is_fatal: bool | None = pack.cell(FATALITIES.get, "fatality")
    severity: str = pack.cell()
    action: str = pack.cell(column="immediate_action")
    needs_drain: bool = pack.cell(lambda text: text == "yes")
    note: str = pack.cell()
    source: str = pack.cell(pack.required)


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """One ibv_wc_status."""

    status: int = pack.cell(int)
    name: str = pack.cell(pack.required)
    meaning: str = pack.cell(pack.required)
    cause: str = pack.cell(pack.required)
    confidence: float = pack.cell(float)


@dataclass(frozen=True, slots=True)
class CounterRow:
    """One InfiniBand counter; `total_limit` is the limit of a single reading, None if only growth counts."""

    name: str
    sysfs_name: str
    total_limit: int | None
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class CounterFamily:
    """How a counter file of an InfiniBand port becomes a metric, with node_exporter's name where it has one."""

    folder: str = pack.cell(partial(pack.choice, choices=FOLDERS))
    file: str = pack.cell(pack.required)
    name: str = pack.cell(pack.required, "family")
    scale: int = pack.cell(int)
    # The width of the counter in PortCounters, at whose maximum it stops; None for a 64-bit counter.
    basic_bits: int | None = pack.cell(pack.optional(int))
    help: str = pack.cell(pack.required)

    @property
    def basic_maximum(self) -> int | None:
        return None if self.basic_bits is None else (1 << self.basic_bits) - 1


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of NCCL that is worth a remark; `cause` is empty for advice only."""

    variable: str = pack.cell(pack.required)
    value: re.Pattern[str] = pack.cell(re.compile, "value_pattern")
    problem: str = pack.cell(pack.required)
    change: str = pack.cell(pack.required)
    cause: str = pack.cell()
    confidence: float = pack.cell(float)


@dataclass(frozen=True, slots=True)
class ExitRow:
    code: int = pack.cell(int)
    signal: str = pack.cell()
    meaning: str = pack.cell(pack.required)
    cause: str = pack.cell()


@dataclass(frozen=True, slots=True)
class ImageRow:
    """Container images, by a pattern of their names, and whether their programs need a GPU."""

    image: re.Pattern[str] = pack.cell(re.compile)
    uses_gpu: bool = pack.cell(pack.yes_or_no)
    meaning: str = pack.cell(pack.required)


@dataclass(frozen=True, slots=True)
class NvlinkFault:
    """What one bit of an NVLink 5 error status (Xid 144 to 150) means."""

    xid: int = pack.cell(int)
    units: tuple[str, ...] = pack.cell(lambda text: tuple(text.split("/")), "unit")
    # `0x00000000/0xFFFFFFFF` stands for any status.
    error_status: int = pack.cell(lambda text: int(text.split("/")[-1], 16) if text.startswith("0x") else 0)
    resolution: str = pack.cell()
    severity: str = pack.cell()
    local_effect: str = pack.cell()


@dataclass(frozen=True, slots=True)
class ClockReason:
    """One bit of the clocks event reasons; `cause` is empty for a harmless one."""

    bit: int = pack.cell(lambda text: BITS[pack.choice(text, frozenset(BITS))], "label")
    name: str = pack.cell(pack.required)
    meaning: str = pack.cell(pack.required)
    cause: str = pack.cell()


@dataclass(frozen=True, slots=True)
class DcgmIncident:
    """One incident code of DCGM's health checks and diagnostics; `cause` is empty if only the test failed."""

    code: int = pack.cell(int)
    name: str = pack.cell(pack.required)
    older_name: str = pack.cell()
    meaning: str = pack.cell(pack.required)
    cause: str = pack.cell()
    action: str = pack.cell(pack.required)


@dataclass(frozen=True, slots=True)
class RecoveryAction:
    """One recovery action that the driver requests; `text` is empty if no released driver prints the value yet."""

    value: int = pack.cell(int)
    text: str = pack.cell()
    action: str = pack.cell(pack.required, "immediate_action")
    needs_drain: bool = pack.cell(pack.yes_or_no)
    meaning: str = pack.cell(pack.required)
    source: str = pack.cell(pack.required)


def find_nvlink_fault(code: int, unit: str, status: int) -> NvlinkFault | None:
    """The row of an NVLink 5 Xid; drivers before R575 and later ones name some units differently."""
    rows = (row for row in _nvlink_faults() if row.xid == code and unit in row.units)
    return next((row for row in rows if row.error_status & status or row.error_status == ANY_STATUS), None)


@cache
def clock_reasons() -> tuple[ClockReason, ...]:
    return pack.load("throttle_reasons.csv", pack.row_reader(ClockReason))


def find_dcgm_incident(name: str) -> DcgmIncident | None:
    """The row of a name such as DCGM_FR_PENDING_ROW_REMAP, or of a number such as 85."""
    return _incidents().get(name)


@cache
def _recovery_actions() -> dict[str, RecoveryAction]:
    return {row.text.lower(): row for row in pack.load("xid154.csv", pack.row_reader(RecoveryAction)) if row.text}


def find_recovery_action(text: str) -> RecoveryAction | None:
    """The row of a kernel line `... GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`."""
    return _recovery_actions().get(text.strip().lower())


def find_sxid(code: int) -> SxidRow | None:
    return _sxids().get(code)


def find_completion(status: int) -> CompletionRow | None:
    return _completions().get(status)


def find_counter(name: str) -> CounterRow | None:
    """The row of a counter, by the name that perfquery or ibdiagnet prints or that its file in sysfs has."""
    return _counters().get(name) or _counters().get(_plain_counter_name(name))


def _plain_counter_name(name: str) -> str:
    """The part of a counter's name that all tools share: link_down_counter and LinkDownedCounter are linkdown."""
    return re.sub(r"(?:ed|s)$", "", re.sub(r"_|counter|errors?|extended|overrun", "", name.lower()))


@cache
def counter_families() -> Mapping[tuple[str, str], CounterFamily]:
    """By folder and file."""
    return {(row.folder, row.file): row for row in pack.load("infiniband_families.csv", pack.row_reader(CounterFamily))}


@cache
def counter_maximum(counter: str) -> int | None:
    """The value at which a counter of perfquery stops; None if it has no limit or the limit is unknown."""
    row = find_counter(counter)
    family = None if row is None else counter_families().get(("counters", row.sysfs_name))
    return None if family is None else family.basic_maximum


def find_exit_code(code: int) -> ExitRow | None:
    """The row of an exit code; a negative code, as torchrun prints it, is a signal."""
    return _exits().get(128 - code if code < 0 else code)


def find_image(image: str) -> ImageRow | None:
    """The first row that matches the name of a container image."""
    return next((row for row in _images() if row.image.search(image)), None)


@cache
def _images() -> tuple[ImageRow, ...]:
    return pack.load("gpu_images.csv", pack.row_reader(ImageRow))


@cache
def nccl_settings() -> tuple[SettingRow, ...]:
    return pack.load("nccl_settings.csv", pack.row_reader(SettingRow))


@cache
def _nvlink_faults() -> tuple[NvlinkFault, ...]:
    return pack.load("xid_nvlink5.csv", pack.row_reader(NvlinkFault))


@cache
def _incidents() -> dict[str, DcgmIncident]:
    rows = pack.load("dcgm_incidents.csv", pack.row_reader(DcgmIncident))
    return {name: row for row in rows for name in (row.name, row.older_name, str(row.code)) if name}


@cache
def _sxids() -> dict[int, SxidRow]:
    return {row.code: row for row in pack.load("sxid.csv", pack.row_reader(SxidRow))}


@cache
def _completions() -> dict[int, CompletionRow]:
    return {row.status: row for row in pack.load("ib_completion.csv", pack.row_reader(CompletionRow))}


@cache
def _counters() -> dict[str, CounterRow]:
    rows = pack.load("ib_counters.csv", _counter)
    names = {name: row for row in rows for name in (row.name, row.sysfs_name) if name}
    return {_plain_counter_name(name): row for name, row in names.items()} | names


@cache
def _exits() -> dict[int, ExitRow]:
    return {row.code: row for row in pack.load("exit_codes.csv", pack.row_reader(ExitRow))}


def _counter(cells: Mapping[str, str]) -> CounterRow:
    sysfs_name = cells["sysfs_name"] or cells["hw_counter"]
    limit = pack.optional(int)(cells["total_limit"])
    return CounterRow(cells["name"], sysfs_name, limit, cells["meaning"], cells["action"])
