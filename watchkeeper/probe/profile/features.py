"""Features of a segment of a recording, as shares of the ceilings of the GPU model.

A share is 1.0 at the ceiling, and None if the recording lacks the counter. `classify` decides only by these values;
`report` prints them as evidence.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from watchkeeper.catalogue.gpu_models import GpuModel
from watchkeeper.kit import wire
from watchkeeper.model import clock_reasons
from watchkeeper.probe.profile import columns
from watchkeeper.probe.profile.recording import GpuTrack, present_values
from watchkeeper.probe.profile.verdict import MIB_PER_GB, limits

# dram_bw_util / mem_copy_util was 0.68 to 0.89 in all workloads that were recorded on an H200.
MEMORY_PER_USED = 0.8
# In so many rows, one may be a spike, or two.
ONE_SPIKE_ROWS, TWO_SPIKE_ROWS = 5, 20


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Work and stops over time: `level` is the activity during work, `gaps` the number of visible stops."""

    mean: float
    level: float
    gaps: int
    longest_gap_seconds: float
    quiet_share: float
    # The mean without the one or two highest rows: a single spike is not work.
    steady_mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Features:
    """Shares from 0 to 1 unless the name has a unit; None if unknown."""

    samples: int
    seconds: float
    interval_seconds: float
    rhythm: Rhythm
    graphics: float | None = None
    is_graphics_estimated: bool = wire.json_key("graphics_is_guessed", default=False)
    sm: float | None = None
    # With work in most rows, a GPU is not idle, however little it is.
    sm_median: float | None = wire.json_key("sm_usual", default=None)
    occupancy: float | None = None
    tensor: float | None = None
    tensor_fp64: float | None = None
    dram: float | None = None
    is_dram_estimated: bool = wire.json_key("dram_is_guessed", default=False)
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
        """Whether GPM counters were recorded; without them `gpu_util` does not separate work from waiting."""
        return self.graphics is not None and self.sm is not None

    @property
    def pcie(self) -> float | None:
        rates = present_values((self.pcie_in, self.pcie_out))
        return max(rates) if rates else None


def measure_features(
    track: GpuTrack, model: GpuModel, *, idle_watts: float | None = None, full_track: GpuTrack | None = None
) -> Features:
    """`idle_watts` is the recorded idle power; `full_track` is the segment with its start-up, for counting stops."""
    times = track.times
    interval = statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0
    pcie_in, pcie_out = (_pcie_mib(track, direction) for direction in ("rx", "tx"))
    ceiling = model.pcie_gb_per_second * limits()["pcie_practical"] * MIB_PER_GB
    idle_power = model.idle_watts if idle_watts is None else idle_watts
    power, clock = _mean(track, "power_w"), _mean(track, "sm_clock")
    power_over_idle = None if power is None else (power - idle_power) / max(1.0, model.tdp_watts - idle_power)
    nvlink = [rate for way in ("rx", "tx") if (rate := _mean(track, f"nvlink_total_{way}_per_sec")) is not None]
    nvlink_mib = None if model.nvlink_gb_per_second is None else model.nvlink_gb_per_second / 2 * MIB_PER_GB
    sm_values = present_values(track.numbers.get("sm_util", ()))
    network = present_values((_mean(track, "net_rx_kbs"), _mean(track, "net_tx_kbs")))
    return Features(
        samples=len(track),
        seconds=times[-1] - times[0] + interval if times else 0.0,
        interval_seconds=interval,
        rhythm=_measure_rhythm(track, full_track or track, ceiling),
        graphics=_kernel_share(track, present_values((pcie_in, pcie_out)), ceiling),
        is_graphics_estimated=not track.has("graphics_util"),
        sm=_share(track, "sm_util"),
        sm_median=statistics.median(sm_values) / 100 if sm_values else None,
        occupancy=_share(track, "sm_occupancy"),
        tensor=_tensor_share(track),
        tensor_fp64=_share(track, "dfma_tensor_util"),
        dram=_dram_share(track),
        is_dram_estimated=not track.has("dram_bw_util"),
        fp16=_share(track, "fp16_util"),
        fp32=_share(track, "fp32_util"),
        fp64=_share(track, "fp64_util"),
        integer=_share(track, "integer_util"),
        pcie_in=None if pcie_in is None else pcie_in / ceiling,
        pcie_out=None if pcie_out is None else pcie_out / ceiling,
        pcie_in_mib=pcie_in,
        pcie_out_mib=pcie_out,
        nvlink=max(nvlink) / nvlink_mib if nvlink and nvlink_mib else None,
        gpu_util=_share(track, "gpu_util") if track.has("gpu_util") else _share(track, "graphics_util"),
        mem_copy=_share(track, "mem_copy_util"),
        power_watts=power,
        power_over_idle=power_over_idle,
        power_capped=_mask_share(track, clock_reasons.POWER_CAP | clock_reasons.POWER_BRAKE),
        thermally_slowed=_mask_share(track, clock_reasons.THERMAL),
        sm_clock=clock,
        sm_clock_share=None if clock is None else clock / model.max_sm_mhz,
        network_gb=max(network) * 1024 / 1e9 if network else None,
        cpu_cores=_mean(track, "cpu_cores"),
        busiest_thread=_mean(track, "busiest_thread"),
        disk_wait=_mean(track, "disk_wait"),
    )


