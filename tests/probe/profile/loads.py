"""Synthetic recordings of workloads with a known bottleneck.

A `Load` says how busy the units are during work, and how long work and pauses last. `record` averages this over the
sampling interval, as GPM does, so that the same load can be sampled ten times or once a second.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.probe.profile.recording import GpuTrack

STEP = 0.0025
IDLE_WATTS, LIMIT_WATTS = 126.0, 700.0
MIB_PER_GB = 1e9 / 2**20


@dataclass(frozen=True)
class Load:
    """Percent and MiB/s during work; zero during pauses."""

    truth: str
    on: Mapping[str, float] = field(default_factory=dict)
    on_seconds: float = 1.0
    off_seconds: float = 0.0
    watts: float = IDLE_WATTS
    throttle: float = 0.0


def _busy(sm: float, **units: float) -> dict[str, float]:
    return {"graphics_util": 99.0, "sm_util": sm, "pcie_rx_per_sec": 12.0, "pcie_tx_per_sec": 4.0, **units}


WIDE = _busy(95, any_tensor_util=85, dram_bw_util=18, mem_copy_util=24)
LOADS: Mapping[str, Load] = {
    "nothing": Load("idle", {"graphics_util": 0.006, "pcie_rx_per_sec": 1.0, "pcie_tx_per_sec": 1.3}),
    "products": Load("compute_bound", WIDE, watts=692, throttle=4),
    "fp32_products": Load(
        "compute_bound_no_tensor", _busy(96, fp32_util=74, dram_bw_util=4, mem_copy_util=5), watts=670
    ),
    "copies_on_the_gpu": Load("memory_bound", _busy(98, dram_bw_util=86, integer_util=8, mem_copy_util=100), watts=650),
    "pinned_copies": Load(
        "pcie_bound", {"pcie_rx_per_sec": 52_000, "pcie_tx_per_sec": 3_100, "copies": 98, "mem_copy_util": 2}, watts=134
    ),
    "kernels_that_read_the_host": Load("pcie_bound", _busy(99) | {"pcie_rx_per_sec": 46_000}, watts=150),
    "copies_behind_products": Load("mixed", WIDE | {"pcie_rx_per_sec": 55_000, "pcie_tx_per_sec": 3_300}, watts=692),
    "pageable_copies": Load(
        "pcie_bound", {"pcie_rx_per_sec": 13_000, "pcie_tx_per_sec": 780, "copies": 30, "mem_copy_util": 1}, watts=128
    ),
    "copies_into_fresh_memory": Load(
        "pcie_bound", {"pcie_rx_per_sec": 1.0, "pcie_tx_per_sec": 1_370, "copies": 6}, watts=130
    ),
    "tiny_kernels": Load(
        "launch_bound",
        {"graphics_util": 30, "sm_util": 8, "fp32_util": 2, "pcie_rx_per_sec": 180, "pcie_tx_per_sec": 19},
        watts=150,
    ),
    "tiny_kernels_that_fill_the_gpu": Load(
        "launch_bound",
        {"graphics_util": 40, "sm_util": 26, "fp32_util": 2, "pcie_rx_per_sec": 190, "pcie_tx_per_sec": 20},
        watts=165,
    ),
    "slow_loader": Load("data_starved", WIDE, on_seconds=0.01, off_seconds=0.09, watts=692),
    "checkpoints": Load("stalls_input_or_io", WIDE, on_seconds=1.0, off_seconds=0.8, watts=692),
    "few_requests": Load(
        "underutilized", _busy(30, any_tensor_util=2, dram_bw_util=1), on_seconds=0.0025, off_seconds=0.06, watts=150
    ),
    "one_product_each_5_ms": Load(
        "underutilized",
        {
            "graphics_util": 0.14,
            "sm_util": 0.1,
            "any_tensor_util": 0.04,
            "pcie_rx_per_sec": 1.5,
            "pcie_tx_per_sec": 1.3,
        },
        watts=128,
    ),
    "large_batches_for_a_small_model": Load(
        "data_starved",
        {"graphics_util": 0.9, "sm_util": 0.3, "dram_bw_util": 0.2, "pcie_rx_per_sec": 600, "pcie_tx_per_sec": 37},
        watts=130,
    ),
    "resnet_30_times_a_second": Load(
        "underutilized",
        {"graphics_util": 3.7, "sm_util": 1.0, "integer_util": 0.3, "pcie_rx_per_sec": 24, "pcie_tx_per_sec": 3.4},
        watts=128,
    ),
    "tiny_request_each_25_ms": Load("underutilized", {"graphics_util": 0.024, "sm_util": 0.006}, watts=130),
    "four_blocks": Load("underutilized", _busy(3, fp32_util=2.6), watts=133),
    "training": Load(
        "mixed", _busy(88, any_tensor_util=30, dram_bw_util=37, integer_util=25, mem_copy_util=48), watts=640
    ),
    "training_with_much_elementwise_work": Load(
        "mixed", _busy(81, any_tensor_util=23, dram_bw_util=49, integer_util=25, mem_copy_util=58), watts=640
    ),
    "all_reduce": Load(
        "comm_bound",
        _busy(18, dram_bw_util=12, nvlink_total_rx_per_sec=250 * MIB_PER_GB, nvlink_total_tx_per_sec=250 * MIB_PER_GB),
        watts=250,
    ),
}
UNITS = (
    *(
        "graphics_util",
        "sm_util",
        "any_tensor_util",
        "dram_bw_util",
        "fp32_util",
        "fp64_util",
        "fp16_util",
        "integer_util",
    ),
    *(
        "pcie_rx_per_sec",
        "pcie_tx_per_sec",
        "nvlink_total_rx_per_sec",
        "nvlink_total_tx_per_sec",
        "mem_copy_util",
        "copies",
    ),
)


def record(
    load: Load,
    *,
    seconds: float = 8.0,
    interval: float = 0.1,
    seed: int = 1,
    since: float = 0.0,
    label: str | None = None,
) -> GpuTrack:
    """Record the load for this time, with two percent of noise on every number."""
    chance = random.Random(seed)
    period = load.on_seconds + load.off_seconds
    numbers: dict[str, list[float | None]] = {}
    times = []
    for row in range(round(seconds / interval)):
        start = row * interval
        share = _on_share(start, start + interval, load=load, period=period)
        times.append(since + start + interval)
        values = {name: share * load.on.get(name, 0.0) * chance.gauss(1, 0.02) for name in UNITS}
        values["gpu_util"] = min(100.0, max(values["graphics_util"], values.pop("copies")))
        values["power_w"] = IDLE_WATTS + share * (load.watts - IDLE_WATTS) + chance.gauss(0, 1)
        values |= {
            "mem_clock": 3201.0,
            "sm_clock": 1980.0,
            "throttle": load.throttle,
            "fb_used_mib": 5000.0,
            "temp": 50.0,
        }
        for name, value in values.items():
            numbers.setdefault(name, []).append(min(value, 100.0) if name.endswith("_util") else value)
    return GpuTrack("0", times, numbers, None if label is None else [label] * len(times))


def _on_share(start: float, end: float, *, load: Load, period: float) -> float:
    if load.off_seconds == 0:
        return 1.0
    steps = max(1, round((end - start) / STEP))
    on = sum((start + (step + 0.5) * STEP) % period < load.on_seconds for step in range(steps))
    return on / steps


def joined(*tracks: GpuTrack) -> GpuTrack:
    """One track with the rows of all, in order."""
    names = {name for track in tracks for name in track.numbers}
    labels = [label for track in tracks for label in (track.labels or [""] * len(track))]
    return GpuTrack(
        "0",
        [at for track in tracks for at in track.times],
        {name: [value for track in tracks for value in track.numbers.get(name, [None] * len(track))] for name in names},
        labels if any(labels) else None,
    )


def without(track: GpuTrack, *columns: str) -> GpuTrack:
    kept = {name: values for name, values in track.numbers.items() if name not in columns}
    return GpuTrack(track.gpu, track.times, kept, track.labels)
