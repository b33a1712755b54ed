"""Read which ports the firewall of a node opens: ufw, firewalld, or a default policy of iptables or nftables.

Only what these programs print is read. Rules below a default policy are not evaluated, so their ports are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

COMMANDS = (("ufw", "status"), ("firewall-cmd", "--list-all"), ("iptables", "-S", "INPUT"), ("nft", "list", "chains"))
# 2379:2380/tcp              ALLOW       10.0.0.0/24          6443/tcp (v6) on eth0      ALLOW IN    Anywhere (v6)
UFW_RULE = re.compile(r"^(?P<to>\S.*?)\s{2,}(?P<action>ALLOW|LIMIT)(?: IN)?\s{2,}(?P<source>\S+)", re.MULTILINE)
# Rules for these interfaces let pods and containers in, not other nodes.
POD_INTERFACES = re.compile(r" on (?:lo|cni|cali|flannel|cilium|vxlan|veth|docker|kube|tunl|virbr)")
PORTS = re.compile(r"^(?P<ports>[\d:,-]+)(?:/(?P<protocol>tcp|udp))?$")
# -A INPUT -j REJECT --reject-with icmp-host-prohibited     drops all that no rule before has accepted
DROPS_REST = re.compile(r"^-P INPUT DROP|^-A INPUT -j (?:REJECT|DROP)", re.MULTILINE)
NFT_DROPS_REST = re.compile(r"hook input [^}]*policy drop")
REFUSED = re.compile(r"need to be root|[Pp]ermission denied|not permitted|[Aa]uthorization failed|timed out after")
ALL_PORTS = (0, 65535)


@dataclass(frozen=True, slots=True)
class OpenPorts:
    """Ports that a rule accepts; an empty protocol is both, `source` is empty if every address is accepted."""

    first: int
    last: int
    protocol: str = ""
    source: str = ""

    def covers(self, protocol: str, first: int, last: int) -> bool:
        return self.protocol in ("", protocol) and self.first <= first and last <= self.last


@dataclass(frozen=True, slots=True)
class Firewall:
    """An active firewall. `open_ports` is None if its rules cannot be read; `has_other_rules` if some were not."""

    name: str
    open_ports: tuple[OpenPorts, ...] | None = None
    has_other_rules: bool = False


def read(outputs: Mapping[str, str], *, is_root: bool) -> tuple[Firewall, ...] | None:
    """The active firewalls, from the output of each of `COMMANDS` that is installed; None if none could answer."""
    firewalls = []
    ufw, firewalld, iptables, nft = (outputs.get(" ".join(command), "") for command in COMMANDS)
    if "Status: active" in ufw or REFUSED.search(ufw):
        firewalls.append(Firewall("ufw", None if REFUSED.search(ufw) else tuple(_read_ufw(ufw))))
    if "target:" in firewalld or REFUSED.search(firewalld):
        firewalls.append(_read_firewalld(firewalld))
    # ufw and firewalld write these rules themselves.
    if not firewalls and (DROPS_REST.search(iptables) or REFUSED.search(iptables)):
        firewalls.append(Firewall("iptables"))
    if not firewalls and (NFT_DROPS_REST.search(nft) or REFUSED.search(nft)):
        firewalls.append(Firewall("nftables"))
    # For users who are not root, these programs are often not in the PATH.
    return tuple(firewalls) if firewalls or (is_root and (ufw or firewalld or iptables or nft)) else None


def _read_ufw(text: str) -> Iterable[OpenPorts]:
    for match in UFW_RULE.finditer(text):
        if POD_INTERFACES.search(match["to"]):
            continue
        target = re.sub(r" \(v6\)| on \S+", "", match["to"]).split()[-1]
        source = "" if match["source"] == "Anywhere" else match["source"]
        if target == "Anywhere":
            yield OpenPorts(*ALL_PORTS, source=source)
        else:
            yield from _read_ports(target, source)


def _read_firewalld(text: str) -> Firewall:
    if REFUSED.search(text):
        return Firewall("firewalld")
    lines = dict(re.findall(r"^\s*([\w ]+): *(.*)$", text, re.MULTILINE))
    if lines.get("target") == "ACCEPT":
        return Firewall("firewalld", (OpenPorts(*ALL_PORTS),))
    open_ports = tuple(ports for item in lines.get("ports", "").split() for ports in _read_ports(item, ""))
    # firewalld has services for kubelet, kube-apiserver, etcd-server and others; their ports are not listed here.
    has_services = any(re.match(r"kube|etcd", service) for service in lines.get("services", "").split())
    return Firewall("firewalld", open_ports, has_services or "accept" in text.partition("rich rules:")[2])


def _read_ports(text: str, source: str) -> Iterable[OpenPorts]:
    match = PORTS.match(text)
    for part in match["ports"].split(",") if match is not None else ():
        numbers = [int(number) for number in re.split(r"[:-]", part) if number]
        if match is not None and numbers:
            yield OpenPorts(numbers[0], numbers[-1], match["protocol"] or "", source)
