"""Convert the physical state into DCGM fields: one value for each field and GPU, in DCGM's units.

`exporter` reads them once per simulated second. Fields that a GPU model does not support are omitted, never 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watchkeeper.catalogue.gpu_models import GpuModel
from watchkeeper.model import clock_reasons
from watchkeeper.sim.fleet import FleetLayout
from watchkeeper.sim.physics import Floats, Physics

# NVML's fabric states, which DCGM exports unchanged (health_rules 1.2: not started or failed is a failure).
FABRIC_NOT_STARTED, FABRIC_COMPLETED = 1, 3
NVLINK_PREFIXES = ("DCGM_FI_DEV_NVLINK_", "DCGM_FI_PROF_NVLINK_", "DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
MEMORY_TEMPERATURES = ("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEM_MAX_OP_TEMP")


def supports(model: GpuModel, field: str) -> bool:
    if field.startswith(NVLINK_PREFIXES):
        return model.nvlink_gb_per_second is not None
    return field not in MEMORY_TEMPERATURES or model.memory_max_celsius is not None


class DcgmReadings:
    """Reads DCGM fields from the physical state; constants are collected once."""

    def __init__(self, layout: FleetLayout, physics: Physics) -> None:
        self.physics = physics
        per_gpu, nodes = layout.node_of_gpu, layout.nodes
        self._memory_mhz = np.array([node.model.memory_mhz for node in nodes])[per_gpu]
        self._shutdown = np.array([node.model.shutdown_celsius for node in nodes])[per_gpu]
        self._pcie = np.array([node.model.pcie_gb_per_second for node in nodes])[per_gpu] * 1e9
        self._generation = np.array([node.model.pcie_generation for node in nodes])[per_gpu]
        self._nvlink = np.array([node.model.nvlink_gb_per_second or 0.0 for node in nodes])[per_gpu] * 1e9
        self._memory_limit = np.array([node.model.memory_max_celsius or 0 for node in nodes])[per_gpu]
        self._zero = np.zeros(layout.gpu_count)
        self._all_lanes = np.full(layout.gpu_count, 16)
        # Faults change these: PCIe lanes in use, and the state of the NVSwitch fabric.
        self.lanes = self._all_lanes
        self.fabric_state = np.full(layout.gpu_count, FABRIC_COMPLETED)
        # A corrected-error remap is rare; most GPUs of a fleet have none.
        self._corrected_rows = (np.arange(layout.gpu_count) % 577 == 3).astype(np.int64)

    def read_fields(self, last_xid: NDArray[np.int64]) -> dict[str, Floats | NDArray[np.int64]]:
        return {
            **self._device_fields(last_xid),
            **self._memory_fields(),
            **self._link_fields(),
            **self._profiling_fields(),
        }

    def _device_fields(self, last_xid: NDArray[np.int64]) -> dict[str, Floats | NDArray[np.int64]]:
        state = self.physics
        return {
            "DCGM_FI_DEV_SM_CLOCK": state.clock_mhz,
            "DCGM_FI_DEV_MEM_CLOCK": self._memory_mhz,
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": state.reasons,
            "DCGM_FI_DEV_MEMORY_TEMP": state.temperature + 6.0 + 8.0 * state.activity[2],
            "DCGM_FI_DEV_MEM_MAX_OP_TEMP": self._memory_limit,
            "DCGM_FI_DEV_GPU_TEMP": state.temperature,
            "DCGM_FI_DEV_GPU_MAX_OP_TEMP": state.max_operating,
            "DCGM_FI_DEV_POWER_USAGE": np.round(state.power, 3),
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": state.energy_mj,
            "DCGM_FI_DEV_SLOWDOWN_TEMP": state.slowdown,
            "DCGM_FI_DEV_SHUTDOWN_TEMP": self._shutdown,
            "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": state.tdp,
            "DCGM_FI_DEV_GPU_UTIL": 100 * state.activity[5],
            "DCGM_FI_DEV_MEM_COPY_UTIL": 100 * np.minimum(1.0, state.activity[2] * 1.2),
            "DCGM_FI_DEV_ENC_UTIL": self._zero,
            "DCGM_FI_DEV_DEC_UTIL": self._zero,
            "DCGM_FI_DEV_XID_ERRORS": last_xid,
            "DCGM_FI_DEV_POWER_VIOLATION": state.power_violation_ns,
            "DCGM_FI_DEV_THERMAL_VIOLATION": state.thermal_violation_ns,
            "DCGM_FI_DEV_VGPU_LICENSE_STATUS": self._zero,
            "DCGM_FI_DEV_MIG_MODE": self._zero,
            "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": self.fabric_state,
            "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF": state.tdp,
            "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": state.recovery_action,
        }

    def _memory_fields(self) -> dict[str, Floats | NDArray[np.int64]]:
        state = self.physics
        used = np.round(state.memory_used)
        return {
            "DCGM_FI_DEV_FB_FREE": state.memory_mib - state.reserved_mib - used,
            "DCGM_FI_DEV_FB_USED": used,
            "DCGM_FI_DEV_FB_RESERVED": state.reserved_mib,
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": state.sbe,
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": state.dbe,
            "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": state.sbe_lifetime,
            "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": state.dbe_lifetime,
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": state.remapped_rows,
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": self._corrected_rows,
            "DCGM_FI_DEV_ROW_REMAP_FAILURE": state.remap_failure,
            "DCGM_FI_DEV_ROW_REMAP_PENDING": state.remap_pending,
        }

    def _link_fields(self) -> dict[str, Floats | NDArray[np.int64]]:
        # Slower clocks finish fewer steps, so every link carries less.
        state = self.physics
        received = self._pcie * state.activity[6] * state.clock_share
        sent = self._pcie * state.activity[7] * state.clock_share
        nvlink_bytes = self._nvlink / 2 * state.activity[8] * state.clock_share
        awake = (state.reasons & clock_reasons.IDLE) == 0
        return {
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": state.pcie_replays,
            "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": self._generation,
            "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": self._all_lanes,
            "DCGM_FI_DEV_PCIE_LINK_GEN": np.where(awake, self._generation, 1),
            "DCGM_FI_DEV_PCIE_LINK_WIDTH": self.lanes,
            "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": self._zero,
            "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": self._zero,
            "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": state.nvlink_errors,
            "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": self._zero,
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 2 * nvlink_bytes / 1e6,
            "DCGM_FI_PROF_PCIE_TX_BYTES": sent,
            "DCGM_FI_PROF_PCIE_RX_BYTES": received,
            "DCGM_FI_PROF_NVLINK_TX_BYTES": nvlink_bytes,
            "DCGM_FI_PROF_NVLINK_RX_BYTES": nvlink_bytes,
        }

    def _profiling_fields(self) -> dict[str, Floats | NDArray[np.int64]]:
        sm, tensor, dram, occupancy, engine = self.physics.activity[:5]
        return {
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": engine,
            "DCGM_FI_PROF_SM_ACTIVE": sm,
            "DCGM_FI_PROF_SM_OCCUPANCY": occupancy,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": tensor,
            "DCGM_FI_PROF_DRAM_ACTIVE": dram * self.physics.clock_share,
        }
