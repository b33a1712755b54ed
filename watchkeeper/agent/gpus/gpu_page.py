"""Renders the GPUs' part of the /metrics page from the last snapshot, in dcgm-exporter's format.

A value that was not read for two of its intervals is omitted: an old value never looks like a new one. Label text is
built once for each GPU, and the page is cached until the snapshot changes or one of its values expires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchkeeper.agent.gpus.gpu_samples import GpuSample, MigInstanceSample, Snapshot, Value
from watchkeeper.agent.page_text import format_labels
from watchkeeper.catalogue import xid
from watchkeeper.readers.nvml.families import Cadence, NvmlFamily

# dcgm-exporter's label value for no Xid.
NO_XID = "No Error"
FAULT = "watchkeeper_gpu_fault"
READ_ERRORS = "watchkeeper_gpu_read_errors_total"
XIDS = "watchkeeper_gpu_xid_errors_total"
HEADERS = {
    name: f"# HELP {name} {help}\n# TYPE {name} {prom_type}\n"
    for name, prom_type, help in (
        (FAULT, "gauge", "1 while the agent reports this fault; without a UUID label it affects the whole node."),
        (READ_ERRORS, "counter", "Driver calls that returned an error."),
        (XIDS, "counter", "Xid errors that the driver reported since the agent started."),
    )
}


@dataclass(frozen=True, slots=True)
class PageRow:
    """A GPU or MIG instance on the page: label text, values, and the cadences whose values have not expired."""

    labels: str
    values: Mapping[str, Value]
    fresh: frozenset[Cadence]
    is_mig_instance: bool
    sample: GpuSample


class GpuPage:
    """`fresh_seconds`: how long a value of each cadence is shown after it was read."""

    def __init__(
        self, families: Sequence[NvmlFamily], *, hostname: str, fresh_seconds: Mapping[Cadence, float]
    ) -> None:
        self._families = [family for family in families if family.prom_type != "label"]
        self._label_families = sorted(
            (family for family in families if family.prom_type == "label"), key=lambda family: family.name
        )
        self._headers = {family.name: family.head for family in self._families}
        self._hostname = hostname
        self._fresh_seconds = fresh_seconds
        self._labels: dict[tuple[Any, ...], str] = {}
        # Labels of clock reasons, links and other parts; NVML limits how many there are.
        self._part_label_text: dict[tuple[str, str], str] = {}
        self._cached: tuple[Snapshot, float, bytes] | None = None
        self._holders: Mapping[tuple[str, str | None], Mapping[str, str]] = {}

    def set_holders(self, holders: Mapping[tuple[str, str | None], Mapping[str, str]]) -> None:
        if holders != self._holders:
            self._holders, self._cached = holders, None

    def render(self, snapshot: Snapshot, now: float) -> bytes:
        cached = self._cached
        if cached is not None and cached[0] is snapshot and now < cached[1]:
            return cached[2]
        rows: list[PageRow] = []
        expires_at = float("inf")
        for gpu in snapshot.gpus:
            expiry = {cadence: at + self._fresh_seconds[cadence] for cadence, at in gpu.read_at.items()}
            fresh = frozenset(cadence for cadence, end in expiry.items() if now < end)
            # Slow values of a GPU that no longer answers are omitted too.
            if Cadence.FAST in fresh:
                expires_at = min(expires_at, *(expiry[cadence] for cadence in fresh))
                rows.append(PageRow(self._label_text(gpu), gpu.values, fresh, False, gpu))
                rows += [
                    PageRow(self._label_text(gpu, instance), instance.values, fresh, True, gpu)
                    for instance in gpu.mig_instances
                ]
        text = self._format_page(rows, snapshot).encode()
        self._cached = (snapshot, expires_at, text)
        return text

    def _format_page(self, rows: Sequence[PageRow], snapshot: Snapshot) -> str:
        parts: list[str] = []
        append = parts.append
        for family in self._families:
            name, cadence = family.name, family.cadence
            if cadence is Cadence.EVENT:
                _write_last_xid(parts, family, rows)
                continue
            family_start = len(parts)
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
            if len(parts) > family_start:
                parts.insert(family_start, self._headers[name])
        _write_counts(parts, [row for row in rows if not row.is_mig_instance])
        _write_faults(parts, snapshot.faults, self._hostname)
        return "".join(parts)

    def _write_parts(self, parts: list[str], family: NvmlFamily, *, row: PageRow, value: Value) -> None:
        """Write one line for each part of a value, such as each reason for lower clocks."""
        assert isinstance(value, Mapping)
        name, label_text = family.name, self._part_label_text
        for part, number in value.items():
            part_labels = label_text.get((name, part))
            if part_labels is None:
                pairs = dict(zip(family.labels, part.split("."), strict=True))
                part_labels = label_text[name, part] = format_labels(pairs)
            parts.append(f"{name}{{{row.labels},{part_labels}}} {number}\n")

    def _label_text(self, gpu: GpuSample, instance: MigInstanceSample | None = None) -> str:
        identity = gpu.identity
        holder = self._holders.get((identity["uuid"], None if instance is None else str(instance.id)), {})
        instance_key = None if instance is None else (instance.id, instance.profile)
        key = (gpu.index, identity["uuid"], instance_key, *holder.values())
        text = self._labels.get(key)
        if text is None:
            if len(self._labels) > 1000:
                self._labels.clear()
            text = self._labels[key] = self._build_label_text(gpu, instance, holder)
        return text

    def _build_label_text(self, gpu: GpuSample, instance: MigInstanceSample | None, holder: Mapping[str, str]) -> str:
        identity = gpu.identity
        pairs = {
            "gpu": str(gpu.index),
            "UUID": identity["uuid"],
            "pci_bus_id": identity["pci"],
            "device": f"nvidia{identity['minor']}",
            "modelName": identity["model"],
        }
        if instance is not None:
            pairs |= {"GPU_I_PROFILE": instance.profile, "GPU_I_ID": str(instance.id)}
        pairs["Hostname"] = self._hostname
        for family in self._label_families:
            if (text := identity.get(f"text.{family.part}")) is not None:
                pairs[family.name] = text
        return format_labels({**pairs, **holder})


def _write_last_xid(parts: list[str], family: NvmlFamily, rows: Sequence[PageRow]) -> None:
    """Write the last Xid as dcgm-exporter does: the code as the value, code and name as labels."""
    lines = []
    for row in rows:
        code = row.sample.last_xid
        if row.is_mig_instance or code is None:
            continue
        error = format_labels({"err_code": str(code), "err_msg": xid.lookup(code).name if code else NO_XID})
        lines.append(f"{family.name}{{{row.labels},{error}}} {code}\n")
    if lines:
        parts += [family.head, *lines]


def _write_counts(parts: list[str], rows: Sequence[PageRow]) -> None:
    xids = [f'{XIDS}{{{row.labels},xid="{code}"}} {count}\n' for row in rows for code, count in row.sample.xids.items()]
    errors = [
        f"{READ_ERRORS}{{{row.labels},{format_labels({'call': call, 'error': error})}}} {count}\n"
        for row in rows
        for (call, error), count in row.sample.errors.items()
    ]
    parts += [HEADERS[XIDS], *xids] if xids else []
    parts += [HEADERS[READ_ERRORS], *errors] if errors else []


def _write_faults(parts: list[str], faults: Sequence[tuple[str, str | None]], hostname: str) -> None:
    if not faults:
        return
    parts.append(HEADERS[FAULT])
    for cause, uuid in dict.fromkeys(faults):
        where = {} if uuid is None else {"UUID": uuid}
        parts.append(f"{FAULT}{{{format_labels({'cause': cause, **where, 'Hostname': hostname})}}} 1\n")
