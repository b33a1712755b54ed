"""Named groups of this node's GPUs, as `dcgmi group` has them.

A group is a name and the words of `model.gpu_words`, kept as they were typed: they are read when the group is used,
so it may be made before its GPUs are there. The system's groups lie in /etc/watchkeeper, a person's own in their
configuration directory; a name of one's own goes first. Commands that look at GPUs use it through
`cli.node.gpu_choice`.
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

SYSTEM = Path("/etc/watchkeeper/gpu_groups.json")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}\Z")
MOST_GROUPS = 256
MOST_WORDS = 256
MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GroupFile:
    """The groups of one file; a file that is not there has none."""

    path: Path

    def load(self) -> dict[str, list[str]]:
        try:
            with self.path.open("rb") as file:
                content = file.read(MOST_BYTES)
            return wire.loads(dict[str, list[str]], content)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SettingsError(f"the groups cannot be read: {error.strerror}", where=str(self.path)) from error
        except WireError as error:
            raise SettingsError(f"these are no groups of GPUs: {error}", where=str(self.path)) from error

    def save(self, groups: Mapping[str, Iterable[str]]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(self.path, wire.dumps(groups).encode() + b"\n")
        except OSError as error:
            raise SettingsError(f"the groups cannot be written: {error.strerror}", where=str(self.path)) from error

    def create(self, name: str, words: Iterable[str]) -> None:
        """Keep a group under a new name; SettingsError if it cannot be one."""
        groups, kept = self.load(), [word.strip() for text in words for word in text.split(",") if word.strip()]
        if not NAME.match(name):
            problem = f"`{name[:70]}` is no name: a letter, then up to 63 letters, digits, dots, dashes or underscores"
            raise SettingsError(problem, where=str(self.path))
        if name in groups:
            raise SettingsError(f"there is a group {name} already", where=str(self.path), remedy="Delete it first")
        if len(groups) >= MOST_GROUPS:
            raise SettingsError(f"there are {len(groups)} groups, the limit is {MOST_GROUPS}", where=str(self.path))
        if len(kept) > MOST_WORDS:
            raise SettingsError(f"the group has {len(kept)} entries, the limit is {MOST_WORDS}", where=str(self.path))
        try:
            gpu_selectors.parse_selection(kept)
        except ValueError as error:
            raise SettingsError(str(error), where=f"group {name}") from error
        self.save({**groups, name: kept})

    def delete(self, name: str) -> bool:
        """False if there is no such group."""
        groups = self.load()
        if name in groups:
            self.save({known: words for known, words in groups.items() if known != name})
        return name in groups


def user_file(environment: Mapping[str, str] = os.environ) -> GroupFile:
    """Where this person's groups are: WATCHKEEPER_GPU_GROUPS, root's for the whole system, else one's own."""
    if named := environment.get("WATCHKEEPER_GPU_GROUPS"):
        return GroupFile(Path(named))
    if os.geteuid() == 0:
        return GroupFile(SYSTEM)
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return GroupFile(Path(home) / "watchkeeper" / SYSTEM.name)


def all_groups(own: GroupFile) -> dict[str, list[str]]:
    """Every group by name, one's own before the system's."""
    return {**(GroupFile(SYSTEM).load() if own.path != SYSTEM else {}), **own.load()}


def find_group(name: str, own: GroupFile) -> gpu_selectors.GpuSelection:
    """The GPUs of a group; SettingsError says which groups there are."""
    groups = all_groups(own)
    if name not in groups:
        known = ", ".join(sorted(groups)) or "none; `watchkeeper gpus group create NAME GPU…` makes one"
        raise SettingsError(f"there is no group `{name[:70]}`; there are: {known}")
    try:
        return gpu_selectors.parse_selection(groups[name])
    except ValueError as error:
        raise SettingsError(str(error), where=f"group {name}") from error
