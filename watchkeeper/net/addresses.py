"""Which addresses mean this machine only, or its surroundings: what nobody should reach by accident.

The hub and the agent refuse to be open to others; calls to other servers refuse to be led to an address that only
means something to the machine they come from, such as the metadata service of a cloud (169.254.169.254).
"""

from __future__ import annotations

import ipaddress
import os


def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_machine_local(address: str) -> bool:
    """True for loopback, link-local and the unspecified address, however they are written."""
    try:
        found = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address.strip("[]").lower() == "localhost"
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_link_local or found.is_unspecified


def is_unexpectedly_local(host: str, reached: str) -> bool:
    """True if a name that does not say so leads to an address that is private to this machine."""
    # Debian gives a machine's own name the address 127.0.1.1.
    is_own_name = host.partition(".")[0] == os.uname().nodename.partition(".")[0]
    return is_machine_local(reached) and not is_machine_local(host) and not is_own_name