def activity(track: GpuTrack, ceiling: float) -> list[float | None]:
    """For each row the share of time with a kernel or a copy; `ceiling` is the PCIe rate in MiB/s."""
    kernels = track.numbers.get("graphics_util") if track.has("graphics_util") else track.numbers.get("sm_util")
    # The last choice: it reads 99 % during copies and has its own averaging window.
    if kernels is None or not any(value is not None for value in kernels):
        return [None if value is None else value / 100 for value in track.numbers.get("gpu_util", ())]
    no_values: Sequence[float | None] = [None] * len(track)
    received, sent = (track.numbers.get(f"pcie_{way}_per_sec", no_values) for way in ("rx", "tx"))
    copies = [max(into or 0.0, out or 0.0) / ceiling for into, out in zip(received, sent, strict=True)]
    return [
        None if kernel is None else min(1.0, max(kernel / 100, copy))
        for kernel, copy in zip(kernels, copies, strict=True)
    ]


def _measure_rhythm(track: GpuTrack, full_track: GpuTrack, ceiling: float) -> Rhythm:
    """Measure level and quiet share of `track`, and count the stops of `full_track`."""
    known_rows = _known_activity(track, ceiling)
    if not known_rows:
        return Rhythm(0.0, 0.0, 0, 0.0, 0.0)
    values = sorted((value for _, value in known_rows), reverse=True)
    # The mean of the highest values: bursts may be rare, and a single row is not a level.
    level = statistics.fmean(values[: max(2, len(values) // 20)])
    # Idle GPUs show 0.006 %; a tenth of the level counts as work.
    quiet = max(0.003, 0.1 * level)
    stops, all_stops = _stop_seconds(known_rows, quiet), _stop_seconds(_known_activity(full_track, ceiling), quiet)
    share = min(1.0, sum(stops) / max(1e-9, known_rows[-1][0] - known_rows[0][0]))
    steady = values[(len(values) >= ONE_SPIKE_ROWS) + (len(values) >= TWO_SPIKE_ROWS) :]
    longest = max(all_stops, default=0.0)
    return Rhythm(statistics.fmean(values), level, len(all_stops), longest, share, statistics.fmean(steady))


def _known_activity(track: GpuTrack, ceiling: float) -> list[tuple[float, float]]:
    """Time and activity of the rows with known activity; other rows neither start nor end a stop."""
    return [(at, value) for at, value in zip(track.times, activity(track, ceiling), strict=False) if value is not None]


def _stop_seconds(known_rows: Sequence[tuple[float, float]], quiet: float) -> list[float]:
    """Seconds of each visible stop; time before the first work is no stop."""
    stops: list[float] = []
    since: float | None = None
    has_started = False
    for at, value in known_rows:
        if value < quiet:
            since = at if since is None and has_started else since
            continue
        if since is not None:
            stops.append(at - since)
        since, has_started = None, True
    if since is not None:
        stops.append(known_rows[-1][0] - since)
    # Allow for a few milliseconds of jitter.
    return [stop for stop in stops if stop >= 0.95 * limits()["gap_seconds"]]


def _pcie_mib(track: GpuTrack, direction: str) -> float | None:
    """MiB/s over PCIe, from GPM, else from NVML, which samples only 20 ms now and then."""
    rate = _mean(track, f"pcie_{direction}_per_sec")
    if rate is None and (kib := _mean(track, f"pcie_{direction}_kbs")) is not None:
        rate = kib / columns.KIB_PER_MIB
    return rate


def _mean(track: GpuTrack, column: str) -> float | None:
    values = present_values(track.numbers.get(column, ()))
    return statistics.fmean(values) if values else None


def _share(track: GpuTrack, column: str) -> float | None:
    mean = _mean(track, column)
    return None if mean is None else mean / 100


def _kernel_share(track: GpuTrack, copies_mib: Sequence[float], ceiling: float) -> float | None:
    """The share of time with a kernel; without `graphics_util`, estimated from `gpu_util` if there are no copies."""
    graphics, sm, gpu_util = (_share(track, name) for name in ("graphics_util", "sm_util", "gpu_util"))
    if graphics is not None or sm is None:
        return graphics
    has_copies = max(copies_mib, default=ceiling) / ceiling >= limits()["pcie_alone"]
    return sm if gpu_util is None or has_copies else max(sm, gpu_util)


def _tensor_share(track: GpuTrack) -> float | None:
    """The share of tensor work, or the sum of its kinds if only those were recorded."""
    kinds = present_values(_share(track, f"{kind}_tensor_util") for kind in ("hmma", "imma", "dfma"))
    total = _share(track, "any_tensor_util")
    return total if total is not None else sum(kinds) if kinds else None


def _dram_share(track: GpuTrack) -> float | None:
    """The share of memory bandwidth; without GPM, estimated from the share of time in which memory was used."""
    share, memory_used = _share(track, "dram_bw_util"), _share(track, "mem_copy_util")
    return share if share is not None else None if memory_used is None else MEMORY_PER_USED * memory_used


def _mask_share(track: GpuTrack, mask: int) -> float | None:
    values = present_values(track.numbers.get("throttle", ()))
    return sum(bool(int(value) & mask) for value in values) / len(values) if values else None
