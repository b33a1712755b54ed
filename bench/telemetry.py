"""Synthetic GPU telemetry for other benchmarks: some hours of a fleet, as matrices; by itself it prints its size.

Eight GPUs per node, 25 metrics each, a reading every 15 s, with labels and number formats of dcgm-exporter. The work of
a node changes rarely; temperature follows power. The same seed gives the same fleet.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from watchkeeper.model.labels import Labels

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
START_MS = 1_760_000_400_000
INTERVAL_MS = 15_000
# The interval of readings before the telemetry, which fill blocks.
PAST_INTERVAL_MS = 300_000
DAY_MS = 86_400_000
GPUS_PER_NODE = 8
TEAMS = 17
METRICS = (
    *("GPU_TEMP", "MEMORY_TEMP", "GPU_UTIL", "MEM_COPY_UTIL", "SM_CLOCK", "MEM_CLOCK", "ENC_UTIL", "DEC_UTIL"),
    *("FB_USED", "FB_FREE", "FB_RESERVED", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION", "PCIE_REPLAY_COUNTER"),
    *("XID_ERRORS", "ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_FAILURE"),
    "NVLINK_BANDWIDTH_TOTAL",
    *("GR_ENGINE_ACTIVE", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "PCIE_RX_BYTES"),
)
PROFILED = frozenset(METRICS[-5:])
# Shares of idle, training, inference and stalled nodes, with their utilisation and power.
STATE_SHARES = (0.15, 0.60, 0.20, 0.05)
BUSY = np.array([0.0, 0.97, 0.55, 1.0])
WATTS = np.array([75.0, 640.0, 380.0, 190.0])


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A fleet with its readings; all readings of a node have the times `times_ms(node)`."""

    gpus: int = 1000
    slots: int = 480
    seed: int = 1

    @property
    def nodes(self) -> int:
        return -(-self.gpus // GPUS_PER_NODE)

    @property
    def samples(self) -> int:
        return self.gpus * self.slots * len(METRICS)

    @property
    def end_ms(self) -> int:
        """A time after the last reading at an offset of no node, so that no sample is at the edge of a window."""
        used_offsets = {int(self.times_ms(node)[0]) % INTERVAL_MS for node in range(self.nodes)}
        free_offset = next(offset for offset in reversed(range(INTERVAL_MS)) if offset not in used_offsets)
        return START_MS + (self.slots - 1) * INTERVAL_MS + free_offset + INTERVAL_MS

    def gpus_of(self, node: int) -> range:
        return range(node * GPUS_PER_NODE, min(self.gpus, (node + 1) * GPUS_PER_NODE))

    def times_ms(self, node: int) -> npt.NDArray[np.int64]:
        offset = node * 7919 % INTERVAL_MS
        return START_MS + offset + INTERVAL_MS * np.arange(self.slots, dtype=np.int64)

    def labels(self, metric: str, gpu: int) -> Labels:
        node, index = divmod(gpu, GPUS_PER_NODE)
        team = node * 7 % TEAMS
        return Labels(
            {
                "__name__": metric_name(metric),
                "gpu": str(index),
                "UUID": f"GPU-{gpu * 2654435761 % 2**32:08x}-{gpu:04x}-4a1b-9c3d-{gpu * 40503 % 2**48:012x}",
                "pci_bus_id": f"00000000:{16 + 21 * index:02X}:00.0",
                "device": f"nvidia{index}",
                "modelName": "NVIDIA H200",
                "Hostname": f"gpu-{node:04d}",
                "DCGM_FI_DRIVER_VERSION": "570.133.20",
                "namespace": f"team-{team:02d}",
                "pod": f"train-{node // 4:03d}-{index}",
                "container": "main",
            }
        )

    def metrics(self) -> Iterator[tuple[str, Floats]]:
        """Each metric with its readings as GPU × slot; some depend on others, so all are generated together."""
        rng = np.random.default_rng(self.seed)
        shape = (self.gpus, self.slots)
        state = self._states(rng)
        busy = BUSY[state]
        watts = np.round(WATTS[state] + rng.normal(0, 6, shape), 3)
        yield "POWER_USAGE", watts
        gpu_celsius = _follow_with_delay(28 + watts * 0.075, seconds=60)
        yield "GPU_TEMP", np.rint(gpu_celsius + rng.normal(0, 0.3, shape))
        yield "MEMORY_TEMP", np.rint(gpu_celsius + 8 + rng.normal(0, 0.3, shape))
        energy = rng.integers(10**9, 10**11, (self.gpus, 1)) + np.cumsum(np.rint(watts * 15_000), axis=1)
        yield "TOTAL_ENERGY_CONSUMPTION", energy
        yield "GPU_UTIL", np.clip(np.rint(100 * busy + rng.normal(0, 1.5, shape) * (busy > 0)), 0, 100)
        yield "MEM_COPY_UTIL", np.clip(np.rint(55 * busy + rng.normal(0, 2, shape) * (busy > 0)), 0, 100)
        yield "SM_CLOCK", np.where(state == 0, 345.0, 1980.0 - 15 * rng.integers(0, 3, shape))
        used = np.rint(np.where(state == 0, 4, 60_000 + 2_000 * busy) + (self._level(rng) % 64))
        yield "FB_USED", used
        yield "FB_FREE", 143_000 - used
        for metric in ("GR_ENGINE_ACTIVE", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"):
            level = np.where(state == 3, 0.02, busy * rng.uniform(0.4, 0.98))
            yield metric, np.round(np.clip(level + rng.normal(0, 0.02, shape) * (busy > 0), 0, 1), 6)
        yield "PCIE_RX_BYTES", np.rint(1e9 * busy + rng.normal(0, 1e7, shape) * (busy > 0)).clip(0)
        yield "NVLINK_BANDWIDTH_TOTAL", np.rint(2e5 * busy + rng.normal(0, 500, shape) * (busy > 0)).clip(0)
        yield from self._constants(rng)

    def _constants(self, rng: np.random.Generator) -> Iterator[tuple[str, Floats]]:
        zeros = np.zeros((self.gpus, self.slots))
        for metric, level in (("MEM_CLOCK", 3201.0), ("ENC_UTIL", 0.0), ("DEC_UTIL", 0.0), ("FB_RESERVED", 771.0)):
            yield metric, zeros + level
        for metric in ("PCIE_REPLAY_COUNTER", "ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL"):
            yield metric, np.cumsum(rng.random(zeros.shape) < 1e-5, axis=1).astype(np.float64)
        for metric in ("UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_FAILURE"):
            yield metric, zeros
        yield "XID_ERRORS", zeros + np.where(rng.random((self.gpus, 1)) < 0.004, 79.0, 0.0)

    def _states(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """The state of each GPU's node in each slot, which changes about every two hours."""
        candidates = rng.choice(len(STATE_SHARES), p=STATE_SHARES, size=(self.nodes, self.slots))
        switches = rng.random((self.nodes, self.slots)) < 1 / 480
        switches[:, 0] = True
        switched_at = np.maximum.accumulate(np.where(switches, np.arange(self.slots), 0), axis=1)
        states = np.take_along_axis(candidates, switched_at, axis=1)
        return np.asarray(np.repeat(states, GPUS_PER_NODE, axis=0)[: self.gpus], dtype=np.int64)

    def _level(self, rng: np.random.Generator) -> Floats:
        return np.repeat(rng.integers(0, 4096, (self.gpus, 1)), self.slots, axis=1).astype(np.float64)


def _follow_with_delay(goal: Floats, *, seconds: float) -> Floats:
    """Values that follow `goal` with a time constant, as temperature follows power."""
    share = 1 - np.exp(-INTERVAL_MS / 1000 / seconds)
    values = np.empty_like(goal)
    level = goal[:, 0]
    for slot in range(goal.shape[1]):
        level = level + (goal[:, slot] - level) * share
        values[:, slot] = level
    return values


def past_ms(days: int) -> range:
    """Times of sparse readings for this number of days before the telemetry."""
    return range(START_MS - days * DAY_MS, START_MS, PAST_INTERVAL_MS)


def metric_name(metric: str) -> str:
    return f"DCGM_FI_{'PROF' if metric in PROFILED else 'DEV'}_{metric}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1000, help="size of the fleet")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")


def measure(options: argparse.Namespace) -> dict[str, float]:
    fleet = Telemetry(options.gpus, options.slots)
    cpu_before = time.process_time()
    changed = sum(int(np.count_nonzero(np.diff(values, axis=1))) for _, values in fleet.metrics())
    return {
        "samples": fleet.samples,
        "changed_share": round(changed / fleet.samples, 4),
        "cpu_seconds": round(time.process_time() - cpu_before, 3),
    }
