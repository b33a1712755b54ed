"""Authenticate requests: who calls the API, and with which role.

With tokens, users or a trusted proxy, a request carries a bearer token, the cookie of a login, or the user name that
the proxy adds. Without any of them the hub listens on loopback only and every local request is admin; because any web
page can send requests to loopback, the Host header must then be a loopback name (against DNS rebinding), and a change
without a bearer token must come from the console's origin (against cross-site requests).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from watchkeeper.errors import SettingsError, StartRefused, error_reason
from watchkeeper.net.addresses import is_loopback

COOKIE = "watchkeeper"
SESSION_LIFETIME = timedelta(hours=12)
HASH_PREFIX = "sha256:"
NODE_PREFIX = "node="
# Digits of Unix seconds, enough until the year 33658.
MAX_TIME_DIGITS = 12
KEY_BYTES = 32
# 128 bits in hexadecimal: too many to search, even with a fast hash without salt.
MIN_TOKEN_LENGTH = 32


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"


# The roles that may use an endpoint of a role. An agent's token is stored on every GPU node, so it may write events
# and samples and read nothing.
ROLES_WITH_ACCESS: Mapping[Role, frozenset[Role]] = {
    Role.VIEWER: frozenset({Role.VIEWER, Role.OPERATOR, Role.ADMIN}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.ADMIN}),
    Role.ADMIN: frozenset({Role.ADMIN}),
    Role.AGENT: frozenset({Role.AGENT, Role.OPERATOR, Role.ADMIN}),
}


class Proof(StrEnum):
    """What authenticated a request; a page of another site can send all of these except a bearer token."""

    BEARER = "bearer"
    COOKIE = "cookie"
    PROXY = "proxy"
    LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request; `nodes` is the pattern of nodes it may report for, None for all."""

    name: str
    role: Role
    proof: Proof
    nodes: str | None = None

    def has_role(self, role: Role) -> bool:
        return self.role in ROLES_WITH_ACCESS[role]

    def may_report_for(self, node: str | None) -> bool:
        """Whether the caller may report for a node; None is no node in particular, which a bound token may not."""
        return self.nodes is None or (node is not None and fnmatchcase(node, self.nodes))


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the token file; `digest` is the SHA-256 of its secret, `nodes` binds an agent to these nodes."""

    name: str
    role: Role
    digest: bytes
    nodes: str | None = None


@dataclass(frozen=True, slots=True)
class User:
    """A person; `hash` is the argon2 hash of the password, None for a user who logs in through a trusted proxy only."""

    name: str
    role: Role
    hash: str | None = field(default=None, repr=False)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256((self.hash or "").encode()).digest()


Account = TypeVar("Account", Token, User)


@dataclass(frozen=True, slots=True)
class Auth:
    """The access rules of one hub; if `is_open`, every request is admin, and the hub listens on loopback only.

    `requires_login` keeps a hub closed after its last user or token is removed while it runs. `unknown_user_role` is
    the role of users of a trusted proxy that the user file does not list; None refuses them.
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
        self, headers: Mapping[str, str], cookies: Mapping[str, str], *, now: datetime, proxy_user: str | None = None
    ) -> Caller | None:
        """Who sends a request with these headers, or None if it proves nothing."""
        if self.is_open:
            return Caller("local", Role.ADMIN, Proof.LOOPBACK)
        scheme, _, bearer_secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (
            (token := self.find_token(bearer_secret.strip())) is not None or proxy_user is None
        ):
            return None if token is None else Caller(token.name, token.role, Proof.BEARER, token.nodes)
        if proxy_user is not None:
            role = next((user.role for user in self.users if user.name == proxy_user), self.unknown_user_role)
            return None if role is None else Caller(proxy_user, role, Proof.PROXY)
        account = self._find_session_account(cookies.get(COOKIE, ""), now)
        if account is None:
            return None
        return Caller(account.name, account.role, Proof.COOKIE, account.nodes if isinstance(account, Token) else None)

    def find_token(self, secret: str) -> Token | None:
        """The token with this secret; all are compared, so that the response time reveals nothing."""
        digest = hashlib.sha256(secret.encode()).digest()
        matching = [token for token in self.tokens if hmac.compare_digest(token.digest, digest)]
        return matching[0] if matching else None

    def make_session(self, account: Token | User, *, now: datetime) -> str:
        """A cookie value that expires, survives a restart, and becomes invalid with its token or password."""
        until = int((now + SESSION_LIFETIME).timestamp())
        body = f"{_account_kind(account)}.{account.name}.{secrets.token_hex(8)}.{until}"
        return f"{body}.{self._sign(account, body)}"

    def _find_session_account(self, cookie: str, now: datetime) -> Token | User | None:
        body, _, signature = cookie.rpartition(".")
        account_and_nonce, _, until = body.rpartition(".")
        kind, _, name = account_and_nonce.rpartition(".")[0].partition(".")
        # A cookie is untrusted text: anything that `make_session` cannot have written is refused first.
        if not cookie.isascii() or not until.isdigit() or len(until) > MAX_TIME_DIGITS or int(until) <= now.timestamp():
            return None
        accounts: tuple[Token | User, ...] = (*self.tokens, *self.users)
        for account in accounts:
            is_named = (_account_kind(account), account.name) == (kind, name)
            if is_named and hmac.compare_digest(self._sign(account, body), signature):
                return account
        return None

    def _sign(self, account: Token | User, body: str) -> str:
        """Sign with the hub's key too: hashes from a token or user file are not enough to make a session."""
        return hmac.new(self.key, account.digest + body.encode(), hashlib.sha256).hexdigest()


