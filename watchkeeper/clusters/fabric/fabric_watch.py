"""Keep the newest sweep of the fabric, with its series and the events of its changes.

If `[fabric]` configures a source, the hub calls `refresh` on an interval; a sweep from another host arrives through
`accept_sweep`. `leaf_by_node` is for the inventory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from watchkeeper.catalogue import tables
from watchkeeper.clusters.fabric import fabric_changes, fabric_sweep, ufm
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError, WireError
from watchkeeper.kit import clock, files, logs, wire
from watchkeeper.model import events, fabric, fleet
from watchkeeper.model.labels import METRIC_NAME, Labels

log = logging.getLogger(__name__)

SOURCE = "fabric"
# Series of one fabric; a port in use has nine, so this is enough for 20,000 ports.
MAX_SERIES = 200_000
SWEEP_OK = "watchkeeper_fabric_sweep_ok"
# Errors with a series from zero, so that the first one is an increase; other errors get a series at their first value.
ALWAYS_COUNTED = ("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors")
# Traffic counters count words of four bytes.
TRAFFIC = {"PortXmitData": ("transmitted", 4), "PortRcvData": ("received", 4)}
# Packet counts add nothing to byte counts.
NOT_ERRORS = ("Pkts", "Data")
# A sweep is current for this many intervals; after that the state of the fabric is unknown.
FRESH_INTERVALS = 3


class FabricWatch:
    """One fabric. `fabric` is the newest sweep, None before the first; `problem` is why the last sweep failed."""

    def __init__(self, settings: config.FabricSettings, cluster: str, *, state_path: Path | None = None) -> None:
        self.settings = settings
        self.cluster = cluster
        self.fabric: fabric.Fabric | None = None
        self.topology: fabric.FabricTopology | None = None
        self.problem = ""
        self._accepted_ms: int | None = None
        self._series: dict[Labels, float] = {}
        self._state_path = state_path
        self.known_fabric = _load_state(state_path)

    async def refresh(self, now: datetime) -> list[events.Event]:
        """Sweep the fabric once; if that fails, keep the last sweep and log each new problem once."""
        at_ms = clock.to_ms(now)
        try:
            if self.settings.ufm_url is not None:
                sweep = await ufm.read_fabric(self.settings, at_ms=at_ms)
            else:
                sweep = await asyncio.to_thread(fabric_sweep.sweep, sweep_settings(self.settings), at_ms=at_ms)
        except CollectError as error:
            if str(error) != self.problem:
                log.warning("fabric sweep failed", extra=logs.fields(error=error))
            self.problem = str(error)
            return []
        return await asyncio.to_thread(self.accept_sweep, sweep, now)

    def accept_sweep(self, sweep: fabric.Fabric, now: datetime) -> list[events.Event]:
        """Store a sweep from this or another host, and return an event for each change."""
        # A large fabric takes a second: callers on an event loop must use a thread.
        topology = fabric.FabricTopology(sweep)
        problems, before = list(sweep.problems), self.known_fabric
        if not topology.switches() and any(switch.gone_since_ms is None for switch in before.switches):
            # A host without a link sees no switch; this does not mean that the switches are down.
            problems.append(
                "the sweep lists no switch any more: its host lost its link, the state of the fabric is unknown"
            )
        self.problem = "; ".join(problems)
        changes: list[fabric_changes.FabricChange] = []
        if not self.problem:
            self.known_fabric, changes = fabric_changes.compare_sweep(before, topology, clock.to_ms(now))
        for name in topology.shared_names():
            log.warning("duplicate switch name, using GUIDs", extra=logs.fields(name=name))
        self.fabric, self.topology, self._accepted_ms = sweep, topology, clock.to_ms(now)
        self._series = self._build_series(sweep, topology)
        if self.known_fabric != before:
            self._save_state()
        return [self._build_event(change, now) for change in changes]

    def is_fresh(self, now_ms: int) -> bool:
        """Whether there is a sweep that is not older than `FRESH_INTERVALS`."""
        limit_ms = FRESH_INTERVALS * self.settings.interval_seconds * 1000
        return self._accepted_ms is not None and now_ms - self._accepted_ms <= limit_ms

    def _build_event(self, change: fabric_changes.FabricChange, now: datetime) -> events.Event:
        kind = events.EventKind.FABRIC_UP if change.is_up else events.EventKind.FABRIC_DOWN
        link, switch = change.link, change.switch
        if link is not None:
            subject, place = f"{link.guid}/{link.port}", fleet.Place(self.cluster, node=link.peer, port=link.adapter)
            if not link.adapter:
                place = fleet.Place(self.cluster, domain=f"link={link.switch}/{link.port}")
            fields = {"switch": link.switch, "port": str(link.port), "peer": link.peer}
        else:
            assert switch is not None
            subject, fields = switch.guid, {"switch": switch.name}
            place = fleet.Place(self.cluster, domain=f"{'leaf' if switch.is_leaf else 'switch'}={switch.name}")
        id = f"{self.cluster}/{SOURCE}/{subject}/{kind}/{clock.to_ms(now)}"
        return events.Event(id, kind, None, place, now, change.text, fields={**fields, "source": SOURCE})

    def leaf_by_node(self) -> dict[str, str]:
        """Node → leaf of its first adapter; a link that is down does not move the node to another leaf."""
        hosts = [link for link in self.known_fabric.links if link.adapter]
        hosts.sort(key=lambda link: fabric.natural_sort_key(link.adapter), reverse=True)
        current = {} if self.topology is None else self.topology.leaf_by_node()
        return current | {link.peer: link.switch for link in hosts}

    def series(self, now_ms: int) -> dict[Labels, float]:
        """The state of the fabric as series; only `SWEEP_OK` if the last sweep is too old."""
        # The hub appends them at the same interval as its other status series.
        if self.fabric is None:
            return {}
        is_fresh = self.is_fresh(now_ms)
        is_complete = is_fresh and not self.problem and not self.fabric.unread
        sweep_ok = {Labels({METRIC_NAME: SWEEP_OK, "cluster": self.cluster}): float(is_complete)}
        return sweep_ok | self._series if is_fresh else sweep_ok

    def _build_series(self, sweep: fabric.Fabric, topology: fabric.FabricTopology) -> dict[Labels, float]:
        series: dict[Labels, float] = {}
        for name, labels, value in self._series_rows(sweep, topology):
            if len(series) >= MAX_SERIES:
                log.warning("fabric series dropped", extra=logs.fields(limit=MAX_SERIES))
                break
            series[Labels({METRIC_NAME: name, "cluster": self.cluster, **labels})] = value
        return series

    def _series_rows(
        self, sweep: fabric.Fabric, topology: fabric.FabricTopology
    ) -> Iterator[tuple[str, dict[str, str], float]]:
        yield "watchkeeper_fabric_sweep_seconds", {}, sweep.seconds
        for state, count in Counter(port.state for port in sweep.ports).items():
            yield "watchkeeper_fabric_ports", {"state": state}, float(count)
        for switch in self.known_fabric.switches:
            role = "leaf" if switch.is_leaf else "spine"
            yield "watchkeeper_fabric_switch_up", {"switch": switch.name, "role": role}, float(not switch.gone_since_ms)
        for link in self.known_fabric.links:
            port = topology.ports.get(link.key)
            port_labels = {"switch": link.switch, "port": str(link.port)}
            port_labels |= {"peer": link.peer, "peer_port": str(link.peer_port)}
            # A fault of a link belongs to its node, or to its leaf if it connects two switches.
            port_labels |= {"Hostname": link.peer, "device": link.adapter} if link.adapter else {"leaf": link.switch}
            is_down = link.down_since_ms is not None
            state_id = 1 if is_down or port is None else fabric.STATE_IDS.get(port.state)
            if state_id is not None:
                yield "watchkeeper_fabric_port_state_id", port_labels, float(state_id)
            if port is not None and not is_down:
                yield from _port_rows(port, port_labels, is_slow=port.key in topology.slow_ports)

    def _save_state(self) -> None:
        if self._state_path is None:
            return
        try:
            files.write_atomically(self._state_path, wire.dumps(self.known_fabric).encode())
        except OSError as error:
            log.warning("saving fabric state failed", extra=logs.fields(error=error.strerror))


def _port_rows(
    port: fabric.FabricPort, port_labels: Mapping[str, str], *, is_slow: bool
) -> Iterator[tuple[str, dict[str, str], float]]:
    if port.gbps is not None:
        yield "watchkeeper_fabric_port_rate_bytes_per_second", dict(port_labels), port.gbps * 1e9 / 8
        yield "watchkeeper_fabric_port_slow", dict(port_labels), float(is_slow)
    if port.counters is None:
        return
    counters = dict.fromkeys(ALWAYS_COUNTED, 0) | dict(port.counters)
    for name, value in counters.items():
        if name in TRAFFIC:
            direction, scale = TRAFFIC[name]
            labels = {**port_labels, "direction": direction}
            yield "watchkeeper_fabric_port_data_bytes_total", labels, float(value * scale)
        elif not name.endswith(NOT_ERRORS):
            labels = {**port_labels, "counter": name}
            yield "watchkeeper_fabric_port_errors_total", labels, float(value)
            if value and value == tables.counter_maximum(name):
                yield "watchkeeper_fabric_port_counter_at_maximum", labels, 1.0


def sweep_settings(settings: config.FabricSettings) -> fabric_sweep.SweepSettings:
    names = None if settings.node_names is None else Path(settings.node_names)
    return fabric_sweep.SweepSettings(settings.timeout_seconds, settings.adapter, settings.port, names)


def _load_state(path: Path | None) -> fabric_changes.KnownFabric:
    """The known fabric from before a restart; empty if there is no file or it is damaged."""
    if path is not None and path.exists():
        try:
            return wire.loads(fabric_changes.KnownFabric, path.read_bytes())
        except (OSError, WireError) as error:
            log.warning("loading fabric state failed", extra=logs.fields(path=str(path), error=error))
    return fabric_changes.KnownFabric()
