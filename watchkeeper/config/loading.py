"""Load `Settings` from a TOML file and the command line, or raise one error with all problems.

`kit.wire` checks the types of `settings`, and each setting's own check the rest, so that this module contains nothing
about single settings except which ones are paths.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from watchkeeper.config.settings import Settings
from watchkeeper.errors import SettingsError, WireError
from watchkeeper.kit import wire

# Before Python 3.14, tomllib gives the position only as text: "Expected '=' after a key (at line 3, column 5)".
TOML_POSITION = re.compile(r"^(?P<problem>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
SECRET_KEYS = ("headers_file", "bearer_token_file", "password_file", "ca_file", "client_cert_file", "client_key_file")
PATH_KEYS = (
    *("hub.data", "hub.tokens", "journal.path", "journal.url_file", "rules.files"),
    *("fleet.sd_files", "fleet.prometheus_config", "fleet.kubeconfig", "fleet.inventory", "fleet.slurm_token_file"),
    *("remediate.policy", "hub.users", "hub.session_key_file", "notify.heartbeat_file"),
    *("hub.tls_cert_file", "hub.tls_key_file", "hub.tls_client_ca_file"),
    *("hub.order_key_file", "rules.slos", "notify.routes", "remediate.kubeconfig", "remediate.slurm_commands"),
    *(f"query.{key}" for key in ("data", *SECRET_KEYS)),
    *(f"fabric.{key}" for key in ("node_names", "ufm_token_file", "ufm_password_file", "ufm_ca_file")),
)


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a file (None: defaults) with overrides such as `{"hub.port": 9490}`; None is no override."""
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    plain = _resolve_paths(_read(path), path.parent) if path else {}
    for key, value in given.items():
        section, _, name = key.partition(".")
        table = plain.setdefault(section, {})
        # A section that is not a table is left for the check to report.
        if isinstance(table, dict):
            table[name] = value
    problems: list[str] = []
    try:
        settings = wire.from_plain(Settings, plain)
    except WireError as error:
        problems += error.problems
    problems += _failed_checks(plain)
    if problems:
        origins = (
            "command line" if path is None or problem.partition(":")[0] in given else path for problem in problems
        )
        raise SettingsError(
            f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the settings",
            problems=tuple(f"{origin}: {problem}" for origin, problem in zip(origins, problems, strict=True)),
            remedy="See docs/reference/settings.md for every key",
        )
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text (byte {error.start})"
        problem = f"the settings file cannot be read: {problem}"
        raise SettingsError(problem, where=str(path), remedy="Choose a readable TOML file") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = TOML_POSITION.match(str(error))
        problem = match["problem"] if match else str(error)
        line = (match["line"] if match else None) or str(text.count("\n") + 1)
        raise SettingsError(f"not valid TOML: {problem}", where=f"{path}:{line}", remedy="Correct that line") from error


def _resolve_paths(plain: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Make relative paths relative to the settings file; values of a wrong type are not changed."""
    for key in PATH_KEYS:
        section, name = key.split(".")
        table = plain.get(section)
        value = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value, str) and value:
            table[name] = str(directory / value)
        elif isinstance(table, dict) and isinstance(value, list):
            table[name] = [str(directory / item) if isinstance(item, str) else item for item in value]
    return plain


def _failed_checks(plain: dict[str, Any]) -> Iterator[str]:
    """The problems that each setting's own check reports for values of the right type."""
    for section, kind in typing.get_type_hints(Settings).items():
        table = plain.get(section)
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            check = field.metadata["check"]
            value = table.get(field.name) if isinstance(table, dict) else None
            if check is None or type(value) is not hints[field.name]:
                continue
            try:
                check(value)
            except ValueError as error:
                yield f"{section}.{field.name}: {error}"
