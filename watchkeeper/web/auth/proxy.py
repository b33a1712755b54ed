"""A proxy in front of the hub that is believed: who signed in with it, from where, and over TLS or not.

Only a connection that comes from a listed address is believed; from everybody else the same headers mean nothing.
`gate.OuterGate` calls `behind` once for each request, before anything else looks at it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Where `behind` leaves the name that the proxy vouches for.
VOUCHED = "watchkeeper.vouched"
LONGEST_NAME = 256
SECURE = {"http": "https", "ws": "wss"}


@dataclass(frozen=True, slots=True)
class Proxy:
    """`header` names who signed in with the proxy; None: the proxy only forwards."""

    networks: tuple[Network, ...] = ()
    header: str | None = None

    def trusts(self, address: str) -> bool:
        if not self.networks:
            return False
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        # An IPv4 client of a socket that speaks both is shown as ::ffff:10.0.0.5.
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self.networks)

    def apply_headers(self, scope: Scope) -> None:
        """Put the real client, its scheme and its name into a request that came through this proxy."""
        client = scope.get("client")
        if client is None or not self.trusts(client[0]):
            return
        headers = Headers(scope=scope)
        if self.header is not None:
            names = headers.getlist(self.header)
            # Two names: one of them was sent by the client.
            if len(names) == 1 and 0 < len(names[0]) <= LONGEST_NAME and names[0].isprintable():
                scope[VOUCHED] = names[0]
        if headers.get("x-forwarded-proto", "").lower() == "https":
            scope["scheme"] = SECURE.get(scope["scheme"], scope["scheme"])
        chain = [part.strip() for line in headers.getlist("x-forwarded-for") for part in line.split(",")]
        # Each proxy adds whom it saw at the end; what stands before the last stranger is the stranger's own text.
        stranger = next((part for part in reversed(chain) if not self.trusts(part)), None)
        if stranger is not None and _is_address(stranger):
            scope["client"] = (stranger, 0)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def from_settings(trusted: Sequence[str], header: str | None) -> Proxy:
    return Proxy(tuple(ipaddress.ip_network(text, strict=False) for text in trusted), header)
