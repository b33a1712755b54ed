"""`watchkeeper users`: users who log in with a password, in a file that only its owner can read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from watchkeeper.cli import options
from watchkeeper.config import loading
from watchkeeper.errors import SettingsError
from watchkeeper.web.auth import auth, users

USER_ROLES = [role.value for role in auth.Role if role is not auth.Role.AGENT]


def _users_file(file: Path | None, config: Path | None) -> Path:
    if file is None and config is not None and (users_path := loading.load(config).hub.users):
        file = Path(users_path)
    if file is None:
        raise click.UsageError("give the users file with --file, or settings that set [hub] users with --config")
    return file


with_users_file = options.combined(
    "file",
    _users_file,
    options.path_option("--file", metavar="FILE", help="Users file."),
    options.path_option("--config", metavar="FILE", help="Settings file that sets [hub] users."),
)


@click.group("users", cls=options.FullHelpGroup)
def command() -> None:
    """Manage users who log in with a name and a password; programs and agents use tokens.

    A running hub applies a change within seconds. A user who is removed or gets a new password is logged out.
    """


@command.command("add")
@click.argument("name")
@click.option("--role", type=click.Choice(USER_ROLES), default="viewer", help="Role of the user.")
@click.option("--no-password", is_flag=True, help="Create a user who can log in through a trusted proxy only.")
@with_users_file
def add(name: str, role: str, no_password: bool, file: Path) -> None:
    """Add a user; the password is prompted for, or read from the first line of standard input."""
    current_users = users.load_users(file) if file.exists() else ()
    _require_valid(users.check_name, name)
    if any(user.name == name for user in current_users):
        remedy = f"Change the password with `watchkeeper users passwd {name}`"
        raise SettingsError(f"user {name} exists", where=str(file), remedy=remedy)
    hash = None if no_password else users.hash_password(_read_password())
    users.write_users(file, [*current_users, auth.User(name, auth.Role(role), hash)])
    click.echo(f"User {name} added to {file} as {role}. The hub uses this file if [hub] users names it.")


@command.command("list")
@options.as_json
@with_users_file
def list_users(as_json: bool, file: Path) -> None:
    """List users with role and login method."""
    current_users = users.load_users(file)
    plain = [{"name": user.name, "role": user.role, "has_password": user.hash is not None} for user in current_users]
    rows = [[user.name, user.role, "password" if user.hash else "proxy only"] for user in current_users]
    options.print_rows(plain, ["name", "role", "login"], rows, as_json=as_json, empty="No users.")


@command.command("remove")
@click.argument("name")
@with_users_file
def remove(name: str, file: Path) -> None:
    """Remove a user and end the user's sessions."""
    current_users = _load_with(name, file)
    users.write_users(file, [user for user in current_users if user.name != name])
    click.echo(f"User {name} removed from {file}.")


@command.command("passwd")
@click.argument("name")
@with_users_file
def passwd(name: str, file: Path) -> None:
    """Change the password of a user and end the user's sessions."""
    current_users, hash = _load_with(name, file), users.hash_password(_read_password())
    users.write_users(file, [replace(user, hash=hash) if user.name == name else user for user in current_users])
    click.echo(f"Password of {name} changed.")


def _load_with(name: str, file: Path) -> tuple[auth.User, ...]:
    """All users; SettingsError if there is none of this name."""
    current_users = users.load_users(file)
    if all(user.name != name for user in current_users):
        raise SettingsError(f"no user {name}", where=str(file), remedy="List users with `watchkeeper users list`")
    return current_users


def _read_password() -> str:
    """Prompt for the password, or read it from a pipe; never from an argument, which other users could see."""
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    _require_valid(users.check_password, password)
    return password


def _require_valid(check: Callable[[str], None], text: str) -> None:
    try:
        check(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
