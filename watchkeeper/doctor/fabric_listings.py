"""InfiniBand printouts: ports that are down, slow, or count errors."""

from __future__ import annotations

import re
from collections import Counter

from watchkeeper.catalogue import tables
from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.listing import Listing, add
from watchkeeper.readers.fabric import infiniband_text
from watchkeeper.readers.fabric.infiniband_text import PrintedPort

UP = frozenset({"active", "initialize", "armed"})
# /sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err:929974
SYSFS_COUNTER = re.compile(
    r"/infiniband/(?P<hca>\w+)/ports/(?P<port>\d+)/(?:hw_)?counters/(?P<name>\w+)[:=\s]\s*(?P<value>\d+)\s*$"
)


def read(listing: Listing, facts: DoctorFacts) -> None:
    text = listing.text
    if "hysical state" in text or "phys state" in text or "phys_state" in text:
        _read_ports(listing, facts)
    if "Counter" in text or "Errors for" in text:
        for port in infiniband_text.read_counters(listing.lines):
            _judge_counters(port, listing, facts)
    if "/infiniband/" in text:
        _read_sysfs(listing, facts)
    if ")==>" in text:
        for line, kind, owner, number, state, _ in infiniband_text.read_links(listing.lines):
            if state == "Down":
                # A switch port without a cable is down too; only an adapter's port is meant to be up.
                sign = "hca-port-down" if kind == "CA" else "fabric-port-down"
                add(
                    facts, listing, sign, line=line, fields={"hca" if kind == "CA" else "switch": owner, "port": number}
                )


def _read_ports(listing: Listing, facts: DoctorFacts) -> None:
    ports = infiniband_text.read_ports(listing.lines)
    rates = Counter(
        port.rate for port in ports if port.state is not None and port.state.lower() == "active" and port.rate
    )
    usual = max(rates, key=_number) if rates else None
    for port in ports:
        state = (port.state or "").lower()
        place = {"hca": port.owner, "port": port.number}
        if state.startswith("down") or (port.physical or "").lower() in ("disabled", "polling", "linkerrorrecovery"):
            add(facts, listing, "hca-port-down", line=port.line, fields=place)
        elif state == "active":
            kind = {"layer": port.layer or "", "rate": port.rate or ""}
            add(facts, listing, "hca-port-active", line=port.line, fields=place | kind)
        if state == "active" and port.rate and usual and rates[usual] > 1 and _number(port.rate) < _number(usual):
            add(facts, listing, "hca-port-slow", line=port.line, fields=place | {"rate": port.rate, "usual": usual})


def _read_sysfs(listing: Listing, facts: DoctorFacts) -> None:
    """Counters as `grep` prints the files of sysfs, one to a line."""
    for line, text in enumerate(listing.lines, 1):
        match = SYSFS_COUNTER.search(text)
        row = None if match is None else tables.find_counter(match["name"])
        if match is None or row is None or row.total_limit is None or int(match["value"]) < row.total_limit:
            continue
        sign = "hca-downed" if row.name == "LinkDownedCounter" else "hca-errors"
        fields = {"hca": match["hca"], "port": match["port"], "counter": f"{match['name']} {match['value']}"}
        add(facts, listing, sign, line=line, fields=fields)


def _number(rate: str) -> float:
    digits = "".join(char for char in rate.split(maxsplit=1)[0] if char.isdigit() or char == ".")
    return float(digits) if digits else 0.0


def _judge_counters(port: PrintedPort, listing: Listing, facts: DoctorFacts) -> None:
    # `port ALL` and port 255 repeat the sum of the others.
    if port.number in ("ALL", "255"):
        return
    for name, (value, line) in port.counters.items():
        row = tables.find_counter(name)
        if row is None or row.total_limit is None or value < row.total_limit:
            continue
        sign = "hca-downed" if name == "LinkDownedCounter" else "hca-errors"
        add(
            facts,
            listing,
            sign,
            line=line,
            fields={"owner": port.owner, "port": port.number, "counter": f"{name} {value}"},
        )
