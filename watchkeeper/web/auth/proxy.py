"""Read the user, client address and scheme that a trusted proxy in front of the hub adds to requests.

Only connections from a listed address are trusted; the same headers from any other address are ignored.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# The key of the request scope where `apply_headers` stores the user that the proxy names.
PROXY_USER_KEY = "watchkeeper.proxy_user"
MAX_NAME_LENGTH = 256
TLS_SCHEMES = {"http": "https", "ws": "wss"}


@dataclass(frozen=True, slots=True)
class Proxy:
    """The addresses that are trusted; `header` has the user who logged in at the proxy, None if it only forwards."""

    networks: tuple[Network, ...] = ()
    header: str | None = None

    def trusts(self, address: str) -> bool:
        if not self.networks:
            return False
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        # A dual-stack socket shows an IPv4 client as ::ffff:10.0.0.5.
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self.networks)

    def apply_headers(self, scope: Scope) -> None:
        """Set the client address, scheme and user of a request that came through this proxy."""
        client = scope.get("client")
        if client is None or not self.trusts(client[0]):
            return
        headers = Headers(scope=scope)
        if self.header is not None:
            names = headers.getlist(self.header)
            # With two names, the client sent one of them.
            if len(names) == 1 and 0 < len(names[0]) <= MAX_NAME_LENGTH and names[0].isprintable():
                scope[PROXY_USER_KEY] = names[0]
        if headers.get("x-forwarded-proto", "").lower() == "https":
            scope["scheme"] = TLS_SCHEMES.get(scope["scheme"], scope["scheme"])
        chain = [part.strip() for line in headers.getlist("x-forwarded-for") for part in line.split(",")]
        # Each proxy appends the address of its peer; anything before the last untrusted address is untrusted text.
        client_address = next((part for part in reversed(chain) if not self.trusts(part)), None)
        if client_address is not None:
            with contextlib.suppress(ValueError):
                ipaddress.ip_address(client_address)
                scope["client"] = (client_address, 0)


def from_settings(trusted: Sequence[str], header: str | None) -> Proxy:
    return Proxy(tuple(ipaddress.ip_network(text, strict=False) for text in trusted), header)
