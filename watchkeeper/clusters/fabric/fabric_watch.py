"""The fabric, looked at again and again: the newest sweep, what changed since the one before, and series of it.

The hub runs `refresh` on an interval where `[fabric]` asks for it, appends `series` with its other standing series, and
takes the events. A sweep from another host comes in through `take`. `leaf_of` is for the inventory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from watchkeeper.catalogue import infiniband
from watchkeeper.clusters.fabric import fabric_changes, fabric_sweep, ufm
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import clock, files, logs, wire
from watchkeeper.model import events, fabric, fleet
from watchkeeper.model.labels import METRIC_NAME, Labels

log = logging.getLogger(__name__)

SOURCE = "fabric"
# Series of one fabric; a port in use has nine, so this is room for 20,000.
MAX_SERIES = 200_000
SWEEP_OK = "watchkeeper_fabric_sweep_ok"
# Errors that are counted from zero on, so that the first of them is an increase; the others appear with their first.
ALWAYS_COUNTED = ("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors")
# The counters of traffic are in words of four bytes.
TRAFFIC = {"PortXmitData": ("transmitted", 4), "PortRcvData": ("received", 4)}
# Counts of packets say nothing that bytes do not.
NOT_ERRORS = ("Pkts", "Data")
# A sweep counts for as many intervals; after that nobody knows how the fabric is.
FRESH_INTERVALS = 3


class FabricWatch:
    """One fabric. `fabric` is the newest sweep, None before the first; `problem` is why the last try brought none."""

    def __init__(self, settings: config.FabricSettings, cluster: str, *, kept: Path | None = None) -> None:
        self.settings = settings
        self.cluster = cluster
        self.fabric: fabric.Fabric | None = None
        self.layout: fabric.FabricTopology | None = None
        self.problem = ""
        self._taken_ms: int | None = None
        self._series: dict[Labels, float] = {}
        self._kept = kept
        self.known_fabric = _load(kept)

    async def refresh(self, now: datetime) -> list[events.Event]:
        """Look at the fabric once; what cannot be read is said once, and leaves the last sweep as it was."""
        at_ms = clock.to_ms(now)
        try:
            if self.settings.ufm_url is not None:
                found = await ufm.read_fabric(self.settings, at_ms=at_ms)
            else:
                found = await asyncio.to_thread(fabric_sweep.sweep, sweep_settings(self.settings), at_ms=at_ms)
        except CollectError as error:
            if str(error) != self.problem:
                log.warning("The fabric could not be read", extra=logs.fields(error=error))
            self.problem = str(error)
            return []
        return await asyncio.to_thread(self.accept_sweep, found, now)

    def accept_sweep(self, found: fabric.Fabric, now: datetime) -> list[events.Event]:
        """The newest sweep, from here or from another host; returns what changed with it.

        A large fabric takes a second: callers on an event loop do this in a thread.
        """
        layout = fabric.FabricTopology(found)
        self.problem = "; ".join([*found.problems, *self._doubts(layout)])
        before = self.known_fabric
        changes: list[fabric_changes.FabricChange] = []
        if not self.problem:
            self.known_fabric, changes = fabric_changes.compare_sweep(before, layout, clock.to_ms(now))
        for name in layout.shared_names():
            log.warning("Switches share a name; their GUIDs tell them apart", extra=logs.fields(name=name))
        self.fabric, self.layout, self._taken_ms = found, layout, clock.to_ms(now)
        self._series = self._make_series(found, layout)
        if self.known_fabric != before:
            self._keep()
        return [self._event(change, now) for change in changes]

    def is_fresh(self, now_ms: int) -> bool:
        """False before the first sweep, and when the last one is too old to speak for now."""
        limit_ms = FRESH_INTERVALS * self.settings.interval_seconds * 1000
        return self._taken_ms is not None and now_ms - self._taken_ms <= limit_ms

    def _doubts(self, layout: fabric.FabricTopology) -> Iterator[str]:
        """A host that has lost its own link sees no switch; that says nothing about the switches."""
        if not layout.switches() and any(switch.gone_since_ms is None for switch in self.known_fabric.switches):
            yield "the host that sweeps sees no switch any more: its own link is down, the rest is unknown"

    def _event(self, change: fabric_changes.FabricChange, now: datetime) -> events.Event:
        kind = events.EventKind.FABRIC_UP if change.is_up else events.EventKind.FABRIC_DOWN
        if change.link is not None:
            where = f"{change.link.guid}/{change.link.port}"
            named = {"switch": change.link.switch, "port": str(change.link.port), "peer": change.link.peer}
        else:
            assert change.switch is not None
            where, named = change.switch.guid, {"switch": change.switch.name}
        id = f"{self.cluster}/{SOURCE}/{where}/{kind}/{clock.to_ms(now)}"
        return events.Event(id, kind, None, self._place(change), now, change.text, fields={**named, "source": SOURCE})

    def _place(self, change: fabric_changes.FabricChange) -> fleet.Place:
        link, switch = change.link, change.switch
        if link is not None and link.adapter:
            return fleet.Place(self.cluster, node=link.peer, port=link.adapter)
        if link is not None:
            return fleet.Place(self.cluster, domain=f"link={link.switch}/{link.port}")
        assert switch is not None
        return fleet.Place(self.cluster, domain=f"{'leaf' if switch.is_leaf else 'switch'}={switch.name}")

    def leaf_by_node(self) -> dict[str, str]:
        """Node → leaf of its first adapter; a cable that is dark now does not move the node to another leaf."""
        hosts = [link for link in self.known_fabric.links if link.adapter]
        hosts.sort(key=lambda link: fabric.natural_sort_key(link.adapter), reverse=True)
        seen = {} if self.layout is None else self.layout.leaf_by_node()
        return seen | {link.peer: link.switch for link in hosts}

    # Series

    def series(self, now_ms: int) -> dict[Labels, float]:
        """The state of the fabric as series, to be appended at the same interval as the hub's others.

        After the last sweep has become too old there is only the word that it has.
        """
        if self.fabric is None:
            return {}
        is_fresh = self.is_fresh(now_ms)
        is_whole = is_fresh and not self.problem and not self.fabric.unread
        ok = {Labels({METRIC_NAME: SWEEP_OK, "cluster": self.cluster}): float(is_whole)}
        return ok | self._series if is_fresh else ok

    def _make_series(self, swept: fabric.Fabric, layout: fabric.FabricTopology) -> dict[Labels, float]:
        found: dict[Labels, float] = {}
        for name, named, value in self._rows(swept, layout):
            if len(found) >= MAX_SERIES:
                log.warning("The fabric has more series than are kept", extra=logs.fields(limit=MAX_SERIES))
                break
            found[Labels({METRIC_NAME: name, "cluster": self.cluster, **named})] = value
        return found

    def _rows(self, found: fabric.Fabric, layout: fabric.FabricTopology) -> Iterator[tuple[str, dict[str, str], float]]:
        yield "watchkeeper_fabric_sweep_seconds", {}, found.seconds
        for state, count in Counter(port.state for port in found.ports).items():
            yield "watchkeeper_fabric_ports", {"state": state}, float(count)
        for switch in self.known_fabric.switches:
            role = "leaf" if switch.is_leaf else "spine"
            yield "watchkeeper_fabric_switch_up", {"switch": switch.name, "role": role}, float(not switch.gone_since_ms)
        for link in self.known_fabric.links:
            port = layout.ports.get(link.key)
            where = {"switch": link.switch, "port": str(link.port), "peer": link.peer, "peer_port": str(link.peer_port)}
            # What is wrong with a cable is trouble of its host, and of its leaf where it is a trunk.
            where |= {"Hostname": link.peer, "device": link.adapter} if link.adapter else {"leaf": link.switch}
            is_down = link.down_since_ms is not None
            state_id = 1 if is_down or port is None else fabric.STATE_IDS.get(port.state)
            if state_id is not None:
                yield "watchkeeper_fabric_port_state_id", where, float(state_id)
            if port is not None and not is_down:
                yield from _port_rows(port, where, is_slow=port.key in layout.slow_ports)

    def _keep(self) -> None:
        if self._kept is None:
            return
        try:
            files.write_atomically(self._kept, wire.dumps(self.known_fabric).encode())
        except OSError as error:
            log.warning("What is known of the fabric was not kept", extra=logs.fields(error=error.strerror))


def _port_rows(
    port: fabric.FabricPort, where: Mapping[str, str], *, is_slow: bool
) -> Iterator[tuple[str, dict[str, str], float]]:
    if port.gbps is not None:
        yield "watchkeeper_fabric_port_rate_bytes_per_second", dict(where), port.gbps * 1e9 / 8
        yield "watchkeeper_fabric_port_slow", dict(where), float(is_slow)
    if port.counters is None:
        return
    counted = dict.fromkeys(ALWAYS_COUNTED, 0) | dict(port.counters)
    for name, value in counted.items():
        if name in TRAFFIC:
            direction, scale = TRAFFIC[name]
            yield "watchkeeper_fabric_port_data_bytes_total", {**where, "direction": direction}, float(value * scale)
        elif not name.endswith(NOT_ERRORS):
            yield "watchkeeper_fabric_port_errors_total", {**where, "counter": name}, float(value)
            if value and value == infiniband.counter_maximum(name):
                yield "watchkeeper_fabric_port_counter_at_maximum", {**where, "counter": name}, 1.0


def sweep_settings(settings: config.FabricSettings) -> fabric_sweep.SweepSettings:
    return fabric_sweep.SweepSettings(
        settings.timeout_seconds,
        settings.adapter,
        settings.port,
        None if settings.node_names is None else Path(settings.node_names),
    )


def _load(path: Path | None) -> fabric_changes.KnownFabric:
    """What was known before a restart; a file that is damaged costs that knowledge and nothing else."""
    if path is None or not path.exists():
        return fabric_changes.KnownFabric()
    try:
        return wire.loads(fabric_changes.KnownFabric, path.read_bytes())
    except (OSError, WireError) as error:
        log.warning("What was known of the fabric cannot be read", extra=logs.fields(path=str(path), error=error))
        return fabric_changes.KnownFabric()