def _account_kind(account: Token | User) -> str:
    return "t" if isinstance(account, Token) else "u"


def load_tokens(path: Path) -> Auth:
    """Read a token file; each line is `name role secret`, where secret is the token or `sha256:` and its hash.

    The line of an agent may end with `node=PATTERN`, such as `node=gpu-r01-*`: it may report for these nodes only.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"reading the token file failed: {error_reason(error)}", where=str(path)) from error
    tokens, problems = parse_lines(text, _parse_token)
    if not tokens and not problems:
        problems.append("the file contains no token")
    if problems:
        raise SettingsError("invalid token file", problems=tuple(problems), where=str(path))
    return Auth(tuple(tokens))


def parse_lines(text: str, parse: Callable[[str], Account]) -> tuple[list[Account], list[str]]:
    """The tokens or users of a file, and its problems; empty lines and comments are ignored."""
    accounts, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                accounts.append(parse(line))
            except ValueError as error:
                problems.append(f"line {number}: {error}")
    names = [account.name for account in accounts]
    return accounts, problems + [f"duplicate name {name}" for name in sorted({n for n in names if names.count(n) > 1})]


def exposes_secrets(path: Path) -> bool:
    """Whether every user of this machine can read a token of the file, not only its hash."""
    lines = path.read_text(encoding="utf-8").splitlines()
    fields = [line.split() for line in lines if not line.lstrip().startswith("#")]
    has_secret = any(len(parts) > 2 and not parts[2].startswith(HASH_PREFIX) for parts in fields)
    return has_secret and bool(path.stat().st_mode & stat.S_IROTH)


def _parse_token(line: str) -> Token:
    *parts, last = line.split()
    if not last.startswith(NODE_PREFIX):
        return _parse_unbound_token([*parts, last])
    token, pattern = _parse_unbound_token(parts), last.removeprefix(NODE_PREFIX)
    if token.role is not Role.AGENT:
        raise ValueError(f"only the token of an agent may have `{NODE_PREFIX}`, this token has the role {token.role}")
    if not pattern:
        raise ValueError(f"`{NODE_PREFIX}` needs a node name or a pattern such as gpu-*")
    return replace(token, nodes=pattern)


def _parse_unbound_token(parts: list[str]) -> Token:
    if len(parts) != 3:
        raise ValueError("expected `name role secret`, and `node=PATTERN` for an agent that is bound to nodes")
    name, role, secret = parts
    if role not in set(Role):
        raise ValueError(f"unknown role {role}; roles are {', '.join(Role)}")
    if secret.startswith(HASH_PREFIX):
        digest = bytes.fromhex(secret.removeprefix(HASH_PREFIX))
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError(f"the hash has {len(digest)} bytes, a SHA-256 hash has 32")
        return Token(name, Role(role), digest)
    if len(secret) < MIN_TOKEN_LENGTH:
        raise ValueError(
            f"the token has {len(secret)} characters, at least {MIN_TOKEN_LENGTH} are required; "
            f"use this random one: {secrets.token_hex(MIN_TOKEN_LENGTH // 2)}"
        )
    return Token(name, Role(role), hashlib.sha256(secret.encode()).digest())


def check_listen(host: str, auth: Auth) -> None:
    """Refuse to listen on a network address without tokens, users or a proxy."""
    if auth.is_open and not is_loopback(host):
        raise StartRefused(
            "without tokens or users, everyone who can connect to this address is admin",
            where=f"listen address {host}",
            remedy="Listen on 127.0.0.1, or set a token file (--tokens or [hub] tokens) or a user file ([hub] users)",
        )
