"""`watchkeeper users`: people who may sign in with a password, in a file that only its owner may read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from watchkeeper.cli import groups, options
from watchkeeper.config import loading
from watchkeeper.errors import SettingsError
from watchkeeper.web.auth import auth, users

PEOPLE = [role.value for role in auth.Role if role is not auth.Role.AGENT]


def with_file(command: Callable[..., None]) -> Callable[..., None]:
    """Add --file and --config: the file itself, or the settings that name it."""
    command = click.option(
        "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Settings with [hub] users."
    )(command)
    return click.option("--file", "path", type=click.Path(path_type=Path), metavar="FILE", help="The file of users.")(
        command
    )


def chosen(path: Path | None, config_file: Path | None) -> Path:
    if path is None and config_file is not None:
        named = loading.load(config_file).hub.users
        path = Path(named) if named else None
    if path is None:
        raise click.UsageError("name the file with --file, or settings that have [hub] users with --config")
    return path


@click.group("users", cls=groups.FullHelpGroup)
def command() -> None:
    """People who sign in with a name and a password; programs and agents have tokens.

    A hub that runs sees a change within seconds. Whoever is removed or gets a new password is signed out.
    """


@command.command("add")
@click.argument("name")
@click.option("--role", type=click.Choice(PEOPLE), default="viewer", help="What this person may do.")
@click.option("--no-password", is_flag=True, help="Somebody who comes through a trusted proxy only.")
@with_file
def add(name: str, role: str, no_password: bool, path: Path | None, config_file: Path | None) -> None:
    """Let somebody in; the password is asked for, or is the first line of standard input."""
    file = chosen(path, config_file)
    known = users.load_users(file) if file.exists() else ()
    _must(users.check_name, name)
    if any(user.name == name for user in known):
        raise SettingsError(f"{name} is there already", where=str(file), remedy="`passwd` changes the password")
    hash = None if no_password else users.hash_password(_password())
    users.write_users(file, [*known, auth.User(name, auth.Role(role), hash)])
    click.echo(f"{name} is {role} in {file}. The hub reads it where [hub] users names it.")


@command.command("list")
@options.as_json
@with_file
def list_users(as_json: bool, path: Path | None, config_file: Path | None) -> None:
    """Who may sign in, and as what."""
    known = users.load_users(chosen(path, config_file))
    if as_json:
        options.print_json([{"name": u.name, "role": u.role, "has_password": u.hash is not None} for u in known])
    elif known:
        rows = [[user.name, user.role, "password" if user.hash else "proxy only"] for user in known]
        options.print_table(["name", "role", "signs in by"], rows)
    else:
        click.echo("Nobody may sign in with a password.")


@command.command("remove")
@click.argument("name")
@with_file
def remove(name: str, path: Path | None, config_file: Path | None) -> None:
    """Let somebody in no longer; their sessions end."""
    file = chosen(path, config_file)
    known = users.load_users(file)
    _find(known, name, file)
    users.write_users(file, [user for user in known if user.name != name])
    click.echo(f"{name} is removed from {file}.")


@command.command("passwd")
@click.argument("name")
@with_file
def passwd(name: str, path: Path | None, config_file: Path | None) -> None:
    """Change a password; sessions that began with the earlier one end."""
    file = chosen(path, config_file)
    known = users.load_users(file)
    _find(known, name, file)
    hash = users.hash_password(_password())
    users.write_users(file, [replace(user, hash=hash) if user.name == name else user for user in known])
    click.echo(f"{name} has a new password.")


def _find(known: tuple[auth.User, ...], name: str, file: Path) -> None:
    if all(user.name != name for user in known):
        raise SettingsError(f"there is no {name}", where=str(file), remedy="`watchkeeper users list` shows who is")


def _password() -> str:
    """Typed twice at a terminal, or piped; never an argument, which every user of the machine could read."""
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    _must(users.check_password, password)
    return password


def _must(check: Callable[[str], None], text: str) -> None:
    try:
        check(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
