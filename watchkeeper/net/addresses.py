"""Which addresses are local to this machine: loopback, link-local, unspecified, and a cloud's metadata services.

The hub and the agent check whether they listen on loopback only. Clients refuse a name or a redirect that leads to a
local address, such as the metadata service of a cloud (169.254.169.254).
"""

from __future__ import annotations

import ipaddress
import os

# Metadata services that are not link-local, from the documentation of AWS, Google Cloud, Alibaba Cloud, Azure and
# Oracle Cloud, 2026-11.
METADATA_SERVICES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)


def join_port(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_machine_local(address: str) -> bool:
    """Whether an address is loopback, link-local, unspecified or a metadata service, in any spelling."""
    try:
        parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address.strip("[]").lower() == "localhost"
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed in METADATA_SERVICES


def is_unexpectedly_local(host: str, peer_address: str) -> bool:
    """Whether `host`, which does not name this machine, resolved to an address of this machine."""
    # Debian maps a machine's own name to 127.0.1.1.
    is_own_name = host.partition(".")[0] == os.uname().nodename.partition(".")[0]
    return is_machine_local(peer_address) and not is_machine_local(host) and not is_own_name
