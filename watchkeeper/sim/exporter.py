"""One node's page, byte for byte in the shape that dcgm-exporter 4.x writes.

Names, types and order (by field id) come from packs/dcgm_fields.csv; labels stand in the exporter's
order, attribution last and sorted. A GPU that is gone from the bus has no lines. The server hands the
page to whoever scrapes. Labels of a node are kept until they change; values are read once per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from watchkeeper.catalogue import pack, xid
from watchkeeper.sim.fleet import FleetLayout, SimGpu, SimNode, models
from watchkeeper.sim.jobs import SimJobs
from watchkeeper.sim.readings import DcgmReadings, supports

XID_FIELD = "DCGM_FI_DEV_XID_ERRORS"
# The exporter's word where there has been no Xid; other codes are named by the catalogue.
NO_XID = "No Error"
# As our own agent writes it, which stands in for dcgm-exporter on the nodes.
FAULT_HEAD = "# HELP watchkeeper_gpu_fault 1 while the agent names this fault.\n# TYPE watchkeeper_gpu_fault gauge\n"


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One row of packs/dcgm_fields.csv."""

    id: int
    name: str
    prom_type: str
    is_float: bool
    # The two comment lines above the samples.
    head: str


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The label part of each GPU's lines, for one state of the node."""

    version: tuple[int, int]
    rows: list[int]
    plain: tuple[bytes, ...]
    with_xid: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PageTemplate:
    """A page of a model with so many GPUs, to be filled in: for each line its labels and its number.

    `numbers` says which of the numbers that were read a line has; fields that are whole numbers come before the others.
    """

    text: bytes
    names: tuple[str, ...]
    numbers: tuple[int, ...]


@cache
def fields() -> dict[str, DcgmField]:
    return {field.name: field for field in pack.load("dcgm_fields.csv", _read_field)}


def _read_field(cells: Mapping[str, str]) -> DcgmField:
    name = pack.required(cells["name"])
    prom_type = pack.choice(cells["prom_type"], frozenset({"gauge", "counter", "label"}))
    unit = f" (in {cells['unit']})" if cells["unit"] else ""
    return DcgmField(
        id=int(cells["field_id"]),
        name=name,
        prom_type=prom_type,
        is_float=pack.choice(cells["value_type"], frozenset({"int64", "double", "string"})) == "double",
        head=f"# HELP {name} {pack.required(cells['description'])}{unit}.\n# TYPE {name} {prom_type}\n",
    )


class DcgmExporter:
    """Renders pages; owns what an exporter remembers, which is the last Xid of each GPU."""

    def __init__(self, layout: FleetLayout, readings: DcgmReadings, jobs: SimJobs) -> None:
        self.layout = layout
        self.jobs = jobs
        self.last_xid = np.zeros(layout.gpu_count, dtype=np.int64)
        self.is_present = np.ones(layout.gpu_count, dtype=bool)
        self._version = [0] * len(layout.nodes)
        self._labels: dict[int, NodeLabels] = {}
        self._forms: dict[tuple[str, int], PageTemplate] = {}
        self.readings = readings
        simulated = readings.read_fields(self.last_xid)
        self._fields = sorted((fields()[name] for name in simulated), key=lambda field: field.id)
        self._unsupported = {
            model: frozenset(name for name in simulated if not supports(row, name)) for model, row in models().items()
        }
        self._whole: NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)
        self._ratios: NDArray[np.float64] = np.empty((0, 0))
        self._read_at: int | None = None

    def record_xid(self, gpu: SimGpu, code: int) -> None:
        self.last_xid[gpu.row] = code
        self.forget_labels(int(self.layout.node_of_gpu[gpu.row]))

    def forget_labels(self, node_row: int) -> None:
        """Labels or presence of this node's GPUs changed."""
        self._version[node_row] += 1
        self._read_at = None

    def page(self, node: SimNode, now: int, *, fault: str | None = None) -> bytes:
        """The node's page; `fault` is a cause that our agent, the exporter of these nodes, names on it."""
        if self._read_at != now:
            self._read(now)
        labels = self._labels_of(node)
        form = self._form(node.model.name, len(labels.rows))
        read: list[float] = [
            *self._whole[:, labels.rows].ravel().tolist(),
            *self._ratios[:, labels.rows].ravel().tolist(),
        ]
        filled: list[object] = [None] * (2 * len(form.numbers))
        filled[::2] = chain.from_iterable(labels.with_xid if name == XID_FIELD else labels.plain for name in form.names)
        filled[1::2] = [read[at] for at in form.numbers]
        page = form.text % tuple(filled)
        if fault is not None:
            page += f'{FAULT_HEAD}watchkeeper_gpu_fault{{cause="{fault}",Hostname="{node.name}"}} 1\n'.encode()
        return page

    def _form(self, model: str, gpus: int) -> PageTemplate:
        known = self._forms.get((model, gpus))
        if known is None:
            in_order = sorted(self._fields, key=lambda field: field.is_float)
            first = {field.name: gpus * at for at, field in enumerate(in_order)}
            written = [field for field in self._fields if field.name not in self._unsupported[model]]
            text = "".join(
                field.head.replace("%", "%%") + f"{field.name}%b{'%.6f' if field.is_float else '%d'}\n" * gpus
                for field in written
            )
            numbers = tuple(first[field.name] + gpu for field in written for gpu in range(gpus))
            known = self._forms[model, gpus] = PageTemplate(
                text.encode(), tuple(field.name for field in written), numbers
            )
        return known

    def _read(self, now: int) -> None:
        """Take every field once; pages of the same second share the numbers."""
        known = self.readings.read_fields(self.last_xid)
        self._whole = np.rint([known[field.name] for field in self._fields if not field.is_float]).astype(np.int64)
        self._ratios = np.array([known[field.name] for field in self._fields if field.is_float])
        self._read_at = now

    def _labels_of(self, node: SimNode) -> NodeLabels:
        version = (self._version[node.row], self.jobs.label_version[node.row])
        known = self._labels.get(node.row)
        if known is None or known.version != version:
            present = [gpu for gpu in node.gpus if self.is_present[gpu.row]]
            plain, with_xid = zip(*(self._texts(node, gpu) for gpu in present), strict=True) if present else ((), ())
            known = NodeLabels(version, [gpu.row for gpu in present], plain, with_xid)
            self._labels[node.row] = known
        return known

    def _texts(self, node: SimNode, gpu: SimGpu) -> tuple[bytes, bytes]:
        fixed = {
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
        # The exporter keeps attribution in a Go map, which its template writes sorted by name.
        return _braces(fixed | attribution), _braces(fixed | dict(sorted((attribution | error).items())))


def _braces(labels: Mapping[str, str]) -> bytes:
    return ("{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "} ").encode()
