"""Reload tokens and users when their files change: a removed one is refused within seconds, without a restart.

`gate` calls `current` for each request, which checks the files at most once a second. Invalid files are logged and
change nothing.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.config import settings
from watchkeeper.errors import SettingsError, StartRefused, StoreError
from watchkeeper.kit import files, logs
from watchkeeper.web.auth import auth, proxy, users

log = logging.getLogger(__name__)

CHECK_INTERVAL = timedelta(seconds=1)
# Sessions of users who logged out: a stolen cookie must not outlive the logout. Every session expires within hours.
MAX_ENDED_SESSIONS = 10_000
FileStamps = tuple[files.FileStamp | None, ...]


@dataclass(slots=True)
class AuthFiles:
    """The access rules from files; `extra_tokens` are in no file."""

    access: auth.Auth = field(default_factory=auth.Auth)
    proxy: proxy.Proxy = field(default_factory=proxy.Proxy)
    tokens_file: Path | None = None
    users_file: Path | None = None
    extra_tokens: tuple[auth.Token, ...] = ()
    _loaded_stamps: FileStamps = ()
    _checked_at: datetime | None = None
    # The digests of ended sessions, also in a file beside the session key, if there is one.
    _ended_sessions: dict[str, None] = field(default_factory=dict)
    _ended_file: Path | None = None

    def current(self, now: datetime) -> auth.Auth:
        if self.tokens_file is None and self.users_file is None:
            return self.access
        if self._checked_at is None or abs(now - self._checked_at) >= CHECK_INTERVAL:
            self._checked_at = now
            if self._read_stamps() != self._loaded_stamps:
                try:
                    self.load()
                    log.info("access rules reloaded")
                except SettingsError as error:
                    log.error(
                        "reload of access rules failed, the previous rules stay active", extra=logs.fields(error=error)
                    )
        return self.access

    def load(self) -> None:
        """Read tokens and users from their files, or raise SettingsError if a file is invalid."""
        self._loaded_stamps = self._read_stamps()
        tokens = auth.load_tokens(self.tokens_file).tokens if self.tokens_file else ()
        if self.tokens_file is not None and auth.exposes_secrets(self.tokens_file):
            remedy = "Remove the read permission for others (chmod o=), or replace each token with sha256: and its hash"
            log.warning("token file is world-readable", extra=logs.fields(file=self.tokens_file, remedy=remedy))
        file_users = users.load_users(self.users_file) if self.users_file else ()
        self.access = replace(self.access, tokens=(*tokens, *self.extra_tokens), users=file_users)

    def _read_stamps(self) -> FileStamps:
        return tuple(files.read_stamp(path) for path in (self.tokens_file, self.users_file) if path is not None)

    def load_session_key(self, path: Path) -> None:
        """Sign sessions with the key in this file, created if missing, so that sessions survive a restart."""
        if not self.access.is_open:
            self.access = replace(self.access, key=_load_key(path))
            self._ended_file = path.with_name("ended_sessions")
            digests = _read_text(self._ended_file).split() if self._ended_file.exists() else []
            self._ended_sessions = dict.fromkeys(digests[-MAX_ENDED_SESSIONS:])

    def end_session(self, cookie: str) -> None:
        """End a session now; in the file too, so that a restart does not revive it."""
        self._ended_sessions[_digest(cookie)] = None
        while len(self._ended_sessions) > MAX_ENDED_SESSIONS:
            del self._ended_sessions[next(iter(self._ended_sessions))]
        if self._ended_file is not None:
            try:
                files.write_atomically(self._ended_file, "\n".join(self._ended_sessions).encode(), mode=0o600)
            except OSError as error:
                raise StoreError(
                    f"the logout cannot be saved: {error.strerror}",
                    where=str(self._ended_file),
                    now="The session has ended, and a restart of the hub could revive it",
                    remedy="Free disk space, then delete the session key to end all sessions",
                ) from error

    def is_ended_session(self, cookie: str) -> bool:
        return _digest(cookie) in self._ended_sessions


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).hexdigest()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise StartRefused(f"reading the ended sessions failed: {error}", where=str(path)) from error


def _load_key(path: Path) -> bytes:
    try:
        if not path.exists():
            files.write_atomically(path, secrets.token_hex(auth.KEY_BYTES).encode(), mode=0o600)
        key = path.read_bytes().strip()
    except OSError as error:
        raise StartRefused(f"reading or writing the session key failed: {error.strerror}", where=str(path)) from error
    if len(key) < auth.KEY_BYTES:
        raise StartRefused(
            f"the session key has {len(key)} characters, at least {auth.KEY_BYTES} are required",
            where=str(path),
            remedy="Delete the file: the hub creates a new key, and all users have to log in again",
        )
    return key


def from_settings(hub_settings: settings.HubSettings) -> AuthFiles:
    """The access rules of these settings, loaded once; SettingsError if a file is invalid."""
    trusted_proxy = proxy.from_settings(hub_settings.trusted_proxies, hub_settings.proxy_user_header)
    unknown_user_role = auth.Role(hub_settings.proxy_role) if trusted_proxy.header and hub_settings.proxy_role else None
    requires_login = bool(hub_settings.tokens or hub_settings.users or trusted_proxy.header)
    auth_files = AuthFiles(
        auth.Auth(unknown_user_role=unknown_user_role, requires_login=requires_login),
        trusted_proxy,
        Path(hub_settings.tokens) if hub_settings.tokens else None,
        Path(hub_settings.users) if hub_settings.users else None,
    )
    auth_files.load()
    return auth_files
