"""What a stretch of a recording looks like, as shares of what the GPU could do.

A share is 1.0 at the ceiling of the GPU model, and None where the recording does not have the counter. `rhythm` is how
the activity comes and goes. `classify` decides by these values alone; `report` prints them as evidence.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from watchkeeper.model import clock_reasons
from watchkeeper.probe.profile import columns
from watchkeeper.probe.profile.limits import MIB_PER_GB, GpuCeilings, limits
from watchkeeper.probe.profile.recording import GpuTrack, present_values

# dram_bw_util over mem_copy_util was 0.68 to 0.89 in every workload that was recorded on an H200.
MEMORY_PER_USED = 0.8


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How activity comes and goes: `level` is what it reaches when it is there, `gaps` are stops that can be seen."""

    mean: float
    level: float
    gaps: int
    longest_gap_seconds: float
    quiet_share: float


@dataclass(frozen=True, slots=True)
class Features:
    """Shares from 0 to 1 unless the name has a unit; None is unknown."""

    samples: int
    seconds: float
    interval_seconds: float
    rhythm: Rhythm
    graphics: float | None = None
    graphics_is_guessed: bool = False
    sm: float | None = None
    # The median of the rows: work that comes in each of them is no idle GPU, however small it is.
    sm_usual: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    tensor_fp64: float | None = None
    dram: float | None = None
    dram_is_guessed: bool = False
    fp16: float | None = None
    fp32: float | None = None
    fp64: float | None = None
    integer: float | None = None
    pcie_in: float | None = None
    pcie_out: float | None = None
    pcie_in_mib: float | None = None
    pcie_out_mib: float | None = None
    nvlink: float | None = None
    gpu_util: float | None = None
    mem_copy: float | None = None
    power_watts: float | None = None
    power_over_idle: float | None = None
    power_capped: float | None = None
    thermally_slowed: float | None = None
    sm_clock: float | None = None
    sm_clock_share: float | None = None
    network_gb: float | None = None
    cpu_cores: float | None = None
    busiest_thread: float | None = None
    disk_wait: float | None = None

    @property
    def is_profiled(self) -> bool:
        """Whether GPM's counters are there, without which `gpu_util` cannot tell work from waiting."""
        return self.graphics is not None and self.sm is not None

    @property
    def pcie(self) -> float | None:
        both = present_values((self.pcie_in, self.pcie_out))
        return max(both) if both else None


def measure(
    track: GpuTrack, model: GpuCeilings, *, idle_watts: float | None = None, whole: GpuTrack | None = None
) -> Features:
    """The features of a stretch; `idle_watts` is what this GPU drew when it did nothing, if that was seen.

    `whole` is the stretch with its start-up, where more stops can be counted.
    """
    times = track.times
    interval = statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0
    pcie_in, pcie_out = (_pcie_mib(track, way) for way in ("rx", "tx"))
    ceiling = model.pcie_gb_per_second * limits()["pcie_practical"] * MIB_PER_GB
    floor = model.idle_watts if idle_watts is None else idle_watts
    power, clock = _mean(track, "power_w"), _mean(track, "sm_clock")
    over = None if power is None else (power - floor) / max(1.0, model.power_watts - floor)
    nvlink = [rate for way in ("rx", "tx") if (rate := _mean(track, f"nvlink_total_{way}_per_sec")) is not None]
    one_way = None if model.nvlink_gb_per_second is None else model.nvlink_gb_per_second / 2 * MIB_PER_GB
    network = present_values((_mean(track, "net_rx_kbs"), _mean(track, "net_tx_kbs")))
    return Features(
        samples=len(track),
        seconds=times[-1] - times[0] + interval if times else 0.0,
        interval_seconds=interval,
        rhythm=_rhythm(track, whole or track, ceiling),
        graphics=_kernels(track, present_values((pcie_in, pcie_out)), ceiling),
        graphics_is_guessed=not track.has("graphics_util"),
        sm=_share(track, "sm_util"),
        sm_usual=_median(track, "sm_util"),
        occupancy=_share(track, "sm_occupancy"),
        tensor=_tensor(track),
        tensor_fp64=_share(track, "dfma_tensor_util"),
        dram=_dram(track),
        dram_is_guessed=not track.has("dram_bw_util"),
        fp16=_share(track, "fp16_util"),
        fp32=_share(track, "fp32_util"),
        fp64=_share(track, "fp64_util"),
        integer=_share(track, "integer_util"),
        pcie_in=None if pcie_in is None else pcie_in / ceiling,
        pcie_out=None if pcie_out is None else pcie_out / ceiling,
        pcie_in_mib=pcie_in,
        pcie_out_mib=pcie_out,
        nvlink=max(nvlink) / one_way if nvlink and one_way else None,
        gpu_util=_share(track, "gpu_util") if track.has("gpu_util") else _share(track, "graphics_util"),
        mem_copy=_share(track, "mem_copy_util"),
        power_watts=power,
        power_over_idle=over,
        power_capped=_bits(track, clock_reasons.POWER_CAP | clock_reasons.POWER_BRAKE),
        thermally_slowed=_bits(track, clock_reasons.THERMAL),
        sm_clock=clock,
        sm_clock_share=None if clock is None else clock / model.max_sm_mhz,
        network_gb=max(network) * 1024 / 1e9 if network else None,
        cpu_cores=_mean(track, "cpu_cores"),
        busiest_thread=_mean(track, "busiest_thread"),
        disk_wait=_mean(track, "disk_wait"),
    )


