"""The columns of a recording: what each is called, where it comes from, and in which unit.

Names and units are those of the H200 recordings that the classifier was held against, so that a recording of any tool
that writes them can be judged. `recorder_child` fills them, `recording` reads and writes them, `features` judges them.
A cell that was not read is empty, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping

TIME = "t"
LABEL = "label"
GPU = "gpu"
# Other names under which people keep the GPU of a row.
GPU_WORDS = (GPU, "uuid", "gpu_uuid", "gpu_index", "device")
# Rows between two workloads: they belong to neither.
TRANSITION = "gap"

# NVML: percent, MiB, °C, W, MHz, bit mask, mJ, KiB/s.
BASIC = (
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
GPM: Mapping[str, int] = {
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
# The programs of the workload, from /proc: cores in use, percent of one core, KiB/s, MiB. The network is that of the
# whole network namespace, because /proc does not count it for each program.
HOST = (
    "cpu_cores",
    "busiest_thread",
    "disk_wait",
    "read_kbs",
    "write_kbs",
    "net_rx_kbs",
    "net_tx_kbs",
    "rss_mib",
)
NUMBERS = (*BASIC, *GPM, *HOST)
# Without one of these there is nothing to judge.
ANY_OF = ("gpu_util", "graphics_util", "sm_util")
PERCENTS = frozenset(
    {"gpu_util", "mem_copy_util"} | {name for name in GPM if name.endswith("_util") or name == "sm_occupancy"}
)
KIB_PER_MIB = 1024
