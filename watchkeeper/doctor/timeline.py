"""Order the sightings of all inputs by time, so that the first error is the first in time and not in the list of files.

A date without a year gets the year of the other lines, and seconds since boot become a time if a line of the same node
has both. A line without a clock follows the last line with one; other lines keep the reading order, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import median

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.readers import flight_recorder
from watchkeeper.readers.logs import line_prefix

HALF_A_YEAR = timedelta(days=183)
MAX_LISTED_INPUTS = 4
# Kinds of input whose lines are in order of time; a listing has no order.
LOGS = frozenset(
    {
        *("kernel_log", "pstore_dmesg", "system_log", "nccl_log", "training_log", "application_log", "serving_log"),
        *("ray_log", "slurm_log", "device_plugin_log", "dcgm_exporter_log", "fabric_manager_log", "python_traceback"),
    }
)


@dataclass(frozen=True, slots=True)
class _Clocks:
    """The boot time of each node, and a reference time that gives dates their year."""

    booted: Mapping[str, datetime]
    reference: datetime | None

    def read(self, sighting: Sighting) -> datetime | None:
        clock = sighting.clock
        if clock is None:
            return None
        if clock.at is not None:
            return clock.at
        if clock.yearless is not None:
            return _with_year(clock.yearless, self.reference)
        booted = self.booted.get(_node_or_input(sighting))
        return None if booted is None or clock.since_boot is None else booted + timedelta(seconds=clock.since_boot)


def order_by_time(facts: DoctorFacts) -> None:
    """Add the nodes and ranks in the names of inputs to the sightings, and order everything by time."""
    sightings = _with_input_names(facts.all_sightings())
    clocks = _read_clocks(sightings)
    sightings = [replace(sighting, at=clocks.read(sighting)) for sighting in sightings]
    inputs_with_time = {sighting.input for sighting in sightings if sighting.at is not None}
    facts.replace_all(_sort_by_time(sightings))
    _set_event_times(facts)
    logs = {given.name for given in facts.inputs if given.kind in LOGS}
    names = dict.fromkeys(sighting.input for sighting in sightings)
    unordered = [name for name in names if name in logs and name not in inputs_with_time]
    if unordered and len(logs & names.keys()) > 1:
        others = " and others" if len(unordered) > MAX_LISTED_INPUTS else ""
        listed = ", ".join(unordered[:MAX_LISTED_INPUTS])
        facts.notes.append(f"order unknown: no line of {listed}{others} has a time of day")


def _sort_by_time(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Sort by time, then by line; a line without a time stays after the line before it."""
    keyed: list[tuple[datetime, int, int, int, Sighting]] = []
    last: dict[str, datetime] = {}
    inputs = {name: at for at, name in enumerate(dict.fromkeys(sighting.input for sighting in sightings))}
    times = (sighting.at for sighting in sightings if sighting.at is not None)
    earliest = min(times, default=datetime(1970, 1, 1, tzinfo=UTC))
    for sighting in sorted(sightings, key=lambda sighting: (inputs[sighting.input], sighting.line, sighting.order)):
        at = sighting.at or last.get(sighting.input, earliest)
        # The times of a log of several ranks may go back a little; its lines keep their order.
        at = max(at, last.get(sighting.input, at))
        last[sighting.input] = at
        keyed.append((at, inputs[sighting.input], sighting.line, sighting.order, sighting))
    return [key[-1] for key in sorted(keyed, key=lambda key: key[:-1])]


def _read_clocks(sightings: Iterable[Sighting]) -> _Clocks:
    clocks = [(sighting, sighting.clock) for sighting in sightings if sighting.clock is not None]
    seconds = [clock.at.timestamp() for _, clock in clocks if clock.at is not None]
    reference = datetime.fromtimestamp(median(seconds), UTC) if seconds else None
    booted: dict[str, datetime] = {}
    for sighting, clock in clocks:
        at = clock.at or (None if clock.yearless is None else _with_year(clock.yearless, reference))
        if at is not None and clock.since_boot is not None:
            booted.setdefault(_node_or_input(sighting), at - timedelta(seconds=clock.since_boot))
    return _Clocks(booted, reference)


def _with_year(yearless: datetime, reference: datetime | None) -> datetime:
    """The date in the year that is nearest to the reference; without a reference, in its placeholder year."""
    if reference is None:
        return yearless
    at = yearless
    for year in (reference.year - 1, reference.year, reference.year + 1):
        try:
            at = yearless.replace(year=year)
        except ValueError:  # the 29th of February
            continue
        if abs(at - reference) <= HALF_A_YEAR:
            return at
    return at


def _node_or_input(sighting: Sighting) -> str:
    return short_name(sighting.fields["node"]) if "node" in sighting.fields else sighting.input


def short_name(node: str) -> str:
    """The name of a node without its domain, because logs write both; an address is not changed."""
    return node if node.replace(".", "").isdigit() else node.partition(".")[0].lower()


def _with_input_names(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Add the node and the rank in the name of the input to sightings whose line has none."""
    nodes = {
        node: short_name(node)
        for node in {sighting.fields["node"] for sighting in sightings if "node" in sighting.fields}
    }
    fields_by_input: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys(sighting.input for sighting in sightings):
        matching_nodes = [node for node, short in nodes.items() if _contains_name(name.lower(), short)]
        rank = flight_recorder.RANK_OF_NAME.search(name.rsplit("/", 1)[-1])
        fields = {"node": matching_nodes[0]} if len(matching_nodes) == 1 else {}
        fields_by_input[name] = fields | ({"rank": rank[1]} if rank else {})
    return [
        replace(sighting, fields={**fields, **sighting.fields})
        if (fields := fields_by_input[sighting.input])
        else sighting
        for sighting in sightings
    ]


def _contains_name(text: str, name: str) -> bool:
    return name in text and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _set_event_times(facts: DoctorFacts) -> None:
    """Set the time and the node of events, and order them by time."""
    kernel_lines = (sighting for sighting in facts.all_sightings() if sighting.sign.startswith("kernel-"))
    by_line = {(sighting.input, sighting.line): sighting for sighting in kernel_lines}
    for event in facts.events:
        sighting = by_line.get((event["input"], event["line"]))
        if sighting is not None:
            at = sighting.at
            event["at"] = at.isoformat() if at is not None and at.year != line_prefix.YEARLESS else None
            event["node"] = event["node"] or sighting.fields.get("node")
    order = {key: sighting.order for key, sighting in by_line.items()}
    if all((event["input"], event["line"]) in order for event in facts.events):
        facts.events.sort(key=lambda event: order[event["input"], event["line"]])