def activity(track: GpuTrack, ceiling: float) -> list[float | None]:
    """For each row the share of time in which a kernel or a copy was running; `ceiling` is PCIe's in MiB/s.

    `gpu_util` is the last resort: it reads 99 % during copies, and averages over its own window.
    """
    kernels = track.numbers.get("graphics_util") if track.has("graphics_util") else track.numbers.get("sm_util")
    if kernels is None or not any(value is not None for value in kernels):
        return [None if value is None else value / 100 for value in track.numbers.get("gpu_util", ())]
    nothing: Sequence[float | None] = [None] * len(track)
    received, sent = (track.numbers.get(f"pcie_{way}_per_sec", nothing) for way in ("rx", "tx"))
    return [
        None if kernel is None else min(1.0, max(kernel / 100, (into or 0.0) / ceiling, (out or 0.0) / ceiling))
        for kernel, into, out in zip(kernels, received, sent, strict=True)
    ]


def _rhythm(track: GpuTrack, whole: GpuTrack, ceiling: float) -> Rhythm:
    """Level and share of what is judged; stops are counted over the whole stretch."""
    present = _present(track, ceiling)
    if not present:
        return Rhythm(0.0, 0.0, 0, 0.0, 0.0)
    values = sorted((value for _, value in present), reverse=True)
    # The few highest: bursts may be rare, and one odd row is not a level.
    level = statistics.fmean(values[: max(2, len(values) // 20)])
    # Idle GPUs show 0.006 %; a burst of a tenth of the level is one.
    quiet = max(0.003, 0.1 * level)
    judged, counted = _gaps(present, quiet), _gaps(_present(whole, ceiling), quiet)
    lasted = max(1e-9, present[-1][0] - present[0][0])
    share = min(1.0, sum(judged) / lasted)
    return Rhythm(statistics.fmean(values), level, len(counted), max(counted, default=0.0), share)


def _present(track: GpuTrack, ceiling: float) -> list[tuple[float, float]]:
    """Time and activity of the rows where it is known: an unknown row neither breaks a stop nor makes one."""
    levels = activity(track, ceiling)
    return [(at, value) for at, value in zip(track.times, levels, strict=False) if value is not None]


def _gaps(present: Sequence[tuple[float, float]], quiet: float) -> list[float]:
    """Seconds of each stop that is long enough to be seen; what comes before the first work is none."""
    gaps: list[float] = []
    since: float | None = None
    has_begun = False
    for at, value in present:
        if value < quiet:
            since = at if since is None and has_begun else since
            continue
        if since is not None:
            gaps.append(at - since)
        since, has_begun = None, True
    if since is not None:
        gaps.append(present[-1][0] - since)
    # A row more or less: times jitter by a few milliseconds.
    return [gap for gap in gaps if gap >= 0.95 * limits()["gap_seconds"]]


def _pcie_mib(track: GpuTrack, way: str) -> float | None:
    """MiB/s: GPM's rate covers all of the time; NVML's own looks at 20 ms now and then."""
    rate = _mean(track, f"pcie_{way}_per_sec")
    if rate is None and (kib := _mean(track, f"pcie_{way}_kbs")) is not None:
        rate = kib / columns.KIB_PER_MIB
    return rate


def _mean(track: GpuTrack, column: str) -> float | None:
    values = present_values(track.numbers.get(column, ()))
    return statistics.fmean(values) if values else None


def _share(track: GpuTrack, column: str) -> float | None:
    mean = _mean(track, column)
    return None if mean is None else mean / 100


def _median(track: GpuTrack, column: str) -> float | None:
    values = present_values(track.numbers.get(column, ()))
    return statistics.median(values) / 100 if values else None


def _kernels(track: GpuTrack, copies_mib: Sequence[float], ceiling: float) -> float | None:
    """In how much of the time a kernel ran; without GPM's word `gpu_util` says it where there are no copies."""
    share, sm, used = (_share(track, name) for name in ("graphics_util", "sm_util", "gpu_util"))
    if share is not None or sm is None:
        return share
    has_copies = max(copies_mib, default=ceiling) / ceiling >= limits()["pcie_alone"]
    return sm if used is None or has_copies else max(sm, used)


def _tensor(track: GpuTrack) -> float | None:
    """All tensor work, or the sum of its kinds where the recording has only those."""
    kinds = present_values(_share(track, f"{kind}_tensor_util") for kind in ("hmma", "imma", "dfma"))
    whole = _share(track, "any_tensor_util")
    return whole if whole is not None else sum(kinds) if kinds else None


def _dram(track: GpuTrack) -> float | None:
    """Memory's share; without GPM's counter from NVML's, which says in how much of the time memory was used at all."""
    share, used = _share(track, "dram_bw_util"), _share(track, "mem_copy_util")
    return share if share is not None else None if used is None else MEMORY_PER_USED * used


def _bits(track: GpuTrack, mask: int) -> float | None:
    values = present_values(track.numbers.get("throttle", ()))
    return sum(bool(int(value) & mask) for value in values) / len(values) if values else None
