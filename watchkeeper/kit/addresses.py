"""Which addresses mean this machine only; the hub and the agent both refuse to be open to others by accident."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
