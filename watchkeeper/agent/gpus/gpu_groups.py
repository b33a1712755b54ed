"""Stores named groups of this node's GPUs, like `dcgmi group`.

A group is a name and selectors of `model.gpu_selectors`, stored as typed, so that it can be created before its GPUs
exist. System groups are in /etc/watchkeeper; a user's groups hide system groups of the same name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.errors import SettingsError, WireError
from watchkeeper.kit import files, wire
from watchkeeper.model import gpu_selectors

SYSTEM_FILE = Path("/etc/watchkeeper/gpu_groups.json")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}\Z")
MAX_GROUPS = 256
MAX_SELECTORS = 256
MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GroupFile:
    """The groups in one file; a missing file has none."""

    path: Path

    def load(self) -> dict[str, list[str]]:
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES)
            return wire.loads(dict[str, list[str]], content)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SettingsError(f"the groups cannot be read: {error.strerror}", where=str(self.path)) from error
        except WireError as error:
            raise SettingsError(f"the file is not a list of GPU groups: {error}", where=str(self.path)) from error

    def save(self, groups: Mapping[str, Iterable[str]]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(self.path, wire.dumps(groups).encode() + b"\n")
        except OSError as error:
            raise SettingsError(f"the groups cannot be written: {error.strerror}", where=str(self.path)) from error

    def create(self, name: str, texts: Iterable[str]) -> None:
        """Save a new group; SettingsError if its name or a selector is invalid, or the name is in use."""
        groups, selectors = self.load(), [word.strip() for text in texts for word in text.split(",") if word.strip()]
        if not NAME.match(name):
            problem = f"group name `{name[:70]}` is invalid"
            remedy = "Use a letter, then up to 63 letters, digits, `.`, `-` or `_`"
            raise SettingsError(problem, where=str(self.path), remedy=remedy)
        if name in groups:
            raise SettingsError(f"group {name} already exists", where=str(self.path), remedy="Delete it first")
        if len(groups) >= MAX_GROUPS:
            raise SettingsError(f"there are {len(groups)} groups, the limit is {MAX_GROUPS}", where=str(self.path))
        if len(selectors) > MAX_SELECTORS:
            problem = f"the group has {len(selectors)} selectors, the limit is {MAX_SELECTORS}"
            raise SettingsError(problem, where=str(self.path))
        try:
            gpu_selectors.parse_selection(selectors)
        except ValueError as error:
            raise SettingsError(str(error), where=f"group {name}") from error
        self.save({**groups, name: selectors})

    def delete(self, name: str) -> bool:
        groups = self.load()
        if name in groups:
            self.save({group: selectors for group, selectors in groups.items() if group != name})
        return name in groups


def find_user_file(environment: Mapping[str, str] = os.environ) -> GroupFile:
    """The file of this user's groups: WATCHKEEPER_GPU_GROUPS, the system's file for root, else the user's own."""
    if path_text := environment.get("WATCHKEEPER_GPU_GROUPS"):
        return GroupFile(Path(path_text))
    if os.geteuid() == 0:
        return GroupFile(SYSTEM_FILE)
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return GroupFile(Path(home) / "watchkeeper" / SYSTEM_FILE.name)


def load_all_groups(user_file: GroupFile) -> dict[str, list[str]]:
    return {**(GroupFile(SYSTEM_FILE).load() if user_file.path != SYSTEM_FILE else {}), **user_file.load()}


def find_group(name: str, user_file: GroupFile) -> gpu_selectors.GpuSelection:
    """The GPUs of a group; SettingsError lists the groups if it does not exist."""
    groups = load_all_groups(user_file)
    if name not in groups:
        group_names = ", ".join(sorted(groups)) or "none. Create one with `watchkeeper gpus group create NAME GPU…`"
        raise SettingsError(f"group `{name[:70]}` does not exist. Groups: {group_names}")
    try:
        return gpu_selectors.parse_selection(groups[name])
    except ValueError as error:
        raise SettingsError(str(error), where=f"group {name}") from error
