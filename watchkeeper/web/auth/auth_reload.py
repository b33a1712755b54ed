"""The access rules as their files are now: a token or user that is taken away is out within seconds, without a restart.

`cli.hub.serving` opens the doors from the settings; the gate of `app` asks `current` at each request, which looks at
the files at most once a second. Files that cannot be used any more change nothing, which is said in the log.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.config import settings
from watchkeeper.errors import SettingsError, StartRefused
from watchkeeper.kit import files, logs
from watchkeeper.web.auth import auth, proxy, users

log = logging.getLogger(__name__)

LOOK_AGAIN = timedelta(seconds=1)
# Signed out before they ended: a stolen cookie must not outlive the click. They end by themselves within hours.
MOST_ENDED = 10_000
FileStamps = tuple[files.FileStamp | None, ...]


@dataclass(slots=True)
class AuthFiles:
    """Who may come in. `always` are tokens that stand in no file."""

    access: auth.Auth = field(default_factory=auth.Auth)
    proxy: proxy.Proxy = field(default_factory=proxy.Proxy)
    tokens_file: Path | None = None
    users_file: Path | None = None
    extra_tokens: tuple[auth.Token, ...] = ()
    _seen: FileStamps = ()
    _looked_at: datetime | None = None
    _ended: dict[str, None] = field(default_factory=dict)

    def current(self, now: datetime) -> auth.Auth:
        if self.tokens_file is None and self.users_file is None:
            return self.access
        if self._looked_at is None or abs(now - self._looked_at) >= LOOK_AGAIN:
            self._looked_at = now
            if self._state() != self._seen:
                try:
                    self.load()
                    log.info("The access rules were read again")
                except SettingsError as error:
                    log.error(
                        "Changed access rules cannot be used; the earlier ones hold", extra=logs.fields(error=error)
                    )
        return self.access

    def load(self) -> None:
        """Take tokens and users from their files; SettingsError if they cannot be used."""
        self._seen = self._state()
        tokens = auth.load_tokens(self.tokens_file).tokens if self.tokens_file else ()
        if self.tokens_file is not None and auth.is_readable_by_all(self.tokens_file):
            remedy = "chmod o= it, or write sha256: and their hashes"
            log.warning(
                "Everyone on this machine may read tokens", extra=logs.fields(file=self.tokens_file, remedy=remedy)
            )
        known = users.load_users(self.users_file) if self.users_file else ()
        self.access = replace(self.access, tokens=(*tokens, *self.extra_tokens), users=known)

    def _state(self) -> FileStamps:
        return tuple(files.read_stamp(path) for path in (self.tokens_file, self.users_file) if path is not None)

    def load_session_key(self, path: Path) -> None:
        """Sign sessions with the key of a file, made where there is none, so that they survive a restart."""
        if not self.access.is_open:
            self.access = replace(self.access, key=_key(path))

    def end_session(self, cookie: str) -> None:
        self._ended[cookie] = None
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def is_ended_session(self, cookie: str) -> bool:
        return cookie in self._ended


def _key(path: Path) -> bytes:
    try:
        if not path.exists():
            files.write_atomically(path, secrets.token_hex(auth.KEY_BYTES).encode(), mode=0o600)
        key = path.read_bytes().strip()
    except OSError as error:
        raise StartRefused(f"the key of sessions cannot be used: {error.strerror}", where=str(path)) from error
    if len(key) < auth.KEY_BYTES:
        raise StartRefused(
            f"the key of sessions has {len(key)} characters, at least {auth.KEY_BYTES} are needed",
            where=str(path),
            remedy="Remove it; the hub writes a new one, and everybody signs in again",
        )
    return key


def from_settings(chosen: settings.HubSettings) -> AuthFiles:
    """The doors that the settings describe, read once; SettingsError if they cannot be."""
    trusted = proxy.from_settings(chosen.trusted_proxies, chosen.proxy_user_header)
    newcomer = auth.Role(chosen.proxy_role) if trusted.header and chosen.proxy_role else None
    is_guarded = bool(chosen.tokens or chosen.users or trusted.header)
    doors = AuthFiles(
        auth.Auth(unknown_user_role=newcomer, requires_login=is_guarded),
        trusted,
        Path(chosen.tokens) if chosen.tokens else None,
        Path(chosen.users) if chosen.users else None,
    )
    doors.load()
    return doors
