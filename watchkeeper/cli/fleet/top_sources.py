"""Where `watchkeeper top` looks: the GPUs of this node through NVML, or a hub, page by page.

A hub of ten thousand GPUs is asked for its inventory now and then, and for the readings of one page each time; which
GPUs are on a page that is ordered by a number is the engine's `topk`. The local source is the agent's own reader and
the agent's own attribution, so that both say the same about a GPU.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from watchkeeper.agent import node_facts
from watchkeeper.agent.attribution import node_holders
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.agent.gpus.sampler import Sampler
from watchkeeper.cli.fleet.top_rows import (
    IncidentLine,
    ProgramLine,
    SortColumn,
    TopPage,
    TopRow,
    TopView,
    matches_filter,
    page_rows,
    sort_rows,
)
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import own_metrics
from watchkeeper.readers.node import proc_programs
from watchkeeper.readers.nvml.families import Cadence

INVENTORY_SECONDS = 30.0
# GPUs that are asked for by name in one question; a filter that leaves more is ordered among the largest only.
MOST_ASKED = 400
MOST_RANKED = 2000
MOST_INCIDENTS = 100
METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": "util",
    "DCGM_FI_DEV_FB_USED": "memory_used_mib",
    "DCGM_FI_DEV_FB_FREE": "free",
    "DCGM_FI_DEV_GPU_TEMP": "celsius",
    "DCGM_FI_DEV_POWER_USAGE": "watts",
}
RANKED_BY = {
    SortColumn.UTIL: "DCGM_FI_DEV_GPU_UTIL",
    SortColumn.MEMORY: "DCGM_FI_DEV_FB_USED",
    SortColumn.TEMP: "DCGM_FI_DEV_GPU_TEMP",
    SortColumn.POWER: "DCGM_FI_DEV_POWER_USAGE",
}
SEVERITIES = ("critical", "warning", "info")


class PageSource(Protocol):
    """Somebody who can fill a page; called from one thread at a time."""

    def read(self, view: TopView) -> TopPage: ...


class HubSource:
    """A whole hub."""

    def __init__(self, hub: Client) -> None:
        self._hub = hub
        self._gpus: dict[str, TopRow] = {}
        self._read_at = float("-inf")

    def read(self, view: TopView) -> TopPage:
        cards, status = self._hub.incidents(), self._hub.status()
        if time.monotonic() - self._read_at >= INVENTORY_SECONDS:
            self._take_inventory()
        rows = _troubled(self._gpus.values(), cards)
        wanted = {row.uuid: row for row in rows if matches_filter(row, view.text)}
        chosen, notes = self._chosen(wanted, view)
        return TopPage(
            f"hub {status.cluster}",
            tuple(self._with_readings(chosen)),
            len(wanted),
            incidents=_lines(cards),
            notes=(*(f"degraded: {one}" for one in status.degraded), *notes),
            is_troubled=bool(cards),
        )

    def _take_inventory(self) -> None:
        found = self._hub.fleet()
        held = found.workloads or {}
        self._gpus = {
            gpu.uuid: TopRow(gpu.uuid, node.name, gpu.index, gpu.model or "", held.get(gpu.uuid, ""))
            for node in found.nodes
            for gpu in node.gpus
            if gpu is not None
        }
        self._read_at = time.monotonic()

    def _chosen(self, wanted: Mapping[str, TopRow], view: TopView) -> tuple[list[TopRow], list[str]]:
        """The rows of the page, without their readings."""
        metric = RANKED_BY.get(view.sort)
        if metric is None:
            return list(page_rows(sort_rows(wanted.values(), view), view)), []
        if view.text and len(wanted) <= MOST_ASKED:
            return list(page_rows(sort_rows(self._with_readings(wanted.values()), view), view)), []
        first = view.offset + view.limit if not view.text else MOST_RANKED
        word = "bottomk" if view.is_reversed else "topk"
        # By UUID alone, because the other labels of thousands of series are many bytes.
        ranked = self._hub.query(f'{word}({first}, max by (UUID) ({metric}{{GPU_I_ID=""}}))').series
        known = [wanted[uuid] for one in ranked if (uuid := one.labels.get("UUID", "")) in wanted]
        notes = [f"among the first {MOST_RANKED:,} by {view.sort} only"] if view.text else []
        if len(known) < first and not view.text:
            # What does not report has no number, and comes after what does.
            silent = wanted.keys() - {row.uuid for row in known}
            known += sort_rows(
                (wanted[uuid] for uuid in silent), replace(view, sort=SortColumn.NAME, is_reversed=False)
            )
        return list(page_rows(known, view)), notes

    def _with_readings(self, rows: Iterable[TopRow]) -> list[TopRow]:
        named = {row.uuid: row for row in rows}
        if not named:
            return []
        uuids, metrics = "|".join(named), "|".join(METRICS)
        found: dict[str, dict[str, float]] = {}
        for one in self._hub.query(f'{{__name__=~"{metrics}",UUID=~"{uuids}",GPU_I_ID=""}}').series:
            name, newest = METRICS.get(one.labels.get("__name__", "")), one.newest
            if name is not None and newest is not None:
                found.setdefault(one.labels["UUID"], {})[name] = newest
        return [_filled(row, found.get(uuid, {})) for uuid, row in named.items()]


class LocalSource:
    """The GPUs of this node, with the programs on them."""

    def __init__(self, sampler: Sampler, *, node: str, roots: node_facts.Roots) -> None:
        self._sampler = sampler
        self._node = node
        self._roots = roots
        self._users = proc_programs.read_users(roots.root / Path("etc/passwd"))
        settings = node_holders.HolderSettings()
        self._holders = node_holders.NodeHolders(settings, node, roots=roots, registry=own_metrics.Registry())
        # Slow sources are asked across refreshes, so all of them share one loop.
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.close()

    def read(self, view: TopView) -> TopPage:
        self._loop.run_until_complete(self._holders.refresh(self._sampler))
        gpus = self._sampler.snapshot().gpus
        faults = self._sampler.faults()
        rows = [
            self._row(gpu, [fault.cause for fault in faults if fault.place.gpu == gpu.identity["uuid"]]) for gpu in gpus
        ]
        wanted = [row for row in rows if matches_filter(row, view.text)]
        # A GPU that was lost before anybody looked has no row to say it in.
        seen = {row.uuid for row in rows}
        notes = [f"{fault.cause}: {fault.evidence}" for fault in faults if fault.place.gpu not in seen]
        programs = tuple(line for gpu in gpus for line in self._programs(gpu))
        shown = page_rows(sort_rows(wanted, view), view)
        return TopPage(self._node, shown, len(wanted), programs=programs, notes=tuple(notes), is_troubled=bool(faults))

    def _row(self, gpu: GpuSample, causes: list[str]) -> TopRow:
        values = {METRICS[name]: _one(gpu.values.get(name)) for name in METRICS}
        found = self._holders.current.get(gpu.identity["uuid"])
        held = ", ".join(dict.fromkeys(str(one.workload) for one in found.holdings)) if found is not None else ""
        # Old readings of a GPU that no longer answers are not repeated.
        fresh = {} if causes or Cadence.FAST not in gpu.read_at else values
        row = TopRow(
            gpu.identity["uuid"], self._node, gpu.index, gpu.identity["model"], held, trouble=", ".join(causes)
        )
        return _filled(row, {name: value for name, value in fresh.items() if value is not None})

    def _programs(self, gpu: GpuSample) -> Iterable[ProgramLine]:
        attribution = self._holders.current.get(gpu.identity["uuid"])
        holdings = () if attribution is None else attribution.holdings
        for program in gpu.programs or ():
            facts = proc_programs.read(self._roots.proc, program.pid, self._users)
            known = facts or proc_programs.ProgramFacts(program.pid)
            part = None if program.instance_id is None else str(program.instance_id)
            names = {str(one.workload) for one in holdings if one.slice == part} - {known.command}
            workload = known.slurm_job or (", ".join(sorted(names)) if len(names) == 1 else "")
            yield ProgramLine(gpu.index, program.pid, known.user, known.command, workload, program.busy_percent)


def _one(value: Any) -> float | None:
    """A number; one that comes in parts is added up."""
    if value is None:
        return None
    return float(sum(value.values()) if isinstance(value, Mapping) else value)


def _filled(row: TopRow, readings: Mapping[str, float]) -> TopRow:
    used, free = readings.get("memory_used_mib"), readings.get("free")
    return replace(
        row,
        util=readings.get("util"),
        memory_used_mib=used,
        memory_mib=None if used is None or free is None else used + free,
        celsius=readings.get("celsius"),
        watts=readings.get("watts"),
    )


def _troubled(rows: Iterable[TopRow], cards: Iterable[answers.IncidentCard]) -> list[TopRow]:
    """Rows with the cause of the gravest open incident at the GPU, or at its whole node."""
    at_gpu: dict[str, str] = {}
    at_node: dict[str, str] = {}
    for card in sorted(cards, key=lambda card: -_rank(card.severity.value)):
        if card.place.gpu is not None:
            at_gpu |= dict.fromkeys([*card.gpus, card.place.gpu], card.cause)
        elif card.place.node is not None:
            at_node[card.place.node] = card.cause
    if not at_gpu and not at_node:
        return list(rows)
    return [
        replace(row, trouble=cause) if (cause := at_gpu.get(row.uuid) or at_node.get(row.node)) else row for row in rows
    ]


def _lines(cards: Iterable[answers.IncidentCard]) -> tuple[IncidentLine, ...]:
    gravest = sorted(cards, key=lambda card: (_rank(card.severity.value), -card.opened_at.timestamp()))
    return tuple(
        IncidentLine(card.id, card.severity.value, card.title, card.next_step or "")
        for card in gravest[:MOST_INCIDENTS]
    )


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
