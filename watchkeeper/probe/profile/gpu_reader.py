"""Read one row of a recording from a GPU.

`recorder_child` opens a reader for each GPU and reads it at each tick. Slow calls (energy 4 ms, each PCIe direction
21 ms on an H200) run only once a second, and PCIe calls only without GPM.
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
    column: str
    part: str = ""
    scale: float = 1


class NvmlRead(NamedTuple):
    call: str
    sources: tuple[ColumnSource, ...]
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
    """Facts of a GPU that do not change during a recording; None if the driver does not report them."""

    index: int
    uuid: str
    model: str
    power_limit_w: float | None
    memory_mib: float | None
    has_gpm: bool
    why_no_gpm: str


class GpuReader:
    """Reads one GPU; unsupported calls are not repeated."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._unsupported: set[NvmlRead] = set()
        self._metric_names = {number: name for name, number in columns.GPM_METRICS.items()}
        self._gpm, reason = self._open_gpm()
        self.facts = GpuFacts(
            index,
            _text(nvml.nvmlDeviceGetUUID(self._handle)),
            _text(nvml.nvmlDeviceGetName(self._handle)),
            self._read_once(NvmlRead("power_enforced", (ColumnSource("limit", scale=0.001),))),
            self._read_once(NvmlRead("memory", (ColumnSource("total", "total", 1 / MIB),))),
            self._gpm is not None,
            reason,
        )

    def read(self, *, is_slow: bool) -> dict[str, float]:
        """The current values; those of GPM cover the time since the last call."""
        values: dict[str, float] = {}
        slow_reads = SLOW if self._gpm is not None else (*SLOW, *WITHOUT_GPM)
        for nvml_read in (*FAST, *slow_reads) if is_slow else FAST:
            self._read_into(nvml_read, values)
        if self._gpm is not None:
            # nsys, ncu and DCGM may use the counters for a while; those cells stay empty.
            with suppress(self._nvml.NVMLError):
                values |= {self._metric_names[number]: value for number, value in self._gpm.read().items()}
        return values

    def pids(self) -> list[int]:
        """Processes with a context on this GPU; also empty if the driver does not report them."""
        try:
            return [entry.pid for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle)]
        except (self._nvml.NVMLError, AttributeError):
            return []

    def _open_gpm(self) -> tuple[gpm.Gpm | None, str]:
        try:
            if not gpm.is_supported(self._nvml, self._handle):
                return None, "no GPM counters on this GPU (they need Hopper or later)"
            sampler = gpm.Gpm(self._nvml, self._handle, sorted(self._metric_names))
            sampler.read()
        except (self._nvml.NVMLError, AttributeError) as error:
            return None, f"GPM counters cannot be read: {error}"
        return sampler, ""

    def _read_once(self, nvml_read: NvmlRead) -> float | None:
        values: dict[str, float] = {}
        self._read_into(nvml_read, values)
        return next(iter(values.values()), None)

    def _read_into(self, nvml_read: NvmlRead, values: dict[str, float]) -> None:
        if nvml_read in self._unsupported:
            return
        call = calls.CALLS[nvml_read.call]
        try:
            if call.read_part is not None:
                assert nvml_read.argument is not None
                result: calls.Answer = call.read_part(self._nvml, self._handle, nvml_read.argument)
            else:
                assert call.read is not None
                result = call.read(self._nvml, self._handle)
        except (calls.Unsupported, AttributeError):
            self._unsupported.add(nvml_read)
            return
        except self._nvml.NVMLError as error:
            if isinstance(error, self._nvml.NVMLError_NotSupported):
                self._unsupported.add(nvml_read)
            return
        for source in nvml_read.sources:
            number = result[source.part] if isinstance(result, Mapping) else result
            values[source.column] = number if source.scale == 1 else round(number * source.scale, 3)


def open_gpus(
    indices: Sequence[int] | None, on_open: Callable[[int, Sequence[int]], None]
) -> tuple[list[GpuReader], dict[int, str]]:
    """Open NVML and its GPUs; returns their readers, and the driver's error for each index that cannot be read.

    `on_open` gets each index, and all indices, before its GPU is opened, because that call may hang.
    """
    nvml = session.load()
    try:
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise session.NvmlBroken(str(error.value), str(error)) from error
    present = range(count) if indices is None else [index for index in indices if index < count]
    gpus: list[GpuReader] = []
    lost: dict[int, str] = {}
    for index in present:
        on_open(index, present)
        try:
            gpus.append(GpuReader(nvml, index))
        except nvml.NVMLError as error:
            lost[index] = str(error)
    if lost and not gpus:
        raise session.NvmlBroken("GPU_IS_LOST", "; ".join(f"GPU {index}: {why}" for index, why in lost.items()))
    return gpus, lost


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
