"""The GPUs of this node, read row by row as a recording keeps them.

`recorder_child` opens one and asks for every GPU at each tick. Cheap numbers are read each time; what costs the driver
milliseconds (energy 4 ms, each PCIe direction 21 ms on an H200) once a second, and PCIe not at all where GPM gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from watchkeeper.probe.profile import columns
from watchkeeper.readers.nvml import calls, gpm, session

MIB = 2**20
# nvml.h: NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES.
SM_CLOCK, MEM_CLOCK, PCIE_TX, PCIE_RX = 1, 2, 0, 1


class ColumnSource(NamedTuple):
    """A column, and which part of the answer fills it."""

    column: str
    part: str = ""
    scale: float = 1


class NvmlRead(NamedTuple):
    """One NVML call of `readers.nvml.calls`, and the columns it fills."""

    call: str
    fills: tuple[ColumnSource, ...]
    argument: int | None = None


FAST = (
    NvmlRead("utilization", (ColumnSource("gpu_util", "gpu"), ColumnSource("mem_copy_util", "memory"))),
    NvmlRead("memory", (ColumnSource("fb_used_mib", "used", 1 / MIB),)),
    NvmlRead("temperature", (ColumnSource("temp"),)),
    NvmlRead("power", (ColumnSource("power_w", scale=0.001),)),
    NvmlRead("clock", (ColumnSource("sm_clock"),), SM_CLOCK),
    NvmlRead("clock", (ColumnSource("mem_clock"),), MEM_CLOCK),
    NvmlRead("clocks_event", (ColumnSource("throttle"),)),
)
SLOW = (NvmlRead("energy", (ColumnSource("energy_mj"),)),)
WITHOUT_GPM = (
    NvmlRead("pcie_throughput", (ColumnSource("pcie_tx_kbs"),), PCIE_TX),
    NvmlRead("pcie_throughput", (ColumnSource("pcie_rx_kbs"),), PCIE_RX),
)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What does not change while a recording lasts; None is what the driver does not tell."""

    index: int
    uuid: str
    model: str
    power_limit_w: float | None
    memory_mib: float | None
    has_gpm: bool
    why_no_gpm: str


class GpuReader:
    """One GPU. A call that it does not support is not made again."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._unsupported: set[NvmlRead] = set()
        self._ids = {number: name for name, number in columns.GPM.items()}
        self._gpm, why = self._open_gpm()
        self.facts = GpuFacts(
            index,
            _text(nvml.nvmlDeviceGetUUID(self._handle)),
            _text(nvml.nvmlDeviceGetName(self._handle)),
            self._once(NvmlRead("power_enforced", (ColumnSource("limit", scale=0.001),))),
            self._once(NvmlRead("memory", (ColumnSource("total", "total", 1 / MIB),))),
            self._gpm is not None,
            why,
        )

    def read(self, *, is_slow: bool) -> dict[str, float]:
        """The numbers of now; GPM's cover the time since the last call."""
        found: dict[str, float] = {}
        slow = SLOW if self._gpm is not None else (*SLOW, *WITHOUT_GPM)
        for ask in (*FAST, *slow) if is_slow else FAST:
            self._put(ask, found)
        if self._gpm is not None:
            # nsys, ncu and DCGM may take the counters away for a while; those cells stay empty.
            with suppress(self._nvml.NVMLError):
                found |= {self._ids[number]: value for number, value in self._gpm.read().items()}
        return found

    def pids(self) -> list[int]:
        """Programs with a context on this GPU; empty also where the driver does not tell."""
        try:
            return [entry.pid for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle)]
        except (self._nvml.NVMLError, AttributeError):
            return []

    def _open_gpm(self) -> tuple[gpm.Gpm | None, str]:
        try:
            if not gpm.is_supported(self._nvml, self._handle):
                return None, "this GPU has no GPM counters (they came with Hopper)"
            opened = gpm.Gpm(self._nvml, self._handle, sorted(self._ids))
            opened.read()
        except (self._nvml.NVMLError, AttributeError) as error:
            return None, f"GPM counters cannot be read: {error}"
        return opened, ""

    def _once(self, ask: NvmlRead) -> float | None:
        found: dict[str, float] = {}
        self._put(ask, found)
        return next(iter(found.values()), None)

    def _put(self, ask: NvmlRead, found: dict[str, float]) -> None:
        if ask in self._unsupported:
            return
        row = calls.CALLS[ask.call]
        try:
            if row.by_part is not None:
                assert ask.argument is not None
                answer: calls.Answer = row.by_part(self._nvml, self._handle, ask.argument)
            else:
                assert row.ask is not None
                answer = row.ask(self._nvml, self._handle)
        except (calls.Unsupported, AttributeError):
            self._unsupported.add(ask)
            return
        except self._nvml.NVMLError as error:
            if isinstance(error, self._nvml.NVMLError_NotSupported):
                self._unsupported.add(ask)
            return
        for fill in ask.fills:
            number = answer[fill.part] if isinstance(answer, Mapping) else answer
            found[fill.column] = number if fill.scale == 1 else round(number * fill.scale, 3)


class OpenedGpus(NamedTuple):
    """`lost` says by index what the driver said of a GPU that cannot be read."""

    gpus: list[GpuReader]
    lost: dict[int, str]


def open_gpus(chosen: Sequence[int] | None, opening: Callable[[int, Sequence[int]], None]) -> OpenedGpus:
    """NVML opened in this process, and its GPUs; NvmlBroken where there is none.

    `opening` hears each index, and all of them, before the driver is asked about it: that call may hang.
    """
    nvml = session.load()
    try:
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise session.NvmlBroken(str(error.value), str(error)) from error
    wanted = range(count) if chosen is None else [index for index in chosen if index < count]
    found = OpenedGpus([], {})
    for index in wanted:
        opening(index, wanted)
        try:
            found.gpus.append(GpuReader(nvml, index))
        except nvml.NVMLError as error:
            found.lost[index] = str(error)
    if found.lost and not found.gpus:
        raise session.NvmlBroken("GPU_IS_LOST", "; ".join(f"GPU {index}: {why}" for index, why in found.lost.items()))
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
