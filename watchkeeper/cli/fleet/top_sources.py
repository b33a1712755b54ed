"""The sources of `watchkeeper top`: the GPUs of this node through NVML, or a hub, page by page.

From a hub with ten thousand GPUs it reads the inventory every 30 s and only the readings of the shown page; PromQL's
`topk` selects the GPUs of a page that is sorted by a number. The local source uses the agent's reader and attribution,
so `top` and the agent show the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from watchkeeper.agent import node_facts
from watchkeeper.agent.attribution import node_holders
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.agent.gpus.sampler import Sampler
from watchkeeper.cli import options
from watchkeeper.cli.fleet import top_rows
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import own_metrics
from watchkeeper.model import workloads
from watchkeeper.readers.node import proc_programs
from watchkeeper.readers.nvml.families import Cadence

INVENTORY_SECONDS = 30.0
# GPUs that one query names; with more matches, only the largest values are sorted.
MAX_QUERIED_GPUS = 400
MAX_RANKED_GPUS = 2000
MAX_INCIDENTS = 100
METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": "util",
    "DCGM_FI_DEV_FB_USED": "memory_used_mib",
    "DCGM_FI_DEV_FB_FREE": "free",
    "DCGM_FI_DEV_GPU_TEMP": "celsius",
    "DCGM_FI_DEV_POWER_USAGE": "watts",
}
RANKED_BY = {
    top_rows.SortColumn.UTIL: "DCGM_FI_DEV_GPU_UTIL",
    top_rows.SortColumn.MEMORY: "DCGM_FI_DEV_FB_USED",
    top_rows.SortColumn.TEMP: "DCGM_FI_DEV_GPU_TEMP",
    top_rows.SortColumn.POWER: "DCGM_FI_DEV_POWER_USAGE",
}
SEVERITIES = ("critical", "warning", "info")


class PageSource(Protocol):
    """Reads pages; called from one thread at a time."""

    def read(self, view: top_rows.TopView) -> top_rows.TopPage: ...


class HubSource:
    def __init__(self, hub: Client) -> None:
        self._hub = hub
        self._gpus: dict[str, top_rows.TopRow] = {}
        self._read_at = float("-inf")

    def read(self, view: top_rows.TopView) -> top_rows.TopPage:
        cards, status = self._hub.incidents(), self._hub.status()
        if time.monotonic() - self._read_at >= INVENTORY_SECONDS:
            self._read_inventory()
        gpus = _add_problems(self._gpus.values(), cards)
        matching = {row.uuid: row for row in gpus if top_rows.matches_filter(row, view.text)}
        page, notes = self._select_page(matching, view)
        return top_rows.TopPage(
            f"hub {status.cluster}",
            tuple(self._with_readings(page)),
            len(matching),
            counts="".join(options.gpu_lines(status)),
            incidents=tuple(sorted(cards, key=_rank_incident)[:MAX_INCIDENTS]),
            notes=(*(f"degraded: {problem}" for problem in status.degraded), *notes),
            has_problem=bool(cards),
        )

    def _read_inventory(self) -> None:
        inventory = self._hub.fleet()
        services = {node.name: node.service.text for node in self._hub.list_nodes().nodes if node.service is not None}
        holders = inventory.workloads or {}
        self._gpus = {
            gpu.uuid: top_rows.TopRow(
                gpu.uuid,
                node.name,
                gpu.index,
                gpu.model or "",
                holders.get(gpu.uuid, ""),
                service=services.get(node.name, ""),
            )
            for node in inventory.nodes
            for gpu in node.gpus
            if gpu is not None
        }
        self._read_at = time.monotonic()

    def _select_page(
        self, matching: Mapping[str, top_rows.TopRow], view: top_rows.TopView
    ) -> tuple[list[top_rows.TopRow], list[str]]:
        """The rows of the page, without readings, and notes."""
        metric = RANKED_BY.get(view.sort)
        if metric is None:
            return list(top_rows.page_rows(top_rows.sort_rows(matching.values(), view), view)), []
        if view.text and len(matching) <= MAX_QUERIED_GPUS:
            return list(top_rows.page_rows(top_rows.sort_rows(self._with_readings(matching.values()), view), view)), []
        count = view.offset + view.limit if not view.text else MAX_RANKED_GPUS
        function = "bottomk" if view.is_reversed else "topk"
        # Only the UUID: the other labels of thousands of series are many bytes.
        ranked = self._hub.query(f'{function}({count}, max by (UUID) ({metric}{{GPU_I_ID=""}}))').series
        ordered = [matching[uuid] for series in ranked if (uuid := series.labels.get("UUID", "")) in matching]
        notes = [f"filtered from the first {MAX_RANKED_GPUS:,} GPUs by {view.sort} only"] if view.text else []
        if len(ordered) < count and not view.text:
            # GPUs without a reading come last.
            silent = matching.keys() - {row.uuid for row in ordered}
            ordered += top_rows.sort_rows((matching[uuid] for uuid in silent), top_rows.TopView())
        return list(top_rows.page_rows(ordered, view)), notes

    def _with_readings(self, rows: Iterable[top_rows.TopRow]) -> list[top_rows.TopRow]:
        rows_by_uuid = {row.uuid: row for row in rows}
        if not rows_by_uuid:
            return []
        uuids, metrics = "|".join(rows_by_uuid), "|".join(METRICS)
        readings: dict[str, dict[str, float]] = {}
        for series in self._hub.query(f'{{__name__=~"{metrics}",UUID=~"{uuids}",GPU_I_ID=""}}').series:
            name, newest = METRICS.get(series.labels.get("__name__", "")), series.newest
            if name is not None and newest is not None:
                readings.setdefault(series.labels["UUID"], {})[name] = newest
        return [_with_values(row, readings.get(uuid, {})) for uuid, row in rows_by_uuid.items()]


class LocalSource:
    def __init__(self, sampler: Sampler, *, node: str, roots: node_facts.Roots) -> None:
        self._sampler, self._node, self._roots = sampler, node, roots
        self._users = proc_programs.read_users(roots.root / Path("etc/passwd"))
        settings = node_holders.HolderSettings()
        self._holders = node_holders.NodeHolders(settings, node, roots=roots, registry=own_metrics.Registry())
        # Calls to slow sources continue across refreshes, so all share one loop.
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.close()

    def read(self, view: top_rows.TopView) -> top_rows.TopPage:
        self._loop.run_until_complete(self._holders.refresh(self._sampler))
        gpus, faults = self._sampler.snapshot().gpus, self._sampler.faults()
        rows = [
            self._row(gpu, [fault.cause for fault in faults if fault.place.gpu == gpu.identity["uuid"]]) for gpu in gpus
        ]
        matching = [row for row in rows if top_rows.matches_filter(row, view.text)]
        # A GPU that was lost before the first reading has no row.
        shown_uuids = {row.uuid for row in rows}
        notes = tuple(f"{fault.cause}: {fault.evidence}" for fault in faults if fault.place.gpu not in shown_uuids)
        programs = tuple(line for gpu in gpus for line in self._programs(gpu))
        shown = top_rows.page_rows(top_rows.sort_rows(matching, view), view)
        return top_rows.TopPage(self._node, shown, len(matching), programs, notes=notes, has_problem=bool(faults))

    def _row(self, gpu: GpuSample, causes: list[str]) -> top_rows.TopRow:
        uuid, model = gpu.identity["uuid"], gpu.identity["model"]
        holder = ", ".join(dict.fromkeys(str(holding.workload) for holding in self._holdings(gpu)))
        row = top_rows.TopRow(uuid, self._node, gpu.index, model, holder, problem=", ".join(causes))
        readings: dict[str, float] = {}
        # Stale readings of a GPU that does not answer are not shown.
        for name, field in METRICS.items() if not causes and Cadence.FAST in gpu.read_at else ():
            if (value := gpu.values.get(name)) is not None:
                readings[field] = float(sum(value.values()) if isinstance(value, Mapping) else value)
        return _with_values(row, readings)

    def _holdings(self, gpu: GpuSample) -> Sequence[workloads.Holding]:
        current = self._holders.current.get(gpu.identity["uuid"])
        return () if current is None else current.holdings

    def _programs(self, gpu: GpuSample) -> Iterable[top_rows.ProgramLine]:
        holdings = self._holdings(gpu)
        for program in gpu.programs or ():
            facts = proc_programs.read(self._roots.proc, program.pid, self._users)
            facts = facts or proc_programs.ProgramFacts(program.pid)
            instance = None if program.instance_id is None else str(program.instance_id)
            names = {str(holding.workload) for holding in holdings if holding.slice == instance} - {facts.command}
            workload = facts.slurm_job or (", ".join(sorted(names)) if len(names) == 1 else "")
            yield top_rows.ProgramLine(
                gpu.index, program.pid, facts.user, facts.command, workload, program.busy_percent
            )


def _with_values(row: top_rows.TopRow, readings: Mapping[str, float]) -> top_rows.TopRow:
    used, free = readings.get("memory_used_mib"), readings.get("free")
    return replace(
        row,
        util=readings.get("util"),
        memory_used_mib=used,
        memory_mib=None if used is None or free is None else used + free,
        celsius=readings.get("celsius"),
        watts=readings.get("watts"),
    )


def _add_problems(rows: Iterable[top_rows.TopRow], cards: Iterable[answers.IncidentCard]) -> list[top_rows.TopRow]:
    """Rows with the cause of the most severe open incident of the GPU or its node."""
    at_gpu: dict[str, str] = {}
    at_node: dict[str, str] = {}
    for card in sorted(cards, key=lambda card: -_rank_incident(card)[0]):
        if card.place.gpu is not None:
            at_gpu |= dict.fromkeys([*card.gpus, card.place.gpu], card.cause)
        elif card.place.node is not None:
            at_node[card.place.node] = card.cause
    if not at_gpu and not at_node:
        return list(rows)
    return [
        replace(row, problem=cause) if (cause := at_gpu.get(row.uuid) or at_node.get(row.node)) else row for row in rows
    ]


def _rank_incident(card: answers.IncidentCard) -> tuple[int, float]:
    severity = card.severity.value
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES), -card.opened_at.timestamp()
