"""Read InfiniBand printouts: ports that are down, slow, or have errors."""

from __future__ import annotations

import re
from collections import Counter

from watchkeeper.catalogue import tables
from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.listing import Listing, add_sign
from watchkeeper.readers.fabric import infiniband_text
from watchkeeper.readers.fabric.infiniband_text import PrintedPort

UP = frozenset({"active", "initialize", "armed"})
# /sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err:929974
SYSFS_COUNTER = re.compile(
    r"/infiniband/(?P<hca>\w+)/ports/(?P<port>\d+)/(?:hw_)?counters/(?P<name>\w+)[:=\s]\s*(?P<value>\d+)\s*$"
)


def read_fabric_signs(listing: Listing, facts: DoctorFacts) -> None:
    text = listing.text
    if "hysical state" in text or "phys state" in text or "phys_state" in text:
        _add_port_signs(listing, facts)
    if "Counter" in text or "Errors for" in text:
        for port in infiniband_text.read_counters(listing.lines):
            _add_counter_signs(port, listing, facts)
    if "/infiniband/" in text:
        _add_sysfs_signs(listing, facts)
    if ")==>" in text:
        for line, kind, owner, number, state, _ in infiniband_text.read_links(listing.lines):
            if state == "Down":
                # A switch port without a cable is down too; only adapter ports are expected to be up.
                sign = "hca-port-down" if kind == "CA" else "fabric-port-down"
                add_sign(
                    facts, listing, sign, line=line, fields={"hca" if kind == "CA" else "switch": owner, "port": number}
                )


def _add_port_signs(listing: Listing, facts: DoctorFacts) -> None:
    ports = infiniband_text.read_ports(listing.lines)
    rates = Counter(
        port.rate for port in ports if port.state is not None and port.state.lower() == "active" and port.rate
    )
    usual = max(rates, key=_number) if rates else None
    for port in ports:
        state = (port.state or "").lower()
        place = {"hca": port.owner, "port": port.number}
        if state.startswith("down") or (port.physical or "").lower() in ("disabled", "polling", "linkerrorrecovery"):
            add_sign(facts, listing, "hca-port-down", line=port.line, fields=place)
        elif state == "active":
            kind = {"layer": port.layer or "", "rate": port.rate or ""}
            add_sign(facts, listing, "hca-port-active", line=port.line, fields=place | kind)
        has_usual_rate = usual is not None and rates[usual] > 1
        if state == "active" and port.rate and usual and has_usual_rate and _number(port.rate) < _number(usual):
            fields = place | {"rate": port.rate, "usual": usual}
            add_sign(facts, listing, "hca-port-slow", line=port.line, fields=fields)


def _add_sysfs_signs(listing: Listing, facts: DoctorFacts) -> None:
    """Add signs for counters in files of sysfs, one per line as `grep` prints them."""
    for line, text in enumerate(listing.lines, 1):
        match = SYSFS_COUNTER.search(text)
        row = None if match is None else tables.find_counter(match["name"])
        if match is None or row is None or row.total_limit is None or int(match["value"]) < row.total_limit:
            continue
        sign = "hca-downed" if row.name == "LinkDownedCounter" else "hca-errors"
        fields = {"hca": match["hca"], "port": match["port"], "counter": f"{match['name']} {match['value']}"}
        add_sign(facts, listing, sign, line=line, fields=fields)


def _number(rate: str) -> float:
    digits = "".join(char for char in rate.split(maxsplit=1)[0] if char.isdigit() or char == ".")
    return float(digits) if digits else 0.0


def _add_counter_signs(port: PrintedPort, listing: Listing, facts: DoctorFacts) -> None:
    # `port ALL` and port 255 are the sum of the other ports.
    if port.number in ("ALL", "255"):
        return
    for name, (value, line) in port.counters.items():
        row = tables.find_counter(name)
        if row is None or row.total_limit is None or value < row.total_limit:
            continue
        sign = "hca-downed" if name == "LinkDownedCounter" else "hca-errors"
        add_sign(
            facts,
            listing,
            sign,
            line=line,
            fields={"owner": port.owner, "port": port.number, "counter": f"{name} {value}"},
        )
