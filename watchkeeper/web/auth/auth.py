"""Who is asking, and what may they do.

Four roles: viewer < operator < admin, and agent, which may push events and samples and nothing else. With tokens,
users or a trusted proxy, a request carries a bearer token, the cookie that signing in set, or the name that the proxy
vouches for. With none of them the hub only listens on loopback and every local request is admin; because any web
page can talk to loopback, the Host header must then be a loopback name (against DNS rebinding). A request that
changes something and is authorised by where it comes from, not by a bearer token, must come from our own page
(against cross-site requests). `doors` reads the files again when they change, `sign_in` lets people in.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from watchkeeper.errors import SettingsError, StartRefused, error_reason
from watchkeeper.net.addresses import is_loopback

COOKIE = "watchkeeper"
SESSION = timedelta(hours=12)
HASHED = "sha256:"
BOUND = "node="
# Digits of a time in seconds, until the year 33658.
LONGEST_TIME = 12
KEY_BYTES = 32
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
    PROXY = "proxy"
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
class User:
    """A person: the argon2 hash of the password, or None for one who only comes through a trusted proxy."""

    name: str
    role: Role
    hash: str | None = field(default=None, repr=False)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256((self.hash or "").encode()).digest()


@dataclass(frozen=True, slots=True)
class Auth:
    """The access rules of one hub; where `is_open`, that is loopback only.

    `is_guarded` keeps a hub shut whose last user or token was taken away while it runs. `newcomer` is the role of
    whoever a trusted proxy names and no user file knows; None lets only those in whom it knows.
    """

    tokens: tuple[Token, ...] = ()
    users: tuple[User, ...] = ()
    unknown_user_role: Role | None = None
    requires_login: bool = False
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)

    @property
    def is_open(self) -> bool:
        return not (self.tokens or self.users or self.requires_login)

    def caller(
        self, headers: Mapping[str, str], cookies: Mapping[str, str], *, now: datetime, vouched: str | None = None
    ) -> Caller | None:
        """Who sends a request with these headers, or None if it proves nothing; `vouched` is a trusted proxy's word."""
        if self.is_open:
            return Caller("local", Role.ADMIN, Proof.LOOPBACK)
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and ((token := self.find_token(secret.strip())) is not None or vouched is None):
            return None if token is None else Caller(token.name, token.role, Proof.BEARER, token.nodes)
        if vouched is not None:
            role = next((user.role for user in self.users if user.name == vouched), self.unknown_user_role)
            return None if role is None else Caller(vouched, role, Proof.PROXY)
        holder = self._of_session(cookies.get(COOKIE, ""), now)
        if holder is None:
            return None
        return Caller(holder.name, holder.role, Proof.COOKIE, holder.nodes if isinstance(holder, Token) else None)

    def find_token(self, secret: str) -> Token | None:
        """The token with this secret; every one is compared, so the time tells nothing."""
        digest = hashlib.sha256(secret.encode()).digest()
        matching = [token for token in self.tokens if hmac.compare_digest(token.digest, digest)]
        return matching[0] if matching else None

    def make_session(self, holder: Token | User, *, now: datetime) -> str:
        """A cookie value that expires, survives a restart, and dies with its token or password."""
        until = int((now + SESSION).timestamp())
        body = f"{_kind(holder)}.{holder.name}.{secrets.token_hex(8)}.{until}"
        return f"{body}.{self._seal(holder, body)}"

    def _of_session(self, cookie: str, now: datetime) -> Token | User | None:
        body, _, seal = cookie.rpartition(".")
        opening, _, until = body.rpartition(".")
        kind, _, name = opening.rpartition(".")[0].partition(".")
        # A cookie is a stranger's text: only what could have come from `session` is looked at.
        if not cookie.isascii() or not until.isdigit() or len(until) > LONGEST_TIME or int(until) <= now.timestamp():
            return None
        holders: tuple[Token | User, ...] = (*self.tokens, *self.users)
        for holder in holders:
            known = (_kind(holder), holder.name)
            if known == (kind, name) and hmac.compare_digest(self._seal(holder, body), seal):
                return holder
        return None

    def _seal(self, holder: Token | User, body: str) -> str:
        """Needs the hub's own key too: whoever reads hashes in a file of tokens or users cannot make a session."""
        return hmac.new(self.key, holder.digest + body.encode(), hashlib.sha256).hexdigest()


def _kind(holder: Token | User) -> str:
    return "t" if isinstance(holder, Token) else "u"


def load_tokens(path: Path) -> Auth:
    """Read a token file; each line is `name role secret`, where secret is the token or `sha256:` and its hash.

    The line of an agent may end with `node=PATTERN`, such as `node=gpu-r01-*`: it speaks for these nodes only.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the token file cannot be read: {error_reason(error)}", where=str(path)) from error
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


def is_readable_by_all(path: Path) -> bool:
    """True if everyone on this machine may read a token, and not only its hash."""
    lines = (
        line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    )
    return bool(path.stat().st_mode & stat.S_IROTH) and any(
        len(parts) > 2 and not parts[2].startswith(HASHED) for parts in lines
    )


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
    if auth.is_open and not is_loopback(host):
        raise StartRefused(
            "without tokens or users everyone who reaches this address would be admin",
            where=f"listen address {host}",
            remedy="Listen on 127.0.0.1, or name a token file with --tokens or [hub] tokens, or users with [hub] users",
        )


@functools.lru_cache(maxsize=16)
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
