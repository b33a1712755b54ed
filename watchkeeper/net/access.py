"""How to authenticate to a server: user name, token, certificates, proxy.

Files are read at each use, so that a renewed token or certificate needs no restart. A message never contains a secret.
"""

from __future__ import annotations

import base64
import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from watchkeeper.errors import CollectError


class TokenSource(Protocol):
    """A source of tokens that expire, such as an OAuth 2.0 server."""

    async def authorization(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials, TLS and proxy; the default is plain HTTP, or HTTPS with the certificates of the system."""

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    scheme: str = "Bearer"
    credentials: str = field(default="", repr=False)
    credentials_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure_skip_verify: bool = False
    tokens: TokenSource | None = None
    # Headers for every request besides Authorization, and headers whose values are in files.
    extra_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    extra_header_files: tuple[tuple[str, str], ...] = ()
    proxy_url: str = ""
    no_proxy: tuple[str, ...] = ()

    async def request_headers(self) -> dict[str, str]:
        """The headers that authenticate a request, with a valid token if there is a token server."""
        pairs = [*self.extra_headers, *((name, read_secret_file(path)) for name, path in self.extra_header_files)]
        headers = {name: ", ".join(value for other, value in pairs if other == name) for name, _ in pairs}
        if self.tokens is not None:
            return {**headers, "Authorization": await self.tokens.authorization()}
        return {**headers, **self.authorization_header()}

    @property
    def private_headers(self) -> frozenset[str]:
        """Lower-case names of the headers that no other server may receive."""
        return frozenset({"authorization", *(name.lower() for name, _ in self.extra_headers + self.extra_header_files)})

    def proxy_for(self, host: str) -> str:
        """The proxy for a host; empty for a direct connection."""
        return "" if any(_matches_no_proxy(rule, host) for rule in self.no_proxy) else self.proxy_url

    def authorization_header(self) -> dict[str, str]:
        """The Authorization header; empty without credentials, CollectError if their file cannot be read."""
        if self.username:
            secret = read_secret_file(self.password_file) if self.password_file else self.password
            return {"Authorization": basic_authorization(self.username, secret)}
        secret = read_secret_file(self.credentials_file) if self.credentials_file else self.credentials
        return {"Authorization": f"{self.scheme} {secret}"} if secret else {}

    def tls_context(self) -> ssl.SSLContext:
        """The TLS settings of a connection; CollectError if a certificate cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file or None)
        except (OSError, ssl.SSLError) as error:
            raise CollectError(f"invalid certificate: {error}", where=self.ca_file or self.cert_file) from error
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


NO_ACCESS = Access()


def basic_authorization(username: str, password: str) -> str:
    """The value of the Authorization header for a user name and password (RFC 7617)."""
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


def slurm_headers(user: str | None, token_file: Path | None) -> dict[str, str]:
    """The headers of a request to slurmrestd; OSError if the token cannot be read."""
    headers = {"Accept": "application/json"}
    if user:
        headers["X-SLURM-USER-NAME"] = user
    if token_file is not None:
        # Read each time: a Slurm JWT is valid for half an hour, and its file is renewed.
        headers["X-SLURM-USER-TOKEN"] = token_file.read_text().strip().removeprefix("SLURM_JWT=")
    return headers


def proxy_headers(proxy: str) -> dict[str, str]:
    """The Proxy-Authorization header for the user name and password in a proxy's URL; empty without them."""
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    return {"Proxy-Authorization": basic_authorization(unquote(parts.username), unquote(parts.password or ""))}


def _matches_no_proxy(rule: str, host: str) -> bool:
    """Whether a no_proxy entry matches a host: `*`, a domain with or without its dot, an address, or a network."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return rule == "*" or host == rule.lstrip(".") or host.endswith("." + rule.lstrip("."))


def read_secret_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CollectError(f"the secret cannot be read: {type(error).__name__}", where=path) from error
