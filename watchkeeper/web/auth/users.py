"""People with passwords: a file of `name role hash` lines, written by `watchkeeper users` and read by the hub.

Passwords are kept as argon2id hashes (RFC 9106) and nowhere else. `-` stands for the hash of somebody who only comes
through a trusted proxy. `doors` reads the file, `sign_in` asks `matches`, which takes tens of milliseconds and 64 MiB
on purpose and is called in a thread.
"""

from __future__ import annotations

import secrets
import stat
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from watchkeeper.errors import SettingsError, error_reason
from watchkeeper.kit import files
from watchkeeper.web.auth.auth import Role, User

NO_PASSWORD = "-"  # noqa: S105
# NIST SP 800-63B asks for 8 at the least, and for 15 where the password is all there is.
SHORTEST_PASSWORD = 12
LONGEST_PASSWORD = 1024
LONGEST_NAME = 64
HEAD = "# Written by `watchkeeper users`: name, role, argon2 hash of the password or - for people behind a proxy.\n"


def hash_password(password: str) -> str:
    import argon2

    return argon2.PasswordHasher().hash(password)


def password_matches(user: User | None, password: str) -> bool:
    """Whether this is the user's password; takes as long for a user that there is not."""
    import argon2

    try:
        argon2.PasswordHasher().verify((user.hash if user else None) or _nobody(), password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
    return user is not None and user.hash is not None


@cache
def _nobody() -> str:
    return hash_password(secrets.token_hex(16))


def check_name(name: str) -> None:
    """ValueError unless this can be a user's name in the file, in a cookie and in the audit."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isascii() or not name.isprintable() or set(name) & set(' #;,"\\'):
        raise ValueError(f'a name has 1 to {LONGEST_NAME} visible ASCII characters without spaces or any of #;,"\\')


def check_password(password: str) -> None:
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        allowed = f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD}"
        raise ValueError(f"the password has {len(password)} characters, {allowed} are allowed")


def load_users(path: Path) -> tuple[User, ...]:
    """The users of a file, which may be none; SettingsError names every line that cannot be used."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"`watchkeeper users add NAME --role admin --file {path}` makes one"
        raise SettingsError(
            f"the file of users cannot be read: {error_reason(error)}", where=str(path), remedy=remedy
        ) from error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise SettingsError(
            f"others may use the file of users (mode {stat.S_IMODE(mode):04o})", where=str(path), remedy="chmod 600 it"
        )
    users, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                users.append(_parse(line))
            except ValueError as error:
                problems.append(f"line {number}: {error}")
    names = [user.name for user in users]
    problems += [f"the name {name} is used twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise SettingsError("the file of users cannot be used", problems=tuple(problems), where=str(path))
    return tuple(users)


def _parse(line: str) -> User:
    parts = line.split()
    if len(parts) != 3:
        raise ValueError("expected `name role hash`")
    name, role, hash = parts
    check_name(name)
    check_role(role)
    if hash == NO_PASSWORD:
        return User(name, Role(role))
    if not hash.startswith("$argon2"):
        raise ValueError("the hash is not one of argon2; `watchkeeper users passwd` writes one")
    return User(name, Role(role), hash)


def check_role(role: str) -> None:
    people = [each.value for each in Role if each is not Role.AGENT]
    if role not in people:
        raise ValueError(f"role {role} is not one of {', '.join(people)}; agents have tokens")


def write(path: Path, users: Sequence[User]) -> None:
    """Replace the file, for its owner's eyes only; a hub that runs sees it within seconds."""
    lines = [f"{user.name} {user.role} {user.hash or NO_PASSWORD}\n" for user in users]
    try:
        files.write_atomically(path, (HEAD + "".join(lines)).encode(), mode=0o600)
    except OSError as error:
        raise SettingsError(f"the file of users cannot be written: {error.strerror}", where=str(path)) from error
