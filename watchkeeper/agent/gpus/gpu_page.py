"""The node's /metrics page: the last snapshot of every GPU, in the text that dcgm-exporter writes.

The sampler hands over snapshots; a scrape calls `render`, which asks nobody anything. What has not been
read for two of its own intervals is absent: an old number is never repeated as a new one. Label text is
made once for each GPU, and a page is kept until the snapshot changes or something on it becomes too old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchkeeper.agent.gpus.gpu_samples import GpuSample, SliceSample, Snapshot, Value
from watchkeeper.catalogue import xid
from watchkeeper.kit import own_metrics
from watchkeeper.readers.nvml.families import Cadence, NvmlFamily

# The exporter's word where there has been no Xid.
NO_XID = "No Error"
FAULT = "watchkeeper_gpu_fault"
ERRORS = "watchkeeper_gpu_read_errors_total"
XIDS = "watchkeeper_gpu_xid_errors_total"
HEADS = {
    name: f"# HELP {name} {help}\n# TYPE {name} {prom_type}\n"
    for name, prom_type, help in (
        (FAULT, "gauge", "1 while the agent names this fault; without a UUID it is the whole node's."),
        (ERRORS, "counter", "Driver calls that were answered with an error."),
        (XIDS, "counter", "Xid errors that the driver has reported since the agent started."),
    )
}


@dataclass(frozen=True, slots=True)
class Freshness:
    """How long a number of each cadence may be shown after it was read."""

    seconds: Mapping[Cadence, float]

    def until(self, gpu: GpuSample, cadence: Cadence) -> float:
        at = gpu.read_at.get(cadence)
        return float("-inf") if at is None else at + self.seconds[cadence]


@dataclass(frozen=True, slots=True)
class PageRow:
    """One GPU or slice on the page being written: its label text, its numbers, and which cadences are fresh."""

    labels: str
    values: Mapping[str, Value]
    fresh: frozenset[Cadence]
    is_slice: bool
    sample: GpuSample


class GpuPage:
    """Writes snapshots for one node."""

    def __init__(self, families: Sequence[NvmlFamily], *, hostname: str, freshness: Freshness) -> None:
        self._families = [family for family in families if family.prom_type != "label"]
        self._label_families = sorted(
            (family for family in families if family.prom_type == "label"), key=lambda family: family.name
        )
        self._heads = {family.name: family.head for family in self._families}
        self._hostname = hostname
        self._freshness = freshness
        self._labels: dict[tuple[Any, ...], str] = {}
        # Reasons, links and the like: their number is that of the parts NVML knows.
        self._part_labels: dict[tuple[str, str], str] = {}
        self._kept: tuple[Snapshot, float, bytes] | None = None
        self._holders: Mapping[tuple[str, str | None], Mapping[str, str]] = {}

    def set_holders(self, holders: Mapping[tuple[str, str | None], Mapping[str, str]]) -> None:
        """Show these labels of holders from now on, by UUID and slice."""
        if holders != self._holders:
            self._holders, self._kept = holders, None

    def render(self, snapshot: Snapshot, now: float) -> bytes:
        kept = self._kept
        if kept is not None and kept[0] is snapshot and now < kept[1]:
            return kept[2]
        rows: list[PageRow] = []
        until = float("inf")
        for gpu in snapshot.gpus:
            ends = {cadence: self._freshness.until(gpu, cadence) for cadence in self._freshness.seconds}
            fresh = frozenset(cadence for cadence, end in ends.items() if now < end)
            # Slow numbers of a GPU that no longer answers are not shown either.
            if Cadence.FAST in fresh:
                until = min(until, *(ends[cadence] for cadence in fresh))
                rows += self._rows(gpu, fresh)
        text = self._write(rows, snapshot).encode()
        self._kept = (snapshot, until, text)
        return text

    def _rows(self, gpu: GpuSample, fresh: frozenset[Cadence]) -> list[PageRow]:
        found = [PageRow(self._label_text(gpu), gpu.values, fresh, False, gpu)]
        found += [PageRow(self._label_text(gpu, part), part.values, fresh, True, gpu) for part in gpu.slices]
        return found

    def _write(self, rows: Sequence[PageRow], snapshot: Snapshot) -> str:
        parts: list[str] = []
        append = parts.append
        for family in self._families:
            name, cadence = family.name, family.cadence
            if cadence is Cadence.EVENT:
                _write_last_xid(parts, family, rows)
                continue
            start = len(parts)
            is_float = family.is_float
            for row in rows:
                value = row.values.get(name)
                if value is None or cadence not in row.fresh:
                    continue
                if is_float:
                    append(f"{name}{{{row.labels}}} {value:.6f}\n")
                elif isinstance(value, int):
                    append(f"{name}{{{row.labels}}} {value}\n")
                else:
                    self._write_parts(parts, family, row=row, value=value)
            if len(parts) > start:
                parts.insert(start, self._heads[name])
        gpus = [row for row in rows if not row.is_slice]
        _write_counts(parts, gpus)
        _write_faults(parts, snapshot.faults, self._hostname)
        return "".join(parts)

    def _write_parts(self, parts: list[str], family: NvmlFamily, *, row: PageRow, value: Value) -> None:
        """One line for each part of an answer, such as each reason for lower clocks."""
        assert isinstance(value, Mapping)
        name, known = family.name, self._part_labels
        for part, number in value.items():
            own = known.get((name, part))
            if own is None:
                own = known[name, part] = _joined(dict(zip(family.labels, part.split("."), strict=True)))
            parts.append(f"{name}{{{row.labels},{own}}} {number}\n")

    def _label_text(self, gpu: GpuSample, part: SliceSample | None = None) -> str:
        identity = gpu.identity
        holder = self._holders.get((identity["uuid"], None if part is None else str(part.id)), {})
        own = None if part is None else (part.id, part.profile)
        key = (gpu.index, identity["uuid"], own, *holder.values())
        text = self._labels.get(key)
        if text is None:
            if len(self._labels) > 1000:
                self._labels.clear()
            text = self._labels[key] = self._make_label_text(gpu, part, holder)
        return text

    def _make_label_text(self, gpu: GpuSample, part: SliceSample | None, holder: Mapping[str, str]) -> str:
        identity = gpu.identity
        pairs = {
            "gpu": str(gpu.index),
            "UUID": identity["uuid"],
            "pci_bus_id": identity["pci"],
            "device": f"nvidia{identity['minor']}",
            "modelName": identity["model"],
        }
        if part is not None:
            pairs |= {"GPU_I_PROFILE": part.profile, "GPU_I_ID": str(part.id)}
        pairs["Hostname"] = self._hostname
        for family in self._label_families:
            if (text := identity.get(f"text.{family.part}")) is not None:
                pairs[family.name] = text
        return _joined({**pairs, **holder})


def _joined(pairs: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{own_metrics.escape(value)}"' for name, value in pairs.items())


def _write_last_xid(parts: list[str], family: NvmlFamily, rows: Sequence[PageRow]) -> None:
    """The exporter shows the last Xid as the value and once more, with its words, in labels."""
    lines = []
    for row in rows:
        code = row.sample.last_xid
        if row.is_slice or code is None:
            continue
        error = _joined({"err_code": str(code), "err_msg": xid.lookup(code).name if code else NO_XID})
        lines.append(f"{family.name}{{{row.labels},{error}}} {code}\n")
    if lines:
        parts += [family.head, *lines]


def _write_counts(parts: list[str], rows: Sequence[PageRow]) -> None:
    xids = [f'{XIDS}{{{row.labels},xid="{code}"}} {count}\n' for row in rows for code, count in row.sample.xids.items()]
    errors = [
        f"{ERRORS}{{{row.labels},{_joined({'call': call, 'error': error})}}} {count}\n"
        for row in rows
        for (call, error), count in row.sample.errors.items()
    ]
    parts += [HEADS[XIDS], *xids] if xids else []
    parts += [HEADS[ERRORS], *errors] if errors else []


def _write_faults(parts: list[str], faults: Sequence[tuple[str, str | None]], hostname: str) -> None:
    if not faults:
        return
    parts.append(HEADS[FAULT])
    for cause, uuid in dict.fromkeys(faults):
        where = {} if uuid is None else {"UUID": uuid}
        parts.append(f"{FAULT}{{{_joined({'cause': cause, **where, 'Hostname': hostname})}}} 1\n")
