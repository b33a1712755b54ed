"""Render the metrics page of one node, byte for byte as dcgm-exporter 4.x does.

Names, types and order (by field id) come from packs/dcgm_fields.csv. A GPU that is not on the bus has no lines. Labels
of a node are cached until they change; values are read once per simulated second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from watchkeeper.catalogue import pack, xid
from watchkeeper.catalogue.gpu_models import GpuModel, gpu_models
from watchkeeper.model import clock_reasons
from watchkeeper.sim.fleet import FleetLayout, SimGpu, SimNode
from watchkeeper.sim.jobs import SimJobs
from watchkeeper.sim.physics import Floats, Physics

# NVML's fabric states, which DCGM exports unchanged (health_rules 1.2: not started or failed is a failure).
FABRIC_NOT_STARTED, FABRIC_COMPLETED = 1, 3
NVLINK_PREFIXES = ("DCGM_FI_DEV_NVLINK_", "DCGM_FI_PROF_NVLINK_", "DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
MEMORY_TEMPERATURES = ("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEM_MAX_OP_TEMP")
XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"
# The exporter's text without an Xid; the catalogue has the texts of Xids.
NO_XID = "No Error"
# As our agent writes it, which replaces dcgm-exporter on the nodes.
FAULT_HEADER = "# HELP watchkeeper_gpu_fault 1 while the agent names this fault.\n# TYPE watchkeeper_gpu_fault gauge\n"


def supports(model: GpuModel, field: str) -> bool:
    if field.startswith(NVLINK_PREFIXES):
        return model.nvlink_gb_per_second is not None
    return field not in MEMORY_TEMPERATURES or model.memory_max_celsius is not None


class DcgmReadings:
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
        state, used = self.physics, np.round(self.physics.memory_used)
        sm, tensor, dram, occupancy, engine, utilisation, received, sent, nvlink = state.activity
        # Slower clocks finish fewer steps, so every link carries less.
        nvlink_bytes = self._nvlink / 2 * nvlink * state.clock_share
        awake = (state.reasons & clock_reasons.IDLE) == 0
        return {
            "DCGM_FI_DEV_SM_CLOCK": state.clock_mhz,
            "DCGM_FI_DEV_MEM_CLOCK": self._memory_mhz,
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": state.reasons,
            "DCGM_FI_DEV_MEMORY_TEMP": state.temperature + 6.0 + 8.0 * dram,
            "DCGM_FI_DEV_MEM_MAX_OP_TEMP": self._memory_limit,
            "DCGM_FI_DEV_GPU_TEMP": state.temperature,
            "DCGM_FI_DEV_GPU_MAX_OP_TEMP": state.max_operating,
            "DCGM_FI_DEV_POWER_USAGE": np.round(state.power, 3),
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": state.energy_mj,
            "DCGM_FI_DEV_SLOWDOWN_TEMP": state.slowdown,
            "DCGM_FI_DEV_SHUTDOWN_TEMP": self._shutdown,
            "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": state.enforced_watts,
            "DCGM_FI_DEV_GPU_UTIL": 100 * utilisation,
            "DCGM_FI_DEV_MEM_COPY_UTIL": 100 * np.minimum(1.0, dram * 1.2),
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
            "DCGM_FI_PROF_PCIE_TX_BYTES": self._pcie * sent * state.clock_share,
            "DCGM_FI_PROF_PCIE_RX_BYTES": self._pcie * received * state.clock_share,
            "DCGM_FI_PROF_NVLINK_TX_BYTES": nvlink_bytes,
            "DCGM_FI_PROF_NVLINK_RX_BYTES": nvlink_bytes,
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": engine,
            "DCGM_FI_PROF_SM_ACTIVE": sm,
            "DCGM_FI_PROF_SM_OCCUPANCY": occupancy,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": tensor,
            "DCGM_FI_PROF_DRAM_ACTIVE": dram * state.clock_share,
        }


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One row of packs/dcgm_fields.csv."""

    id: int
    name: str
    prom_type: str
    is_float: bool
    # The HELP and TYPE lines.
    header: str


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The label texts of each GPU of a node, until the next change."""

    version: tuple[int, int]
    rows: list[int]
    without_xid: tuple[bytes, ...]
    with_xid: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PageTemplate:
    """The format text of a page, with placeholders for the labels and the value of each line.

    `value_indices` has the position of each line's value; integer fields come first.
    """

    format_text: bytes
    field_names: tuple[str, ...]
    value_indices: tuple[int, ...]


@cache
def dcgm_fields() -> dict[str, DcgmField]:
    return {field.name: field for field in pack.load("dcgm_fields.csv", _parse_field)}


def _parse_field(cells: Mapping[str, str]) -> DcgmField:
    name = pack.required(cells["name"])
    prom_type = pack.choice(cells["prom_type"], frozenset({"gauge", "counter", "label"}))
    unit = f" (in {cells['unit']})" if cells["unit"] else ""
    return DcgmField(
        id=int(cells["field_id"]),
        name=name,
        prom_type=prom_type,
        is_float=pack.choice(cells["value_type"], frozenset({"int64", "double", "string"})) == "double",
        header=f"# HELP {name} {pack.required(cells['description'])}{unit}.\n# TYPE {name} {prom_type}\n",
    )


class DcgmExporter:
    def __init__(self, layout: FleetLayout, readings: DcgmReadings, jobs: SimJobs) -> None:
        self.layout = layout
        self.jobs = jobs
        self.last_xid = np.zeros(layout.gpu_count, dtype=np.int64)
        self.is_present = np.ones(layout.gpu_count, dtype=bool)
        self._version = [0] * len(layout.nodes)
        self._labels: dict[int, NodeLabels] = {}
        self._templates: dict[tuple[str, int], PageTemplate] = {}
        self.readings = readings
        simulated = readings.read_fields(self.last_xid)
        self._fields = sorted((dcgm_fields()[name] for name in simulated), key=lambda field: field.id)
        self._unsupported = {
            model: frozenset(name for name in simulated if not supports(row, name))
            for model, row in gpu_models().items()
        }
        self._integers: NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)
        self._floats: NDArray[np.float64] = np.empty((0, 0))
        self._read_at: int | None = None

    def record_xid(self, gpu: SimGpu, code: int) -> None:
        self.last_xid[gpu.row] = code
        self.invalidate_labels(int(self.layout.node_of_gpu[gpu.row]))

    def invalidate_labels(self, node_row: int) -> None:
        """Discard the cached labels of this node, after labels or presence of its GPUs changed."""
        self._version[node_row] += 1
        self._read_at = None

    def page(self, node: SimNode, now: int, *, agent_fault: str | None = None) -> bytes:
        """The page of a node; `agent_fault` is a cause that the agent exports."""
        if self._read_at != now:
            self._read_values(now)
        labels = self._node_labels(node)
        template = self._template(node.model.name, len(labels.rows))
        integers, floats = self._integers[:, labels.rows].ravel(), self._floats[:, labels.rows].ravel()
        values: list[float] = [*integers.tolist(), *floats.tolist()]
        line_values: list[object] = [None] * (2 * len(template.value_indices))
        line_values[::2] = chain.from_iterable(
            labels.with_xid if name == XID_FIELD else labels.without_xid for name in template.field_names
        )
        line_values[1::2] = [values[at] for at in template.value_indices]
        page = template.format_text % tuple(line_values)
        return page if agent_fault is None else page + format_agent_fault(agent_fault, node.name)

    def _template(self, model: str, gpu_count: int) -> PageTemplate:
        template = self._templates.get((model, gpu_count))
        if template is None:
            read_order = sorted(self._fields, key=lambda field: field.is_float)
            first_index = {field.name: gpu_count * at for at, field in enumerate(read_order)}
            supported = [field for field in self._fields if field.name not in self._unsupported[model]]
            text = "".join(
                field.header.replace("%", "%%") + f"{field.name}%b{'%.6f' if field.is_float else '%d'}\n" * gpu_count
                for field in supported
            )
            numbers = tuple(first_index[field.name] + gpu for field in supported for gpu in range(gpu_count))
            template = self._templates[model, gpu_count] = PageTemplate(
                text.encode(), tuple(field.name for field in supported), numbers
            )
        return template

    def _read_values(self, now: int) -> None:
        """Read all fields once; pages of the same second share the values."""
        values = self.readings.read_fields(self.last_xid)
        self._integers = np.rint([values[field.name] for field in self._fields if not field.is_float]).astype(np.int64)
        self._floats = np.array([values[field.name] for field in self._fields if field.is_float])
        self._read_at = now

    def _node_labels(self, node: SimNode) -> NodeLabels:
        version = (self._version[node.row], self.jobs.label_version[node.row])
        labels = self._labels.get(node.row)
        if labels is None or labels.version != version:
            present = [gpu for gpu in node.gpus if self.is_present[gpu.row]]
            texts = [self._gpu_labels(node, gpu) for gpu in present]
            without_xid, with_xid = zip(*texts, strict=True) if texts else ((), ())
            labels = NodeLabels(version, [gpu.row for gpu in present], without_xid, with_xid)
            self._labels[node.row] = labels
        return labels

    def _gpu_labels(self, node: SimNode, gpu: SimGpu) -> tuple[bytes, bytes]:
        identity = {
            "gpu": str(gpu.index),
            "UUID": gpu.uuid,
            "pci_bus_id": gpu.exporter_pci,
            "device": f"nvidia{gpu.index}",
            "modelName": node.model.name,
            "Hostname": node.name,
            "DCGM_FI_DRIVER_VERSION": node.pool.driver,
        }
        job = self.jobs.job_on_gpu(gpu.row)
        attribution = {} if job is None else job.labels(node.row)
        code = int(self.last_xid[gpu.row])
        error = {"err_code": str(code), "err_msg": xid.lookup(code).name if code else NO_XID}
        # The exporter keeps attribution in a Go map, which is written sorted by name.
        with_xid = identity | dict(sorted((attribution | error).items()))
        return _format_labels(identity | attribution), _format_labels(with_xid)


def format_agent_fault(cause: str | None, node: str) -> bytes:
    return f'{FAULT_HEADER}watchkeeper_gpu_fault{{cause="{cause}",Hostname="{node}"}} 1\n'.encode()


def _format_labels(labels: Mapping[str, str]) -> bytes:
    return ("{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "} ").encode()
