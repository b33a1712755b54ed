"""Who is asking, and what may they do.

Four roles: viewer < operator < admin, and agent, which may push events and samples and nothing else. With a
token file, a request carries a bearer token or the cookie that the login page set. Without one the
hub only listens on loopback and every local request is admin; because any web page can talk to
loopback, the Host header must then be a loopback name (against DNS rebinding). A request that
changes something and is authorised by where it comes from, not by a bearer token, must come from
our own page (against cross-site requests).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from watchkeeper.errors import SettingsError, StartRefused
from watchkeeper.kit.addresses import is_loopback

COOKIE = "watchkeeper"
SESSION = timedelta(hours=12)
HASHED = "sha256:"
BOUND = "node="
# Digits of a time in seconds, until the year 33658.
LONGEST_TIME = 12
# 128 bits in hexadecimal: enough that a fast hash without salt cannot be searched.
SHORTEST_TOKEN = 32


# A browser sends these content types to another site only after asking it (CORS preflight), which we never grant.
NEEDS_ASKING = frozenset({"application/json", "application/x-protobuf"})


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"


# Which roles satisfy a route's demand. An agent's token lies on every GPU node, so it writes events and samples
# and reads nothing.
SATISFIED_BY: Mapping[Role, frozenset[Role]] = {
    Role.VIEWER: frozenset({Role.VIEWER, Role.OPERATOR, Role.ADMIN}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.ADMIN}),
    Role.ADMIN: frozenset({Role.ADMIN}),
    Role.AGENT: frozenset({Role.AGENT, Role.OPERATOR, Role.ADMIN}),
}


class Proof(StrEnum):
    """What authorised a request; only a bearer token cannot be sent by a stranger's page."""

    BEARER = "bearer"
    COOKIE = "cookie"
    LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class Caller:
    """`nodes` is the pattern of the nodes it may speak for; None: all of them."""

    name: str
    role: Role
    proof: Proof
    nodes: str | None = None

    def may(self, role: Role) -> bool:
        return self.role in SATISFIED_BY[role]

    def may_speak_for(self, node: str | None) -> bool:
        """What is about no node at all is nobody's whose token is bound to some."""
        return self.nodes is None or (node is not None and fnmatchcase(node, self.nodes))


@dataclass(frozen=True, slots=True)
class Token:
    """A name, a role, the SHA-256 of the secret (which itself is not kept), and the nodes that an agent is bound to."""

    name: str
    role: Role
    digest: bytes
    nodes: str | None = None


@dataclass(frozen=True, slots=True)
class Auth:
    """The access rules of one hub; no tokens means loopback only."""

    tokens: tuple[Token, ...] = ()

    def caller(self, headers: Mapping[str, str], cookies: Mapping[str, str], *, now: datetime) -> Caller | None:
        """Who sends a request with these headers, or None if it proves nothing."""
        if not self.tokens:
            return Caller("local", Role.ADMIN, Proof.LOOPBACK)
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            token = self.find(secret.strip())
            return None if token is None else Caller(token.name, token.role, Proof.BEARER, token.nodes)
        token = self._of_session(cookies.get(COOKIE, ""), now)
        return None if token is None else Caller(token.name, token.role, Proof.COOKIE, token.nodes)

    def find(self, secret: str) -> Token | None:
        """The token with this secret; every one is compared, so the time tells nothing."""
        digest = hashlib.sha256(secret.encode()).digest()
        matching = [token for token in self.tokens if hmac.compare_digest(token.digest, digest)]
        return matching[0] if matching else None

    def session(self, token: Token, *, now: datetime) -> str:
        """A cookie value that expires, survives a restart, and dies with its token."""
        body = f"{token.name}.{int((now + SESSION).timestamp())}"
        return f"{body}.{_seal(token, body)}"

    def _of_session(self, cookie: str, now: datetime) -> Token | None:
        body, _, seal = cookie.rpartition(".")
        name, _, until = body.rpartition(".")
        # A cookie is a stranger's text: only what could have come from `session` is looked at.
        if not cookie.isascii() or not until.isdigit() or len(until) > LONGEST_TIME or int(until) <= now.timestamp():
            return None
        for token in self.tokens:
            if token.name == name and hmac.compare_digest(_seal(token, body), seal):
                return token
        return None


def _seal(token: Token, body: str) -> str:
    return hmac.new(token.digest, body.encode(), hashlib.sha256).hexdigest()


def load(path: Path) -> Auth:
    """Read a token file; each line is `name role secret`, where secret is the token or `sha256:` and its hash.

    The line of an agent may end with `node=PATTERN`, such as `node=gpu-r01-*`: it speaks for these nodes only.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the token file cannot be read: {error}", where=str(path)) from error
    tokens, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            tokens.append(_parse(line))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    names = [token.name for token in tokens]
    problems += [f"the name {name} is used twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if not tokens and not problems:
        problems.append("there is no token in it")
    if problems:
        raise SettingsError("the token file cannot be used", problems=tuple(problems), where=str(path))
    return Auth(tuple(tokens))


def _parse(line: str) -> Token:
    *parts, last = line.split()
    if not last.startswith(BOUND):
        return _parse_secret([*parts, last])
    token, pattern = _parse_secret(parts), last.removeprefix(BOUND)
    if token.role is not Role.AGENT:
        raise ValueError(f"only an agent's token is bound with `{BOUND}`, this one is {token.role}")
    if not pattern:
        raise ValueError(f"`{BOUND}` needs a node's name or a pattern such as gpu-*")
    return replace(token, nodes=pattern)


def _parse_secret(parts: list[str]) -> Token:
    if len(parts) != 3:
        raise ValueError("expected `name role secret`, and `node=PATTERN` where an agent is bound to its node")
    name, role, secret = parts
    if role not in set(Role):
        raise ValueError(f"role {role} is not one of {', '.join(Role)}")
    if secret.startswith(HASHED):
        digest = bytes.fromhex(secret.removeprefix(HASHED))
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError(f"the hash has {len(digest)} bytes, SHA-256 has 32")
        return Token(name, Role(role), digest)
    if len(secret) < SHORTEST_TOKEN:
        raise ValueError(
            f"the token has {len(secret)} characters, at least {SHORTEST_TOKEN} are needed; "
            f"this one was just drawn: {secrets.token_hex(SHORTEST_TOKEN // 2)}"
        )
    return Token(name, Role(role), hashlib.sha256(secret.encode()).digest())


def check_listen(host: str, auth: Auth) -> None:
    """Refuse to show a hub without tokens to the network."""
    if not auth.tokens and not is_loopback(host):
        raise StartRefused(
            "without tokens everyone who reaches this address would be admin",
            where=f"listen address {host}",
            remedy="Listen on 127.0.0.1, or name a token file with --tokens or [hub] tokens",
        )


def names_loopback(host_header: str) -> bool:
    """True if a Host header names this machine by a loopback name, with or without a port."""
    try:
        return is_loopback(urlsplit(f"//{host_header}").hostname or "")
    except ValueError:
        return False


def is_own_page(method: str, headers: Mapping[str, str]) -> bool:
    """True unless another site's page may have sent this request.

    A browser says so in Sec-Fetch-Site or Origin. A program sends neither; it is let through when it uses a
    JSON or protobuf body or a method other than POST, which a page of another site cannot do without asking first.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    if origin is not None:
        return origin != "null" and urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    return method != "POST" or headers.get("content-type", "").split(";")[0].strip() in NEEDS_ASKING
