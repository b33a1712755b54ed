"""Read and write the user file: lines of `name role hash`, written by `watchkeeper users` and read by the hub.

Passwords are stored only as argon2id hashes (RFC 9106), which take tens of milliseconds and 64 MiB on purpose. The hash
is `-` for a user who logs in through a trusted proxy only.
"""

from __future__ import annotations

import secrets
import stat
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from watchkeeper.errors import SettingsError, error_reason
from watchkeeper.kit import files
from watchkeeper.web.auth.auth import Role, User, parse_lines

NO_PASSWORD = "-"  # noqa: S105
# NIST SP 800-63B requires at least 8, and 15 if the password is the only factor.
MIN_PASSWORD_LENGTH = 12
MAX_PASSWORD_LENGTH = 1024
MAX_NAME_LENGTH = 64
FILE_HEADER = (
    "# Written by `watchkeeper users`: name, role, argon2 hash of the password, or - for users behind a proxy.\n"
)


def hash_password(password: str) -> str:
    import argon2

    return argon2.PasswordHasher().hash(password)


def password_matches(user: User | None, password: str) -> bool:
    """Whether this is the user's password; takes the same time for an unknown user."""
    import argon2

    try:
        argon2.PasswordHasher().verify((user.hash if user else None) or _dummy_hash(), password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
    return user is not None and user.hash is not None


@cache
def _dummy_hash() -> str:
    return hash_password(secrets.token_hex(16))


def check_name(name: str) -> None:
    """Raise ValueError unless the name is valid in the file, in a cookie and in the audit log."""
    if (
        not 0 < len(name) <= MAX_NAME_LENGTH
        or not name.isascii()
        or not name.isprintable()
        or set(name) & set(' #;,"\\')
    ):
        raise ValueError(
            f'a name needs 1 to {MAX_NAME_LENGTH} visible ASCII characters, without spaces or any of #;,"\\'
        )


def check_password(password: str) -> None:
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        allowed = f"{MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH}"
        raise ValueError(f"the password has {len(password)} characters, {allowed} are allowed")


def load_users(path: Path) -> tuple[User, ...]:
    """The users of a file, which may be empty; SettingsError lists every invalid line."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"Create it with `watchkeeper users add NAME --role admin --file {path}`"
        raise SettingsError(
            f"reading the user file failed: {error_reason(error)}", where=str(path), remedy=remedy
        ) from error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise SettingsError(
            f"the user file is accessible to others (mode {stat.S_IMODE(mode):04o})",
            where=str(path),
            remedy=f"chmod 600 {path}",
        )
    users, problems = parse_lines(text, _parse_user)
    if problems:
        raise SettingsError("invalid user file", problems=tuple(problems), where=str(path))
    return tuple(users)


def _parse_user(line: str) -> User:
    parts = line.split()
    if len(parts) != 3:
        raise ValueError("expected `name role hash`")
    name, role, hash = parts
    check_name(name)
    check_role(role)
    if hash == NO_PASSWORD:
        return User(name, Role(role))
    if not hash.startswith("$argon2"):
        raise ValueError("the hash is not an argon2 hash; set the password with `watchkeeper users passwd`")
    return User(name, Role(role), hash)


def check_role(role: str) -> None:
    user_roles = [role_of_person.value for role_of_person in Role if role_of_person is not Role.AGENT]
    if role not in user_roles:
        raise ValueError(f"unknown role {role} for a user; roles are {', '.join(user_roles)}, and agents have tokens")


def write_users(path: Path, users: Sequence[User]) -> None:
    """Replace the file, readable by its owner only; a running hub reloads it within seconds."""
    lines = [f"{user.name} {user.role} {user.hash or NO_PASSWORD}\n" for user in users]
    try:
        files.write_atomically(path, (FILE_HEADER + "".join(lines)).encode(), mode=0o600)
    except OSError as error:
        raise SettingsError(f"writing the user file failed: {error.strerror}", where=str(path)) from error
