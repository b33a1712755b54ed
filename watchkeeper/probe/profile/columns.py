"""The columns of a recording: names, sources and units.

Recordings of any tool with these columns can be classified. `recorder_child` fills them, `recording` reads and writes
them; a cell that was not read is empty, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping

TIME = "t"
LABEL = "label"
GPU = "gpu"
# Column names that may hold the GPU of a row.
GPU_COLUMNS = (GPU, "uuid", "gpu_uuid", "gpu_index", "device")
# The label of rows between two workloads.
TRANSITION = "gap"

# NVML: percent, MiB, °C, W, MHz, bit mask, mJ, KiB/s.
NVML_COLUMNS = (
    "gpu_util",
    "mem_copy_util",
    "fb_used_mib",
    "temp",
    "power_w",
    "sm_clock",
    "mem_clock",
    "throttle",
    "energy_mj",
    "pcie_tx_kbs",
    "pcie_rx_kbs",
)
# GPM metric ids of nvml.h: shares in percent, rates in MiB/s.
GPM_METRICS: Mapping[str, int] = {
    "any_tensor_util": 5,
    "dfma_tensor_util": 6,
    "dram_bw_util": 10,
    "fp16_util": 13,
    "fp32_util": 12,
    "fp64_util": 11,
    "graphics_util": 1,
    "hmma_tensor_util": 7,
    "imma_tensor_util": 9,
    "integer_util": 4,
    "pcie_rx_per_sec": 21,
    "pcie_tx_per_sec": 20,
    "sm_occupancy": 3,
    "sm_util": 2,
    "nvlink_total_rx_per_sec": 60,
    "nvlink_total_tx_per_sec": 61,
}
# The processes of the workload, from /proc: cores in use, percent of one core, KiB/s, MiB. Network counters are those
# of the whole network namespace, because /proc has none for each process.
HOST_COLUMNS = (
    "cpu_cores",
    "busiest_thread",
    "disk_wait",
    "read_kbs",
    "write_kbs",
    "net_rx_kbs",
    "net_tx_kbs",
    "rss_mib",
)
NUMBER_COLUMNS = (*NVML_COLUMNS, *GPM_METRICS, *HOST_COLUMNS)
# A recording needs at least one of these.
ACTIVITY_COLUMNS = ("gpu_util", "graphics_util", "sm_util")
PERCENT_COLUMNS = frozenset(
    {"gpu_util", "mem_copy_util"} | {name for name in GPM_METRICS if name.endswith("_util") or name == "sm_occupancy"}
)
KIB_PER_MIB = 1024
