"""All inputs on one clock, as far as that can be: the first error is the first in time, not in the list of files.

Logs of ranks, nodes and kernels tell time in different ways: with a date, without a year, in seconds since boot, or
not at all. A date without a year gets the year of the other lines; seconds since boot become a time where some line
of the same node has both; a line without a clock stands after the last one with a clock. What cannot be placed keeps
the order of reading, and that is said. `examine` calls `settle` once, before any judgement looks at the facts.
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
MAX_INPUTS_NAMED = 4
# Inputs in which one thing happens after another; a listing has no order to be known.
LOGS = frozenset(
    {
        *("kernel_log", "pstore_dmesg", "system_log", "nccl_log", "training_log", "application_log", "serving_log"),
        *("ray_log", "slurm_log", "device_plugin_log", "dcgm_exporter_log", "fabric_manager_log", "python_traceback"),
    }
)


@dataclass(frozen=True, slots=True)
class _Clocks:
    """What is needed to read a clock: when each node booted, and a time near all others that gives dates their year."""

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
        booted = self.booted.get(_machine(sighting))
        return None if booted is None or clock.since_boot is None else booted + timedelta(seconds=clock.since_boot)


def settle(facts: DoctorFacts) -> None:
    """Name the nodes and ranks that only the inputs' names tell, and put everything in the order of time."""
    sightings = _named(facts.all())
    clocks = _clocks(sightings)
    sightings = [
        sighting if (at := clocks.read(sighting)) is None else replace(sighting, at=at) for sighting in sightings
    ]
    placed = {sighting.input for sighting in sightings if sighting.at is not None}
    unplaced = list(dict.fromkeys(sighting.input for sighting in sightings if sighting.input not in placed))
    facts.replace_all(_in_order(sightings))
    _date_events(facts)
    logs = {given.name for given in facts.inputs if given.kind in LOGS}
    unknown = [name for name in unplaced if name in logs]
    if unknown and len(logs & {sighting.input for sighting in sightings}) > 1:
        named = ", ".join(unknown[:MAX_INPUTS_NAMED]) + (" and others" if len(unknown) > MAX_INPUTS_NAMED else "")
        facts.notes.append(f"order unknown: no line of {named} tells the time of day")


def _in_order(sightings: Sequence[Sighting]) -> list[Sighting]:
    """By time where there is one, then by line; a line without a time stays behind the one that was read before it."""
    keyed: list[tuple[datetime, int, int, int, Sighting]] = []
    last: dict[str, datetime] = {}
    inputs = {name: at for at, name in enumerate(dict.fromkeys(sighting.input for sighting in sightings))}
    earliest = min(
        (sighting.at for sighting in sightings if sighting.at is not None), default=datetime(1970, 1, 1, tzinfo=UTC)
    )
    for sighting in sorted(sightings, key=lambda sighting: (inputs[sighting.input], sighting.line, sighting.order)):
        at = sighting.at or last.get(sighting.input, earliest)
        # A log that was written by several ranks at once may step back a little; its lines keep their places.
        at = max(at, last.get(sighting.input, at))
        last[sighting.input] = at
        keyed.append((at, inputs[sighting.input], sighting.line, sighting.order, sighting))
    return [key[-1] for key in sorted(keyed, key=lambda key: key[:-1])]


def _clocks(sightings: Iterable[Sighting]) -> _Clocks:
    whole = [
        sighting.clock.at for sighting in sightings if sighting.clock is not None and sighting.clock.at is not None
    ]
    reference = None
    if whole:
        reference = datetime.fromtimestamp(median(at.timestamp() for at in whole), UTC)
    booted: dict[str, datetime] = {}
    for sighting in sightings:
        clock = sighting.clock
        if clock is None or clock.since_boot is None:
            continue
        at = clock.at or (None if clock.yearless is None else _with_year(clock.yearless, reference))
        if at is not None:
            booted.setdefault(_machine(sighting), at - timedelta(seconds=clock.since_boot))
    return _Clocks(booted, reference)


def _with_year(yearless: datetime, reference: datetime | None) -> datetime:
    """The year that brings a date nearest to the others; without any other it stays in its stand-in year."""
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


def _machine(sighting: Sighting) -> str:
    return short_name(sighting.fields["node"]) if "node" in sighting.fields else sighting.input


def short_name(node: str) -> str:
    """A node's name without its domain, as logs write it with and without; an address stays whole."""
    return node if node.replace(".", "").isdigit() else node.partition(".")[0].lower()


def _named(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Sightings with the node and the rank that their input's name tells where their line does not."""
    nodes = {
        node: short_name(node)
        for node in {sighting.fields["node"] for sighting in sightings if "node" in sighting.fields}
    }
    fields_by_input: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys(sighting.input for sighting in sightings):
        lowered = name.lower()
        matching_nodes = {
            node
            for node, short in nodes.items()
            if short in lowered and re.search(rf"(?<![\w-]){re.escape(short)}(?![\w-])", lowered)
        }
        rank = flight_recorder.RANK_OF_NAME.search(name.rsplit("/", 1)[-1])
        fields_by_input[name] = ({"node": matching_nodes.pop()} if len(matching_nodes) == 1 else {}) | (
            {"rank": rank[1]} if rank else {}
        )
    return [
        replace(sighting, fields={**fields_by_input[sighting.input], **sighting.fields})
        if fields_by_input[sighting.input]
        else sighting
        for sighting in sightings
    ]


def _date_events(facts: DoctorFacts) -> None:
    """Events in the order of time, with the time and the node that became known."""
    by_line = {
        (sighting.input, sighting.line): sighting for sighting in facts.all() if sighting.sign.startswith("kernel-")
    }
    for event in facts.events:
        sighting = by_line.get((event["input"], event["line"]))
        if sighting is not None:
            is_dated = sighting.at is not None and sighting.at.year != line_prefix.YEARLESS
            event["at"] = sighting.at.isoformat() if is_dated and sighting.at is not None else None
            event["node"] = event["node"] or sighting.fields.get("node")
    order = {key: sighting.order for key, sighting in by_line.items()}
    if all((event["input"], event["line"]) in order for event in facts.events):
        facts.events.sort(key=lambda event: order[event["input"], event["line"]])
